"""Charts of what happens during training: lines over epochs, steps and time.

Each is a function of the groups (label and records), their styles, the compared metric and the quantities;
None where nothing was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampcompare import metrics
from ampcompare.report.charts.draw import (
    LINE_WIDTH,
    NUMBER,
    Spec,
    by_backend,
    if_picked,
    quantity,
    specification,
    tip,
)
from ampcompare.report.charts.rows import Line, lines, points_of, skips, steps_of_scale, time_lines
from ampcompare.report.palette import Style
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.quantities import Quantities
from ampcompare.report.words import capital

Groups, Styles = Sequence[Group], Mapping[str, Style]
MARKED = 12  # points on a line up to which each is marked
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TIMES = ((3 * 3600, "hours", 3600), (600, "minutes", 60), (0, "seconds", 1))  # from how many seconds on


def quality(groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities) -> Spec | None:
    """The compared metric (accuracy on the test split) by epoch."""
    found = lines(groups, metrics.EPOCH, metric.key, metric.factor)
    return line_chart(
        capital(metric.name), f"{_unit(metric)}by epoch", found, styles, x="epoch", y=metric.axis
    )


def quality_by_time(
    groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities
) -> Spec | None:
    """The compared metric by wall-clock time since the start of the run, evaluation included."""
    found = time_lines(groups, metric.key, metric.factor)
    longest = max((float(line.x[-1]) for line in found if len(line.x)), default=0.0)
    unit, seconds = next((unit, seconds) for least, unit, seconds in TIMES if longest >= least)
    found = [replace(line, x=line.x / seconds) for line in found]
    title, subtitle = f"{capital(metric.name)} over time", f"{_unit(metric)}by {unit} of wall-clock time"
    return line_chart(title, subtitle, found, styles, x=unit, y=metric.axis)


def training_loss(
    groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities
) -> Spec | None:
    """Training loss (mean over the log interval) by optimizer step."""
    found = lines(groups, metrics.STEP, metrics.LOSS)
    return line_chart("Training loss", "by step", found, styles, x=quantities.step, y="training loss")


def throughput(groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities) -> Spec | None:
    """Throughput of training by optimizer step, from 0."""
    found = lines(groups, metrics.STEP, metrics.THROUGHPUT)
    subtitle = f"{quantities.speed}, by step"
    return line_chart("Throughput", subtitle, found, styles, x=quantities.step, y=quantities.speed, least=0.0)


def lost_updates(
    groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities
) -> Spec | None:
    """Share of half weights whose update is lost to rounding, by optimizer step."""
    found = lines(groups, metrics.STEP, metrics.LOST_UPDATES, 100)
    subtitle = "% of weights, by step"
    return line_chart(
        "Updates lost to rounding", subtitle, found, styles, x=quantities.step, y="lost, %", least=0.0
    )


def underflow(groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities) -> Spec | None:
    """Share of non-zero gradient elements that fp16 flushes to zero: at the loss scale, and at 1 (dashed)."""
    sides = {"with loss scaling": metrics.UNDERFLOW, "without": metrics.UNDERFLOW_UNSCALED}
    found = [(side, line) for side, key in sides.items() for line in lines(groups, metrics.STEP, key, 100)]
    subtitle = "% of elements; dashed: without scaling"
    title, y = "Gradients lost to underflow", "flushed to zero, %"
    spec = line_chart(title, subtitle, [line for _, line in found], styles, x=quantities.step, y=y, least=0.0)
    if spec is None:
        return None
    for row, (side, _) in zip(spec["data"]["values"], found, strict=True):
        row["side"] = side
    scale = {"domain": list(sides), "range": [[1, 0], [4, 3]]}
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    line["encoding"]["strokeDash"] = {"field": "side", "type": "nominal", "scale": scale, "legend": None}
    spec["encoding"]["detail"] = {"field": "side", "type": "nominal"}
    spec["layer"][-1]["encoding"]["tooltip"].insert(1, tip("side", "gradients"))
    return spec


def loss_scale(groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities) -> Spec | None:
    """Loss scale by optimizer step on a log2 axis; a cross marks each row in which steps were skipped."""
    pairs = [(group, scale) for group in groups if (scale := steps_of_scale(group))]
    pairs = [(group, scale) for group, scale in pairs if {*scale["y"]} != {1}]  # 1 is no scaling
    if not pairs:
        return None
    crosses = [found for group, scale in pairs if (found := skips(group, scale))]
    labels = [group.label for group, _ in pairs]
    colour = by_backend(labels, styles, "colour")
    x = quantity("x", nice=False)
    y = _log2_axis([value for _, scale in pairs for value in scale["y"]])
    line = {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": LINE_WIDTH}}
    dash = by_backend(labels, styles, "dash")
    line["encoding"] = {"y": y, "strokeDash": dash, "opacity": if_picked(1, 0.1)}
    layers: list[Spec] = [line]
    if crosses:
        mark = {"type": "point", "shape": "cross", "angle": 45, "filled": True, "size": 55, "opacity": 1}
        tips = [
            tip("backend"),
            tip("x", quantities.step, format=","),
            tip("new", "steps skipped", format=","),
        ]
        encoding = {
            "y": y,
            "tooltip": [*tips, tip("total", "in all", format=",")],
            "opacity": if_picked(1, 0.1),
        }
        flat = [{"flatten": ["x", "y", "new", "total"]}]
        layers.append({"data": {"values": crosses}, "transform": flat, "mark": mark, "encoding": encoding})
    layers.append(
        _hover(y, [tip("backend"), tip("x", quantities.step, format=","), tip("y", "scale", format=",")])
    )
    subtitle = f"by step, one run each; {'✕ skipped steps' if crosses else 'no step was skipped'}"
    encoding = {"x": x, "color": colour}
    for layer in layers:  # each of the two sets of rows has arrays of its own
        layer.setdefault("transform", [{"flatten": ["x", "y"]}])
    return specification("Loss scale", subtitle, layers, [scale for _, scale in pairs], encoding=encoding)


def line_chart(
    title: str,
    subtitle: str,
    found: Sequence[Line],
    styles: Styles,
    *,
    x: str,
    y: str,
    least: float | None = None,
) -> Spec | None:
    """The mean over each group's runs, on a band from lowest to highest; `least` is where the axis begins."""
    drawn = [line for line in found if len(line.x)]
    if not drawn:
        return None
    with_range = any(line.n > 1 for line in drawn)
    limit = points_of(drawn)
    rows = [line.drawn(limit, with_range=with_range) for line in drawn]
    fewest = min(len(row["x"]) for row in rows)
    fields = ["x", "y", *(["low", "high"] if with_range else [])]
    labels = list(dict.fromkeys(line.label for line in drawn))
    y_axis = quantity("y", **({} if least is None else {"domainMin": least}))
    layers: list[Spec] = []
    if with_range:
        ends = {"y": y_axis | {"field": "low"}, "y2": {"field": "high"}, "fillOpacity": if_picked(0.14, 0.03)}
        layers.append({"mark": {"type": "area", "strokeOpacity": 0}, "encoding": ends})
        if fewest == 1:  # a band of one point would be nothing
            rule = {"y": ends["y"], "y2": ends["y2"], "opacity": if_picked(0.4, 0.05)}
            layers.append({"mark": {"type": "rule", "strokeWidth": LINE_WIDTH}, "encoding": rule})
    shown = {"y": y_axis, "opacity": if_picked(1, 0.1)}
    dashed = shown | {"strokeDash": by_backend(labels, styles, "dash")}
    layers.append({"mark": {"type": "line", "strokeWidth": LINE_WIDTH}, "encoding": dashed})
    if fewest == 1 or max(len(row["x"]) for row in rows) <= MARKED:
        layers.append({"mark": {"type": "point", "filled": True, "size": 28, "opacity": 1}, "encoding": shown})
    tips = [tip("backend"), tip("of", "line"), tip("x", x, format=NUMBER), tip("y", y, format=NUMBER)]
    if with_range:
        tips += [tip("low", "lowest run", format=NUMBER), tip("high", "highest run", format=NUMBER)]
    layers.append(_hover(y_axis, tips))
    encoding = {"x": quantity("x", nice=False), "color": by_backend(labels, styles, "colour")}
    flat = [{"flatten": fields}]
    return specification(title, subtitle, layers, rows, transform=flat, encoding=encoding)


def _hover(y: Spec, tips: list[Spec]) -> Spec:
    """The point nearest to the pointer, with its figures."""
    select = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    shown = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    encoding = {"y": y, "opacity": shown, "tooltip": tips}
    mark = {"type": "point", "filled": True, "size": 60}
    return {"params": [{"name": "hover", "select": select}], "mark": mark, "encoding": encoding}


def _unit(metric: ComparedMetric) -> str:
    unit = metric.axis.removeprefix(metric.name).strip(", ")
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
