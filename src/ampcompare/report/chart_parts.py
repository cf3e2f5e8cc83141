"""What the charts share: axes, colours, legends, lines with hover, and the finish of a specification."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ampcompare.report.palette import Style
from ampcompare.report.series import Row
from ampcompare.report.setting import Setting

Spec = dict[str, Any]
HEIGHT = 250
SUBTITLE_CHARS = 58  # what fits a phone's width
LEGEND_CHARS = 44
LABEL_CHARS = 14  # of a longer backend name the rest is cut
LINE_WIDTH = 2.5
NESTED_STEP = 2.2  # pixels by which a line is wider than one that lies on it
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DATA = "data"


class Parts:
    """The layers of one chart over its rows. All encodings name a backend the same way."""

    def __init__(
        self, rows: Sequence[Row], looks: Sequence[Style], x: alt.X, y: alt.Y, *, filled_legend: bool = False
    ) -> None:
        self.rows, self.looks, self.x, self.y = rows, looks, x, y
        self._filled = filled_legend
        self._legend_size = 90 if filled_legend else 420  # a line must be long enough for its dashes to be seen
        # A click on a name in the legend singles it out, with shift several.
        self.pick = alt.selection_point(name="pick", fields=["backend"], bind="legend")

    def has(self, kind: str) -> bool:
        """Whether there are rows of this kind; a layer without any would have no extent."""
        return any(row["kind"] == kind for row in self.rows)

    def of(self, *kinds: str) -> alt.Chart:
        """A layer of the rows of these kinds."""
        wanted = " || ".join(f"datum.kind == '{kind}'" for kind in kinds)
        return alt.Chart(alt.NamedData(DATA)).transform_filter(wanted)

    def colour(self) -> alt.Color:
        """Colour by backend."""
        return alt.Color(field="backend", type="nominal", scale=self.scale("colour"), legend=self.legend())

    def scale(self, attribute: str) -> alt.Scale:
        """A fixed scale from backend to one attribute of its style."""
        values = [getattr(style, attribute) for style in self.looks]
        range_ = [list(v) if isinstance(v, tuple) else v for v in values]
        return alt.Scale(domain=[style.label for style in self.looks], range=range_)

    def legend(self) -> alt.Legend:
        """The legend above a chart, in as many columns as fit a phone."""
        widest = min(LABEL_CHARS, max((len(style.label) for style in self.looks), default=1))
        columns = max(1, min(len(self.looks), LEGEND_CHARS // (widest + 7)))
        return alt.Legend(
            title=None,
            orient="top",
            columns=columns,
            symbolSize=self._legend_size,
            symbolStrokeWidth=0 if self._filled else LINE_WIDTH,
            labelLimit=8 * LABEL_CHARS,
        )

    def dimmed(self, full: float) -> Any:
        """The opacity of what is picked, and next to nothing for the rest."""
        return alt.condition(self.pick, alt.value(full), alt.value(0.08))

    def lines(self, covered: Mapping[str, int], interpolate: Any = "linear") -> list[alt.Chart]:
        """Single runs thin and faint, then the line of each backend in a layer of its own.

        `covered` tells for each backend how many later lines lie on its own: each is drawn wider than those on it,
        and with the dashes of the upper ones all stay visible. Rows have a `place`, 0 for the lowest line.
        """
        shared = {"x": self.x, "y": self.y, "detail": alt.Detail(field="id", type="nominal"), "color": self.colour()}
        layers = []
        if self.has("run"):
            thin = self.of("run").mark_line(strokeWidth=1, interpolate=interpolate)
            layers.append(thin.encode(**shared, opacity=self.dimmed(0.4)))
        dash = alt.StrokeDash(field="backend", type="nominal", scale=self.scale("dash"), legend=self.legend())
        for place in sorted({row["place"] for row in self.rows if row["kind"] == "line"}):
            width = LINE_WIDTH + NESTED_STEP * covered[self.looks[place].label]
            line = self.of("line").transform_filter(f"datum.place == {place}")
            line = line.mark_line(strokeWidth=width, interpolate=interpolate)
            layers.append(line.encode(**shared, strokeDash=dash, opacity=self.dimmed(1.0)))
        if not layers:  # nothing was recorded; the specification still says what it would show
            layers.append(self.of("line").mark_line().encode(**shared))
        layers[-1] = layers[-1].add_params(self.pick)
        return layers

    def hover(self, y_format: str, kinds: Sequence[str] = ("line",)) -> alt.Chart:
        """Invisible points that carry the tooltips."""
        points = self.of(*kinds).mark_point(filled=True, size=90, opacity=0)
        return points.encode(
            x=self.x,
            y=self.y,
            tooltip=[
                tip("backend"),
                tip("run"),
                tip("x", str(self.x.title), ",~r"),
                tip("y", str(self.y.title), y_format),
            ],
        )


def quantity(axis: type[alt.X] | type[alt.Y], title: str, **scale: Any) -> Any:
    """A quantitative x or y channel over the field of the same name; its scale needs not begin at 0."""
    field = "x" if axis is alt.X else "y"
    if "domain" not in scale:
        scale.setdefault("zero", False)
    return axis(field=field, type="quantitative", title=title, scale=alt.Scale(**scale))


def drawn_as(field: str, channel: Any) -> Any:
    """A channel that takes a field's values as they are, in pixels."""
    return channel(field=field, type="quantitative", scale=None, legend=None)


def steps(title: str) -> alt.X:
    """The x channel of what is counted: optimizer steps, epochs."""
    channel = quantity(alt.X, title, nice=False)
    channel.axis = alt.Axis(tickMinStep=1, format=",~r")
    return channel


def tip(field: str, title: str | None = None, format: str | None = None) -> alt.Tooltip:
    """One line of a tooltip."""
    if format is None:
        return alt.Tooltip(field=field, type="nominal", title=title or field)
    return alt.Tooltip(field=field, type="quantitative", title=title or field, format=format)


def finish(
    layers: Sequence[alt.Chart],
    setting: Setting,
    title: str,
    rows: list[Row],
    *,
    note: str | None = None,
    height: int = HEIGHT,
) -> Spec:
    """The specification with title, the setting and machine as subtitle, its look and its data."""
    subtitle = textwrap.wrap(" · ".join([setting.words, *setting.devices]), SUBTITLE_CHARS) or [""]
    if note:
        subtitle.append(note)
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
        .configure_axis(labelFontSize=11.5, titleFontSize=12, titleFontWeight="normal", gridOpacity=0.5, tickSize=4)
        .configure_axisX(grid=False, tickCount=6)
        .configure_legend(labelFontSize=12.5, symbolOpacity=1)
        .configure_view(stroke=None)
    )
    spec = chart.to_dict()
    spec["description"] = f"{title}. {' '.join(subtitle)}"
    spec["datasets"] = {DATA: rows}
    return spec
