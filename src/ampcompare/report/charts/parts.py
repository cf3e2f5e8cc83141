"""What the charts share: axes, colours, legends, lines with hover, and the finish of a specification."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.series import Datum
from ampcompare.report.palette import Style
from ampcompare.report.runs.settings import Setting

Spec = dict[str, Any]
HEIGHT = 250
SUBTITLE_CHARS = 52  # what fits a phone's width
LEGEND_CHARS = 46
LABEL_CHARS = 30  # of a longer name the rest is cut
LINE_WIDTH = 2.5
NESTED_STEP = 2.2  # pixels by which a line is wider than one that lies on it
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DATA = "data"
MANY = 24  # groups beyond which a chart has neither a legend nor a layer for each
MINUTES, HOURS = 600, 3 * 3600  # seconds from which a time axis counts in minutes, in hours
INK = "#1c2330"
RUNS = "runs"  # the parameter that shows single runs
ZONE = "#8a93a3"
HALO = "halo"  # the style of a ground behind words, which is the paper's colour
ONCE = alt.NamedData("once")  # for a mark that is no row's; `finish` puts its one row in
ALONG: dict[str, Any] = {"type": "quantitative", "scale": alt.Scale(zero=False)}


class Parts:
    """The layers of one chart over its rows. All encodings name a backend the same way."""

    def __init__(
        self, rows: Sequence[Datum], styles: Sequence[Style], x: alt.X, y: alt.Y, *, legend: str = "lines"
    ) -> None:
        """`legend` shows "lines" or "symbols"; "none" where names stand beside what is drawn."""
        self.rows, self.styles, self.x, self.y = rows, styles, x, y
        self._legend = legend if len(styles) <= MANY else "none"
        # A click on a name in the legend singles it out, with shift several; the page tells all charts.
        bind: Any = "legend" if self._legend != "none" else alt.Undefined
        self.pick = alt.selection_point(name="pick", fields=["backend"], bind=bind)
        # Dragging moves, the wheel zooms only with shift or ctrl, and a finger still scrolls the page.
        self.zoom = alt.selection_interval(
            name="zoom",
            bind="scales",
            translate="[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!",
            zoom="wheel![event.shiftKey || event.ctrlKey]",
        )
        self.show_runs = alt.param(name=RUNS, value=False)

    def has(self, kind: str) -> bool:
        """Whether there are rows of this kind; a layer without any would have no extent."""
        return any(row["kind"] == kind for row in self.rows)

    @property
    def has_intervals(self) -> bool:
        """Whether there are rows with an interval, or the range of several seeds."""
        return any("low" in row for row in self.rows)

    def of(self, kind: str) -> alt.Chart:
        """A layer of the rows of one kind."""
        return alt.Chart(alt.NamedData(DATA)).transform_filter(f"datum.kind == '{kind}'")

    def spans(self, kind: str) -> alt.Chart:
        """A layer of those rows of a kind that have `low` and `high`."""
        return self.of(kind).transform_filter("isValid(datum.low)")

    def colour(self) -> alt.Color:
        """Colour by backend."""
        return alt.Color(field="backend", type="nominal", scale=self.scale("colour"), legend=self.legend())

    def scale(self, attribute: str) -> alt.Scale:
        """A fixed scale from backend to one attribute of its style."""
        values = [getattr(style, attribute) for style in self.styles]
        range_ = [list(v) if isinstance(v, tuple) else v for v in values]
        return alt.Scale(domain=[style.label for style in self.styles], range=range_)

    def legend(self) -> alt.Legend | None:
        """The legend above a chart, in as many columns as fit a phone."""
        if self._legend == "none":
            return None
        widest = min(LABEL_CHARS, max((len(style.label) for style in self.styles), default=1))
        columns = max(1, min(len(self.styles), LEGEND_CHARS // (widest + 7)))
        # A line must be long enough for its dashes to be seen.
        symbol: dict[str, Any] = {"symbolSize": 420, "symbolType": "stroke", "symbolStrokeWidth": LINE_WIDTH}
        if self._legend == "symbols":
            symbol = {"symbolSize": 90, "symbolStrokeWidth": 0}
        return alt.Legend(title=None, orient="top", columns=columns, labelLimit=7 * LABEL_CHARS, **symbol)

    def dimmed(self, full: float, faint: float = 0.08) -> Any:
        """The opacity of what is picked, and next to nothing for the rest."""
        return alt.condition(self.pick, alt.value(full), alt.value(faint))

    def on_demand(self, full: float) -> Any:
        """Nothing, until the reader asks for single runs. (A filter would leave a layer without extent.)"""
        shown, faint = (alt.ExprRef(f"{RUNS} ? {opacity} : 0") for opacity in (full, 0.08))
        return alt.condition(self.pick, alt.value(shown), alt.value(faint))

    def band(self, interpolate: Any = "linear") -> alt.Chart:
        """From the lowest to the highest seed, behind the mean."""
        area = self.spans("line").mark_area(interpolate=interpolate, clip=True)
        span: dict[str, Any] = {"x": self.x, "y": over(self.y, "low"), "y2": alt.Y2(field="high")}
        detail = alt.Detail(field="id", type="nominal")
        return area.encode(**span, color=self.colour(), detail=detail, fillOpacity=self.dimmed(0.2, 0.03))

    def lines(self, covered: Mapping[str, int], interpolate: Any = "linear") -> list[alt.Chart]:
        """Bands, single runs (on demand, thin and faint), then each backend's line in a layer of its own.

        `covered` tells for each backend how many later lines lie on its own: each is drawn wider than those
        on it, and with the dashes of the upper ones all stay visible. The lowest line's rows have `place` 0.
        """
        detail = alt.Detail(field="id", type="nominal")
        shared = {"x": self.x, "y": self.y, "detail": detail, "color": self.colour()}
        layers = []
        if self.has_intervals:
            layers.append(self.band(interpolate))
        if self.has("run"):
            thin = self.of("run").mark_line(strokeWidth=1, interpolate=interpolate, clip=True)
            layers.append(thin.encode(**shared, opacity=self.on_demand(0.45)))
        dash = alt.StrokeDash(field="backend", type="nominal", scale=self.scale("dash"), legend=self.legend())
        places: list[int | None] = sorted({row["place"] for row in self.rows if row["kind"] == "line"})
        for place in places if len(places) <= MANY else [None]:
            width, line = LINE_WIDTH, self.of("line")
            if place is not None:
                width += NESTED_STEP * covered[self.styles[place].label]
                line = line.transform_filter(f"datum.place == {place}")
            line = line.mark_line(strokeWidth=width, interpolate=interpolate, clip=True)
            layers.append(line.encode(**shared, strokeDash=dash, opacity=self.dimmed(1.0)))
        if not layers:  # nothing was recorded; the specification still says what it would show
            layers.append(self.of("line").mark_line().encode(**shared))
        layers[-1] = layers[-1].add_params(self.pick, self.zoom)
        return layers

    def hover(
        self, y_format: str, ends: tuple[str, str] = ("lowest seed", "highest seed")
    ) -> list[alt.Chart]:
        """Invisible points that carry the tooltips, of single runs while they are shown.

        `ends` says what the band reaches from and to.
        """
        x, y = self.x["title"], self.y["title"]
        tips = [tip("backend"), tip("run"), tip("x", x, ",~r"), tip("y", y, y_format)]
        if self.has_intervals:
            tips += [tip("low", ends[0], y_format), tip("high", ends[1], y_format)]
        layers = []
        for kind, size in (("run", alt.ExprRef(f"{RUNS} ? 90 : 0")), ("line", 90)):
            if self.has(kind):
                points = self.of(kind).mark_point(filled=True, size=size, opacity=0, clip=True)
                layers.append(points.encode(x=self.x, y=self.y, tooltip=tips))
        return layers


def is_for_screens(layer: Mapping[str, Any]) -> bool:
    """Whether a layer only serves a reader who can point and click."""
    opacity = layer.get("encoding", {}).get("opacity", {})
    return layer["mark"].get("opacity") == 0 or f"{RUNS} ?" in str(opacity)


def drawn_styles(analysis: Analysis, rows: Sequence[Datum]) -> list[Style]:
    """The styles of the groups that have rows, in the order of the groups."""
    drawn = {row["backend"] for row in rows}
    return [style for label, style in analysis.styles.items() if label in drawn]


def quantity(axis: type[alt.X] | type[alt.Y], title: str, **scale: Any) -> Any:
    """A quantitative x or y channel over the field of the same name; its scale needs not begin at 0."""
    field = "x" if axis is alt.X else "y"
    if "domain" not in scale and scale.get("type") != "log":
        scale.setdefault("zero", False)
    return axis(field=field, type="quantitative", title=title, scale=alt.Scale(**scale))


def over(channel: Any, field: str) -> Any:
    """The same channel over another field."""
    other = channel.copy()
    other["field"] = field
    return other


def margin_zone(margin: float | None, axis: type[alt.X] | type[alt.Y]) -> list[alt.Chart]:
    """Where a difference is within the margin, as a zone along an axis; nothing without a margin."""
    if margin is None:
        return []
    zone = alt.Chart(ONCE).mark_rect(fill=ZONE, fillOpacity=0.2, stroke=ZONE, strokeDash=[5, 4], clip=True)
    if axis is alt.X:
        return [zone.encode(x=alt.XDatum(-margin, **ALONG), x2=alt.X2Datum(margin))]
    return [zone.encode(y=alt.YDatum(-margin, **ALONG), y2=alt.Y2Datum(margin))]


def neutral_line(value: float, axis: type[alt.X] | type[alt.Y]) -> alt.Chart:
    """A thin line at the value that is no difference."""
    line = alt.Chart(ONCE).mark_rule(strokeWidth=1, opacity=0.7)
    at_x = axis is alt.X
    return line.encode(x=alt.XDatum(value, **ALONG)) if at_x else line.encode(y=alt.YDatum(value, **ALONG))


def drawn_as(field: str, channel: Any) -> Any:
    """A channel that takes a field's values as they are, in pixels."""
    return channel(field=field, type="quantitative", scale=None, legend=None)


def steps(title: str) -> alt.X:
    """The x channel of what is counted: optimizer steps, epochs."""
    channel = quantity(alt.X, title, nice=False)
    channel.axis = alt.Axis(tickMinStep=1, format=",~r")
    return channel


def time_unit(longest: float) -> tuple[str, int]:
    """The unit of an axis that reaches so many seconds, and its seconds."""
    units = (HOURS, "hours", 3600), (MINUTES, "minutes", 60), (0, "seconds", 1)
    return next(((unit, seconds) for least, unit, seconds in units if longest >= least), ("seconds", 1))


def tip(field: str, title: str | None = None, format: str | None = None) -> alt.Tooltip:
    """One line of a tooltip."""
    of_kind: dict[str, Any] = {"type": "quantitative", "format": format} if format else {"type": "nominal"}
    return alt.Tooltip(field=field, title=title or field, **of_kind)


def finish(
    layers: Sequence[alt.Chart],
    setting: Setting,
    title: str,
    rows: list[Datum],
    *,
    note: str | None = None,
    height: int = HEIGHT,
    params: Sequence[alt.Parameter] = (),
    is_cut: bool = False,
) -> Spec:
    """The specification with title, the setting and machine as subtitle, its fonts and its data.

    `is_cut`: what is drawn beyond the axes is cut in pictures too.
    """
    where = textwrap.wrap(setting.whole, SUBTITLE_CHARS)
    subtitle = where + textwrap.wrap(note or "", SUBTITLE_CHARS)
    chart = (
        alt.layer(*layers)
        .properties(
            width="container",
            height=height,
            title=alt.Title(title, subtitle=subtitle, anchor="start", frame="bounds", offset=14),
            background="transparent",
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        .configure(font=FONT)
        .configure_title(fontSize=15, fontWeight=600, subtitleFontSize=11.5, subtitlePadding=5)
        .configure_axis(
            labelFontSize=11.5, titleFontSize=12, titleFontWeight="normal", gridOpacity=0.5, tickSize=4
        )
        .configure_axisX(grid=False, tickCount=6)
        .configure_legend(labelFontSize=12.5, symbolOpacity=1)
        .configure_tick(color=INK)
        .configure_rule(color=INK)
        .configure_view(stroke=None)
    )
    chart.config.style = {HALO: {"stroke": "white", "strokeWidth": 4}}
    spec = chart.add_params(*params).to_dict()
    spec["description"] = f"{title}. {' '.join(subtitle)}"
    spec["datasets"] = {DATA: rows}
    for layer in spec["layer"]:
        if layer.get("data") == ONCE.to_dict():
            layer["data"] = {"values": [{}]}
    # How many lines of the subtitle are the setting: a page that has said it leaves them out.
    spec["usermeta"] = {"setting": len(where)}
    if is_cut:
        spec["usermeta"]["cut"] = True
    return spec
