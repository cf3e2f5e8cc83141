"""Charts over epochs, steps and time; each function returns None where the runs have no data."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.report.charts.series import (
    ROW,
    ChartLine,
    common_axis,
    make_lines,
    make_time_lines,
    points_per_line,
    scale_lines,
)
from ampcompare.report.charts.vega import (
    LINE_WIDTH,
    NUMBER,
    PICKED,
    Spec,
    by_backend,
    chart,
    if_picked,
    nominal,
    point,
    quantity,
    tip,
)
from ampcompare.report.palette import styles_of

SIDES = {
    "with loss scaling": metrics.UNDERFLOW,
    "without loss scaling": metrics.UNDERFLOW_UNSCALED,
}  # a solid and a dashed line
# By x axis of the compared metric: its name in the subtitle and in tooltips.
AXES = {metrics.EPOCH: ("epoch", "epoch"), metrics.STEP: ("step", ""), ROW: ("evaluation", "evaluation")}
FROM_ZERO = quantity("y", domainMin=0)
MAX_MARKED = 12  # a line with more points has no marks
MAX_POWERS = 7  # of two that the axis of a loss scale names
TIME_UNITS = ((3 * 3600, "hours", 3600), (600, "minutes", 60), (0, "seconds", 1))  # minimum, unit, size


def quality(analysis: Analysis) -> Spec | None:
    """Draw the compared metric by epoch; by step if a run records no epoch, by row if it records neither."""
    metric = analysis.metric
    x = common_axis(analysis.groups, metric.key)
    lines = make_lines(analysis.groups, x, metric.key, metric.factor)
    word, name = AXES[x]
    axes = (name or analysis.quantities.step, metric.axis)
    return line_chart(analysis, metric.title, f"{_unit(analysis)}by {word}", lines, axes)


def quality_by_time(analysis: Analysis) -> Spec | None:
    """Draw the compared metric by wall-clock time since the start of the run, evaluation included."""
    lines = make_time_lines(analysis.groups, analysis.metric.key, analysis.metric.factor)
    longest = max((float(line.x[-1]) for line in lines if len(line.x)), default=0.0)
    unit, seconds = next((unit, seconds) for minimum, unit, seconds in TIME_UNITS if longest >= minimum)
    lines = [replace(line, x=line.x / seconds) for line in lines]
    return line_chart(
        analysis,
        f"{analysis.metric.title} over time",
        f"{_unit(analysis)}by {unit} of wall-clock time",
        lines,
        (unit, analysis.metric.axis),
    )


def training_loss(analysis: Analysis) -> Spec | None:
    """Draw the training loss (mean over a log interval) by optimizer step."""
    lines = make_lines(analysis.groups, metrics.STEP, metrics.LOSS)
    return line_chart(
        analysis, "Training loss", "by step", lines, (analysis.quantities.step, "training loss")
    )


def throughput(analysis: Analysis) -> Spec | None:
    """Draw the throughput by optimizer step, from 0. Where the runs log a time, draw that time."""
    units = analysis.quantities
    lines = make_lines(analysis.groups, metrics.STEP, metrics.THROUGHPUT)
    title = "Throughput"
    if units.time:
        title = "Time"
        lines = [_as_time(line, units.times_per_second) for line in lines]
    unit = units.shown_speed
    return line_chart(analysis, title, f"{unit}, by step", lines, (units.step, unit), FROM_ZERO)


def _as_time(line: ChartLine, times_per_second: float) -> ChartLine:
    """Return a line of throughputs as one of times: the highest throughput is the lowest time."""

    def inverse(values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.where(values > 0, times_per_second / values, np.nan)

    return replace(line, y=inverse(line.y), low=inverse(line.high), high=inverse(line.low))


def lost_updates(analysis: Analysis) -> Spec | None:
    """Draw the fraction of 16-bit weights with an update that is lost to rounding, by optimizer step."""
    lines = make_lines(analysis.groups, metrics.STEP, metrics.LOST_UPDATES, 100)
    return line_chart(
        analysis,
        "Updates lost to rounding",
        "% of 16-bit weights, by step",
        lines,
        (analysis.quantities.step, "lost, %"),
        FROM_ZERO,
    )


def underflow(analysis: Analysis) -> Spec | None:
    """Draw the fraction of gradient elements that fp16 cannot represent: with loss scale, and without."""
    lines = []
    for side, key in SIDES.items():
        lines_of_side = make_lines(analysis.groups, metrics.STEP, key, 100)
        lines += [replace(line, side=side) for line in lines_of_side]
    return line_chart(
        analysis,
        "Gradients too small for fp16",
        "% of elements; dashed: without loss scaling",
        lines,
        (analysis.quantities.step, "zero in fp16, %"),
        FROM_ZERO,
    )


def loss_scale(analysis: Analysis) -> Spec | None:
    """Draw the loss scale by optimizer step on a log2 axis; crosses mark skipped steps."""
    lines, crosses = scale_lines(analysis.groups)
    if not lines:
        return None
    subtitle = f"by step, one run per line; {'✕ skipped steps' if crosses else 'no step was skipped'}"
    step = analysis.quantities.step
    y_axis = _log2_axis(np.concatenate([line.y for line in lines]))
    spec = line_chart(
        analysis, "Loss scale", subtitle, lines, (step, "scale"), y_axis, interpolate="step-after", number=","
    )
    if spec is not None and crosses:
        skipped = [tip("new", "steps skipped", format=","), tip("total", "skipped so far", format=",")]
        tips = [tip("backend"), tip("x", step, format=","), *skipped]
        layer = {
            "data": {"values": crosses},
            "transform": [{"flatten": ["x", "y", "new", "total"]}],
            "mark": point(55, shape="cross", angle=45),
            "encoding": {"y": y_axis, "opacity": PICKED, "tooltip": tips},
        }
        spec["layer"].insert(-1, layer)
    return spec


def line_chart(
    analysis: Analysis,
    title: str,
    subtitle: str,
    lines: Sequence[ChartLine],
    axes: tuple[str, str],
    y_axis: Spec | None = None,
    *,
    interpolate: str = "linear",
    number: str = NUMBER,
) -> Spec | None:
    """Draw the mean over each group's runs, on a band from the lowest to the highest run.

    Args:
        analysis: Has the style of each group.
        subtitle: Unit and x axis.
        lines: Those without a point are not drawn.
        axes: Names of x and y in tooltips.
        y_axis: None for one that fits the data.
        interpolate: How Vega-Lite draws a line between its points.
        number: The format of numbers in tooltips.

    Returns:
        The specification; None where no line has a point.
    """
    drawn = [line for line in lines if len(line.x)]
    if not drawn:
        return None
    with_range = any(one.n > 1 for one in drawn)
    rows = [one.to_datum(points_per_line(drawn), with_range=with_range) for one in drawn]
    min_points = min(len(row["x"]) for row in rows)
    fields = ["x", "y", *(["low", "high"] if with_range else [])]
    labels = list(dict.fromkeys(one.label for one in drawn))
    y_axis = y_axis or quantity("y")
    layers: list[Spec] = []
    if with_range:
        ends = {"y": y_axis | {"field": "low"}, "y2": {"field": "high"}, "fillOpacity": if_picked(0.14, 0.03)}
        layers.append({"mark": {"type": "area", "strokeOpacity": 0}, "encoding": ends})
        if min_points == 1:  # a band of one point is invisible
            rule = {"y": ends["y"], "y2": ends["y2"], "opacity": if_picked(0.4, 0.05)}
            layers.append({"mark": {"type": "rule", "strokeWidth": LINE_WIDTH}, "encoding": rule})
    shown = {"y": y_axis, "opacity": PICKED}
    dash = by_backend(labels, styles_of(analysis), "dash")
    has_sides = any(one.side for one in drawn)
    if has_sides:
        dash = nominal("side", scale={"domain": [*SIDES], "range": [[1, 0], [4, 3]]}, legend=None)
    line: Spec = {"type": "line", "interpolate": interpolate, "strokeWidth": LINE_WIDTH}
    layers.append({"mark": line, "encoding": shown | {"strokeDash": dash}})
    if min_points == 1 or max(len(row["x"]) for row in rows) <= MAX_MARKED:
        layers.append({"mark": point(28), "encoding": shown})
    names = dict(zip(fields, (*axes, "lowest run", "highest run"), strict=False))
    tips = [tip(field, name, format=number) for field, name in names.items()]
    side_tips = [tip("side", "gradients")] if has_sides else []
    select = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    hovered = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    tooltip = [tip("backend"), *side_tips, tip("of", "line"), *tips]
    layers.append(
        {
            "params": [{"name": "hover", "select": select}],
            "mark": point(60),
            "encoding": {"y": y_axis, "opacity": hovered, "tooltip": tooltip},
        }
    )
    encoding = {"x": quantity("x", nice=False), "color": by_backend(labels, styles_of(analysis), "colour")}
    if has_sides:
        encoding["detail"] = nominal("side")
    return chart(title, subtitle, layers, rows, transform=[{"flatten": fields}], encoding=encoding)


def _unit(analysis: Analysis) -> str:
    unit = analysis.metric.axis.removeprefix(analysis.metric.name).strip(", ")
    return f"{unit}, " if unit else ""


def _log2_axis(scales: np.ndarray) -> Spec:
    low = math.floor(math.log2(scales.min()))
    high = math.ceil(math.log2(scales.max()))
    stride = 1 + (high - low) // MAX_POWERS
    axis = {"values": [2.0**power for power in range(low, high + 1, stride)]}
    return quantity("y", axis, type="log", base=2, nice=False, padding=14)
