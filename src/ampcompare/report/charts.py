"""The charts, one function and one Vega-Lite specification each, made with Altair.

A specification stands alone: its data is in `datasets.data`, its subtitle names the setting and the machine. Each
takes one flat table, so that the same specification becomes a W&B custom chart by naming another data source.
Altair checks the specification; the rows are put in after that, because checking them too takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import altair as alt

from ampcompare.report.chart_parts import DATA, HEIGHT, Parts, Spec, drawn_as, finish, quantity, steps, tip
from ampcompare.report.palette import styles
from ampcompare.report.series import Row, curves, lay_out, scale_curves
from ampcompare.report.statistics import Group
from ampcompare.report.verdict import Analysis
from ampcompare.report.words import number, ratio

BAR_HEIGHT = 46
BAR_ROOM = 1.45  # of the longest bar's length, for the figure beside it on a phone
CROSS_SIZE, CROSS_STEP = 60, 110  # square pixels
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def train_loss(analysis: Analysis) -> Spec:
    """Training loss (mean over the log interval) by optimizer step."""
    rows = curves(analysis.groups, "global_step", "train/loss")
    return _curves(analysis, "Training loss", rows, steps("optimizer step"), quantity(alt.Y, "training loss"), ".4g")


def train_accuracy(analysis: Analysis) -> Spec:
    """Training accuracy (mean over the log interval, augmented images) by optimizer step, in percent."""
    rows = curves(analysis.groups, "global_step", "train/accuracy", y_factor=100)
    y = quantity(alt.Y, "training accuracy, %")
    return _curves(analysis, "Training accuracy", rows, steps("optimizer step"), y, ".2f")


def eval_accuracy(analysis: Analysis) -> Spec:
    """Accuracy on the test split by epoch, in percent."""
    rows = curves(analysis.groups, "epoch", "eval/accuracy", y_factor=100)
    y = quantity(alt.Y, "eval accuracy, %")
    return _curves(analysis, "Eval accuracy by epoch", rows, steps("epoch"), y, ".2f", markers=True)


def throughput_curve(analysis: Analysis) -> Spec:
    """Images per second of training by optimizer step."""
    rows = curves(analysis.groups, "global_step", "throughput/images_per_second")
    y = quantity(alt.Y, "images/s", zero=True)
    return _curves(analysis, "Throughput during training", rows, steps("optimizer step"), y, ",.4~r")


def throughput_bars(analysis: Analysis) -> Spec:
    """Median images per second by backend, each run as a mark on its bar."""
    rows = _bar_rows(analysis)
    looks = styles(row["backend"] for row in rows)
    highest = max((row["x"] for row in rows), default=1.0)
    x = quantity(alt.X, "images/s", domain=[0, highest * BAR_ROOM], nice=False)
    order = [style.label for style in looks]
    y = alt.Y(field="backend", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=140))
    parts = Parts(rows, looks, x, y)
    tooltip = [tip("backend"), tip("run", "over"), tip("x", "images/s", ",.4~r")]
    colour = alt.Color(field="backend", type="nominal", scale=parts.scale("colour"), legend=None)
    bars = parts.of("bar").mark_bar(cornerRadiusEnd=3, height={"band": 0.62})
    layers = [bars.encode(x=x, y=y, color=colour, tooltip=tooltip)]
    if parts.has("run"):
        runs = parts.of("run").mark_tick(thickness=2, color="#111", opacity=0.75, height={"band": 0.34})
        layers.append(runs.encode(x=x, y=y, tooltip=tooltip))
    texts = parts.of("bar").mark_text(align="left", dx=8, fontSize=12, fontWeight=600)
    layers.append(texts.encode(x=x, y=y, text=alt.Text(field="text", type="nominal")))
    title = "Throughput, median after warm-up"
    note = "ticks: single runs" if parts.has("run") else None
    return finish(layers, analysis.setting, title, rows, note=note, height=max(HEIGHT, BAR_HEIGHT * len(looks)))


def scale_factor(analysis: Analysis) -> Spec:
    """Loss scale by optimizer step on a log2 axis; a cross marks each row in which steps were skipped."""
    rows = scale_curves(analysis.groups)
    looks = styles(row["backend"] for row in rows)
    covered = lay_out(rows, [style.label for style in looks], log2=True)
    parts = Parts(rows, looks, steps("optimizer step"), _log2_axis(rows))
    layers = [*parts.lines(covered, "step-after"), parts.hover(",~r", ("line", "run"))]
    for row in rows:
        if row["kind"] == "skip":
            row["size"] = CROSS_SIZE + CROSS_STEP * covered[row["backend"]]
    if parts.has("skip"):
        crosses = parts.of("skip").mark_point(shape="cross", angle=45, filled=True, opacity=1)
        layers.append(
            crosses.encode(
                x=parts.x,
                y=parts.y,
                color=parts.colour(),
                opacity=parts.dimmed(1.0),
                size=drawn_as("size", alt.Size),
                tooltip=[
                    tip("backend"),
                    tip("run"),
                    tip("x", "optimizer step", ","),
                    tip("new", "skipped since last row", ","),
                    tip("skipped", "skipped so far", ","),
                ],
            )
        )
    note = "✕ marks skipped steps" if parts.has("skip") else "no step was skipped"
    if parts.has("run"):
        note += "; thick lines: one run of each backend"
    return finish(layers, analysis.setting, "Loss scale factor", rows, note=note)


CHARTS: dict[str, Callable[[Analysis], Spec]] = {
    "eval-accuracy": eval_accuracy,
    "throughput-bars": throughput_bars,
    "train-loss": train_loss,
    "train-accuracy": train_accuracy,
    "scale-factor": scale_factor,
    "throughput": throughput_curve,
}


def all_charts(analysis: Analysis) -> dict[str, Spec]:
    """Every chart by name. A chart for which nothing was recorded has an empty dataset."""
    return {name: make(analysis) for name, make in CHARTS.items()}


def has_data(spec: Spec) -> bool:
    """Whether there is anything to draw."""
    return bool(spec["datasets"][DATA])


def missing_labels(spec: Spec, groups: Sequence[Group]) -> list[str]:
    """Backends without a row in the chart."""
    drawn = {row["backend"] for row in spec["datasets"][DATA]}
    return [g.label for g in groups if g.label not in drawn]


def _curves(
    analysis: Analysis, title: str, rows: list[Row], x: alt.X, y: alt.Y, y_format: str, *, markers: bool = False
) -> Spec:
    looks = styles(row["backend"] for row in rows)
    parts = Parts(rows, looks, x, y, filled_legend=markers)
    layers = parts.lines(lay_out(rows, [style.label for style in looks]))
    if markers:
        shape = alt.Shape(field="backend", type="nominal", scale=parts.scale("marker"), legend=parts.legend())
        points = parts.of("line").mark_point(filled=True, size=55, opacity=1)
        layers.append(points.encode(x=x, y=y, color=parts.colour(), shape=shape, opacity=parts.dimmed(1.0)))
    layers.append(parts.hover(y_format))
    note = "thin lines: single runs" if parts.has("run") else None
    return finish(layers, analysis.setting, title, rows, note=note)


def _bar_rows(analysis: Analysis) -> list[Row]:
    rows: list[Row] = []
    for group in analysis.groups:
        speed = group.figure("images_per_second")
        if speed is None:
            continue
        comparison = analysis.comparison(group.label)
        speedup = comparison.speedup if comparison else None
        text = number(speed.median) + (f" · {ratio(speedup)}" if speedup is not None else "")
        over = f"median of {speed.n} runs" if speed.n > 1 else "one run"
        rows.append({"backend": group.label, "kind": "bar", "run": over, "x": speed.median, "text": text})
        if speed.n > 1:
            rows += [
                {"backend": group.label, "kind": "run", "run": str(f.run.name), "x": f.images_per_second}
                for f in group.counted
                if f.images_per_second is not None
            ]
    return rows


def _log2_axis(rows: Sequence[Row]) -> alt.Y:
    exponents = [math.log2(row["y"]) for row in rows if row["y"]] or [0.0]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    high = max(high, low + 1)
    stride = max(1, math.ceil((high - low) / 9))
    ticks = [k for k in range(low, high + 1) if k % stride == 0]
    labels = [f"datum.value == {2.0**k!r} ? '{_power_of_two(k)}'" for k in ticks]
    axis = alt.Axis(values=[2.0**k for k in ticks], labelExpr=" : ".join([*labels, "''"]))
    # Room for a line's width above the highest scale and below the lowest.
    domain = [2.0 ** (low - 0.4), 2.0 ** (high + 0.4)]
    y = quantity(alt.Y, "loss scale", type="log", base=2, domain=domain, nice=False)
    y.axis = axis
    return y


def _power_of_two(exponent: int) -> str:
    sign = "⁻" if exponent < 0 else ""
    return "2" + sign + "".join(SUPERSCRIPTS[int(digit)] for digit in str(abs(exponent)))
