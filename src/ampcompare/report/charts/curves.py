"""Charts of what happens during training: lines over steps, epochs and time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.parts import (
    Parts,
    Spec,
    drawn_as,
    drawn_styles,
    finish,
    quantity,
    steps,
    time_unit,
    tip,
)
from ampcompare.report.charts.series import Datum, curves, lay_out, scale_curves, time_curves
from ampcompare.report.runs.labels import noun
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.words import capital

CROSS_SIZE, CROSS_STEP = 60, 110  # square pixels
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_MARKERS = 30  # on a line; more run into each other
LARGEST_EXPONENT = 1000  # of 2, in float64 with room for the axis


def train_loss(analysis: Analysis) -> Spec:
    """Training loss (mean over the log interval) by optimizer step."""
    rows = curves(analysis.groups, metrics.STEP, metrics.LOSS)
    x, y = steps(analysis.quantities.step), quantity(alt.Y, "training loss")
    return line_chart(analysis, "Training loss", rows, x, y, ".4g")


def eval_accuracy(analysis: Analysis) -> Spec:
    """The compared metric (accuracy on the test split) by epoch."""
    return metric_curve(analysis, analysis.metric)


def metric_curve(analysis: Analysis, metric: ComparedMetric) -> Spec:
    """One metric by epoch."""
    rows = curves(analysis.groups, metrics.EPOCH, metric.key, y_factor=metric.factor)
    title, y = f"{capital(metric.name)} by epoch", quantity(alt.Y, metric.axis)
    return line_chart(analysis, title, rows, steps(metrics.EPOCH), y, ".4~g", markers=True)


def eval_accuracy_time(analysis: Analysis) -> Spec:
    """The compared metric by wall-clock time since the start of the run, evaluation included."""
    metric = analysis.metric
    found = time_curves(analysis.groups, metric.key, y_factor=metric.factor)
    rows = [row for row in found if row["x"] is not None]
    longest = max((row["x"] for row in rows), default=0)
    unit, factor = time_unit(longest)
    for row in rows:
        row["x"] = round(row["x"] / factor, 4)
    x = quantity(alt.X, f"wall-clock time, {unit}", nice=False)
    title = f"{capital(metric.name)} by wall-clock time"
    return line_chart(analysis, title, rows, x, quantity(alt.Y, metric.axis), ".4~g", markers=True)


def throughput_curve(analysis: Analysis) -> Spec:
    """Throughput of training by optimizer step."""
    rows = curves(analysis.groups, metrics.STEP, metrics.THROUGHPUT)
    y = quantity(alt.Y, analysis.quantities.speed, zero=True)
    return line_chart(
        analysis, "Throughput during training", rows, steps(analysis.quantities.step), y, ",.4~r"
    )


def scale_factor(analysis: Analysis) -> Spec:
    """Loss scale by optimizer step on a log2 axis; a cross marks each row in which steps were skipped."""
    rows = scale_curves(analysis.groups)
    drawn = drawn_styles(analysis, rows)
    covered = lay_out(rows, [style.label for style in drawn], log2=True)
    parts = Parts(rows, drawn, steps(analysis.quantities.step), _log2_axis(rows))
    layers = [*parts.lines(covered, "step-after"), *parts.hover(",~r")]
    for row in rows:
        if row["kind"].endswith("skip"):
            row["size"] = CROSS_SIZE + CROSS_STEP * covered[row["backend"]]
    tips = [tip("backend"), tip("run"), tip("x", "optimizer step", ",")]
    tips += [tip("new", "skipped since last row", ","), tip("skipped", "skipped so far", ",")]
    size = drawn_as("size", alt.Size)
    shared = {"x": parts.x, "y": parts.y, "color": parts.colour(), "size": size, "tooltip": tips}
    note = "no step was skipped"
    for kind, opacity in (("skip", parts.dimmed(1.0)), ("run-skip", parts.on_demand(1.0))):
        if parts.has(kind):
            crosses = parts.of(kind).mark_point(shape="cross", angle=45, filled=True, clip=True)
            layers.append(crosses.encode(**shared, opacity=opacity))
            note = "✕ marks skipped steps"
    if parts.has("run"):
        note += f"; one run of each {noun(analysis.keys[0])}"
    return finish(layers, analysis.setting, "Loss scale factor", rows, note=note, params=[parts.show_runs])


def line_note(parts: Parts) -> str | None:
    """What the lines of a chart are, where they stand for several runs."""
    return "line: mean over seeds; band: lowest to highest seed" if parts.has_intervals else None


def line_chart(
    analysis: Analysis,
    title: str,
    rows: list[Datum],
    x: alt.X,
    y: alt.Y,
    y_format: str,
    *,
    markers: bool = False,
    note: str = "",
) -> Spec:
    """A line for each group, and its runs on demand; `note` goes before what the lines are."""
    drawn = drawn_styles(analysis, rows)
    markers = markers and sum(row["kind"] == "line" for row in rows) <= MAX_MARKERS * len(drawn)
    parts = Parts(rows, drawn, x, y, legend="symbols" if markers else "lines")
    layers = parts.lines(lay_out(rows, [style.label for style in drawn]))
    if markers:
        shape = alt.Shape(field="backend", type="nominal", scale=parts.scale("marker"), legend=parts.legend())
        points = parts.of("line").mark_point(filled=True, size=55, opacity=1, clip=True)
        layers.append(points.encode(x=x, y=y, color=parts.colour(), shape=shape, opacity=parts.dimmed(1.0)))
    layers += parts.hover(y_format)
    said = "; ".join(part for part in (note, line_note(parts)) if part)
    return finish(layers, analysis.setting, title, rows, note=said, params=[parts.show_runs])


def _log2_axis(rows: Sequence[Datum]) -> alt.Y:
    exponents = [math.log2(row["y"]) for row in rows if row["y"] and row["y"] > 0] or [0.0]
    low = max(-LARGEST_EXPONENT, math.floor(min(exponents)))  # a record may hold any number
    high = min(LARGEST_EXPONENT, math.ceil(max(exponents)))
    high = max(high, low + 1)
    stride = max(1, math.ceil((high - low) / 9))
    ticks = [k for k in range(low, high + 1) if k % stride == 0]
    labels = [f"datum.value == {2.0**k!r} ? '2{str(k).translate(SUPERSCRIPTS)}'" for k in ticks]
    # Room for a line's width above the highest scale and below the lowest.
    domain = [2.0 ** (low - 0.4), 2.0 ** (high + 0.4)]
    y = quantity(alt.Y, "loss scale", type="log", base=2, domain=domain, nice=False)
    y.axis = alt.Axis(values=[2.0**k for k in ticks], labelExpr=" : ".join([*labels, "''"]))
    return y
