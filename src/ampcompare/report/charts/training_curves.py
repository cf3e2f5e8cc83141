"""Charts of what happens during training, over epochs, steps and time; None where nothing was recorded."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ampcompare import metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.report.charts.series import Line, lines, points_of, scale_lines, time_lines
from ampcompare.report.charts.vega import (
    LINE_WIDTH,
    NUMBER,
    Spec,
    by_backend,
    chart,
    if_picked,
    quantity,
    tip,
)
from ampcompare.report.palette import styles_of

SIDES = {"with loss scaling": metrics.UNDERFLOW, "without": metrics.UNDERFLOW_UNSCALED}  # solid and dashed
MARKED = 12  # points on a line up to which each is marked
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TIMES = ((3 * 3600, "hours", 3600), (600, "minutes", 60), (0, "seconds", 1))  # from how many seconds on


def quality(of: Analysis) -> Spec | None:
    """The compared metric (accuracy on the test split) by epoch."""
    found = lines(of.groups, metrics.EPOCH, of.metric.key, of.metric.factor)
    return line_chart(of, of.metric.title, f"{_unit(of)}by epoch", found, ("epoch", of.metric.axis))


def quality_by_time(of: Analysis) -> Spec | None:
    """The compared metric by wall-clock time since the start of the run, evaluation included."""
    found = time_lines(of.groups, of.metric.key, of.metric.factor)
    longest = max((float(line.x[-1]) for line in found if len(line.x)), default=0.0)
    unit, seconds = next((unit, seconds) for least, unit, seconds in TIMES if longest >= least)
    found = [replace(line, x=line.x / seconds) for line in found]
    title, subtitle = f"{of.metric.title} over time", f"{_unit(of)}by {unit} of wall-clock time"
    return line_chart(of, title, subtitle, found, (unit, of.metric.axis))


def training_loss(of: Analysis) -> Spec | None:
    """Training loss (mean over the log interval) by optimizer step."""
    found = lines(of.groups, metrics.STEP, metrics.LOSS)
    return line_chart(of, "Training loss", "by step", found, (of.quantities.step, "training loss"))


def throughput(of: Analysis) -> Spec | None:
    """Throughput of training by optimizer step, from 0."""
    found, speed = lines(of.groups, metrics.STEP, metrics.THROUGHPUT), of.quantities.speed
    return line_chart(of, "Throughput", f"{speed}, by step", found, (of.quantities.step, speed), least=0.0)


def lost_updates(of: Analysis) -> Spec | None:
    """Share of half weights whose update is lost to rounding, by optimizer step."""
    found, title = lines(of.groups, metrics.STEP, metrics.LOST_UPDATES, 100), "Updates lost to rounding"
    return line_chart(of, title, "% of weights, by step", found, (of.quantities.step, "lost, %"), least=0.0)


def underflow(of: Analysis) -> Spec | None:
    """Draw the share of gradient elements that fp16 cannot hold: at the loss scale, and at 1 (dashed)."""
    pairs = [(side, line) for side, key in SIDES.items() for line in lines(of.groups, metrics.STEP, key, 100)]
    found = [replace(line, side=side) for side, line in pairs]
    title, subtitle = "Gradients below fp16's range", "% of elements; dashed: without scaling"
    return line_chart(of, title, subtitle, found, (of.quantities.step, "zero in fp16, %"), least=0.0)


def loss_scale(of: Analysis) -> Spec | None:
    """Loss scale by optimizer step on a log2 axis; a cross marks each row in which steps were skipped."""
    scales, crosses = scale_lines(of.groups)
    if not scales:
        return None
    labels = [scale["backend"] for scale in scales]
    y, step = _log2_axis([value for scale in scales for value in scale["y"]]), of.quantities.step
    flat, tips = [{"flatten": ["x", "y"]}], [tip("backend"), tip("x", step, format=",")]
    shown = {"y": y, "opacity": if_picked(1, 0.1)}
    dashed = shown | {"strokeDash": by_backend(labels, styles_of(of), "dash")}
    mark = {"type": "line", "interpolate": "step-after", "strokeWidth": LINE_WIDTH}
    if any(len(scale["x"]) == 1 for scale in scales):  # a line of one row would be nothing
        mark["point"] = True
    layers: list[Spec] = [{"transform": flat, "mark": mark, "encoding": dashed}]
    if crosses:
        mark = {"type": "point", "shape": "cross", "angle": 45, "filled": True, "size": 55, "opacity": 1}
        skipped = [tip("new", "steps skipped", format=","), tip("total", "in all", format=",")]
        layer = {"data": {"values": crosses}, "transform": [{"flatten": ["x", "y", "new", "total"]}]}
        layers.append(layer | {"mark": mark, "encoding": shown | {"tooltip": [*tips, *skipped]}})
    layers.append({"transform": flat} | _hover(y, [*tips, tip("y", "scale", format=",")]))
    subtitle = f"by step, one run each; {'✕ skipped steps' if crosses else 'no step was skipped'}"
    encoding = {"x": quantity("x", nice=False), "color": by_backend(labels, styles_of(of), "colour")}
    return chart("Loss scale", subtitle, layers, scales, encoding=encoding)


def line_chart(
    of: Analysis,
    title: str,
    subtitle: str,
    found: Sequence[Line],
    axes: tuple[str, str],
    least: float | None = None,
) -> Spec | None:
    """The mean over each group's runs, on a band from lowest to highest; `axes` are the names of x and y in
    the tooltips, `least` is where the y axis begins.
    """
    drawn = [line for line in found if len(line.x)]
    if not drawn:
        return None
    with_range = any(line.n > 1 for line in drawn)
    limit = points_of(drawn)
    rows = [line.drawn(limit, with_range=with_range) for line in drawn]
    fewest = min(len(row["x"]) for row in rows)
    fields = ["x", "y", *(["low", "high"] if with_range else [])]
    labels = list(dict.fromkeys(line.label for line in drawn))
    begins: Spec = {} if least is None else {"domainMin": least}
    y_axis = quantity("y", **begins)
    layers: list[Spec] = []
    if with_range:
        ends = {"y": y_axis | {"field": "low"}, "y2": {"field": "high"}, "fillOpacity": if_picked(0.14, 0.03)}
        layers.append({"mark": {"type": "area", "strokeOpacity": 0}, "encoding": ends})
        if fewest == 1:  # a band of one point would be nothing
            rule = {"y": ends["y"], "y2": ends["y2"], "opacity": if_picked(0.4, 0.05)}
            layers.append({"mark": {"type": "rule", "strokeWidth": LINE_WIDTH}, "encoding": rule})
    shown = {"y": y_axis, "opacity": if_picked(1, 0.1)}
    side: Spec = {"field": "side", "type": "nominal"}
    scale = {"domain": [*SIDES], "range": [[1, 0], [4, 3]]}
    has_sides = any(line.side for line in drawn)
    dash = side | {"scale": scale, "legend": None} if has_sides else by_backend(labels, styles_of(of), "dash")
    mark: Spec = {"type": "line", "strokeWidth": LINE_WIDTH}
    layers.append({"mark": mark, "encoding": shown | {"strokeDash": dash}})
    if fewest == 1 or max(len(row["x"]) for row in rows) <= MARKED:
        mark = {"type": "point", "filled": True, "size": 28, "opacity": 1}
        layers.append({"mark": mark, "encoding": shown})
    names = dict(zip(fields, (*axes, "lowest run", "highest run"), strict=False))
    tips = [tip(field, name, format=NUMBER) for field, name in names.items()]
    heads = [tip("backend"), *([tip("side", "gradients")] if has_sides else []), tip("of", "line")]
    layers.append(_hover(y_axis, [*heads, *tips]))
    encoding = {"x": quantity("x", nice=False), "color": by_backend(labels, styles_of(of), "colour")}
    encoding |= {"detail": side} if has_sides else {}
    return chart(title, subtitle, layers, rows, transform=[{"flatten": fields}], encoding=encoding)


def _hover(y: Spec, tips: list[Spec]) -> Spec:
    select = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    shown = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    encoding = {"y": y, "opacity": shown, "tooltip": tips}
    mark = {"type": "point", "filled": True, "size": 60}
    return {"params": [{"name": "hover", "select": select}], "mark": mark, "encoding": encoding}


def _unit(of: Analysis) -> str:
    unit = of.metric.axis.removeprefix(of.metric.name).strip(", ")
    return f"{unit}, " if unit else ""


def _log2_axis(scales: Sequence[float]) -> Spec:
    exponents = [math.log2(scale) for scale in scales]
    low, high = math.floor(min(exponents)), max(math.ceil(max(exponents)), math.floor(min(exponents)) + 1)
    stride = max(1, math.ceil((high - low) / 6))
    ticks = range(low, high + 1, stride)
    labels = " : ".join(f"datum.value == {2.0**k!r} ? '2{str(k).translate(SUPERSCRIPTS)}'" for k in ticks)
    # Room for a line's width above the highest scale and below the lowest.
    domain = [2.0 ** (low - 0.4), 2.0 ** (high + 0.4)]
    axis = {"values": [2.0**k for k in ticks], "labelExpr": f"{labels} : ''"}
    return quantity("y", axis, type="log", base=2, domain=domain, nice=False)
