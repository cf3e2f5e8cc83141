"""Charts that set the groups side by side: a bar each, the 95 % interval over runs, single runs as ticks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import altair as alt

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.parts import (
    HEIGHT,
    Parts,
    Spec,
    drawn_styles,
    finish,
    over,
    quantity,
    tip,
)
from ampcompare.report.charts.series import Datum
from ampcompare.report.runs.figures import TIMED
from ampcompare.report.runs.groups import QUANTILES, Group
from ampcompare.report.runs.quantities import Quantities
from ampcompare.report.statistics.samples import Estimate
from ampcompare.report.words import change, duration, mib, number, of_time, plural, some
from ampcompare.report.words import ratio as times

BAR_HEIGHT, LOW_BAR_HEIGHT, MANY_BARS = 46, 18, 12
BAR_ROOM = 1.6  # of the longest bar's length, for the figure beside it on a phone
WIDEST_INTERVAL = 1.3  # of the longest bar; two seeds can give one that is many times as long


@dataclass(frozen=True)
class Bars:
    """What a chart of bars shows: `figure` is an attribute of RunFigures and its mean over seeds, written by
    `show`; `compared` is its ratio of Comparison, written by `relative` beside it."""

    figure: str
    unit: str
    show: Callable[[float], str]
    relative: Callable[[float], str]
    compared: str


SPEED = Bars("images_per_second", "images/s", number, times, "speed")
MEMORY = Bars("peak_mib", "MiB", mib, change, "memory")
ENERGY = Bars("joules_per_image", "J per image", number, change, "energy")
TIME = Bars("seconds_to_target", "seconds of training", duration, of_time, "time")


def _in_units(bars: Bars, quantities: Quantities) -> Bars:
    """The bars in the units in which the runs' figures are."""
    if bars is MEMORY:
        return replace(bars, unit=quantities.memory_axis, show=quantities.show_memory)
    return replace(bars, unit={SPEED: quantities.speed, ENERGY: quantities.energy}.get(bars, bars.unit))


def throughput_bars(analysis: Analysis) -> Spec:
    """Throughput by group: the mean over seeds of each run's median after warm-up."""
    what = "the runs' medians" if analysis.quantities.speed_from else "median after warm-up"
    return _bars(analysis, f"Throughput, {what}", SPEED)


def peak_memory(analysis: Analysis) -> Spec:
    """Peak memory by group."""
    title = "Peak memory of the process" if analysis.setting.is_cpu else "Peak memory on the device"
    title = "Peak memory" if analysis.quantities.memory_from else title
    return _bars(analysis, title, MEMORY)


def energy(analysis: Analysis) -> Spec:
    """Energy of one training image by group, where the GPU counts it."""
    return _bars(analysis, f"Energy per training {analysis.quantities.item}", ENERGY)


def time_to_target(analysis: Analysis) -> Spec:
    """Training time until the metric first reaches the target, of the runs that reach it."""
    metric, target = analysis.metric, analysis.target
    words = "a common value" if target is None else f"{target:g}{' %' if metric.is_fraction else ''}"
    return _bars(analysis, f"Training time to {words} {metric.name}", TIME)


def step_time(analysis: Analysis) -> Spec:
    """How step times are spread over the log intervals after warm-up: 5, 25, 50, 75 and 95 % quantiles."""
    rows: list[Datum] = []
    for group in analysis.groups:
        if found := group.step_times:
            quantiles = {name: float(f"{found[name]:.5g}") for name in QUANTILES}
            basis = f"{found['intervals']:,} intervals of {group.n} runs"
            rows.append(
                {"backend": group.label, "kind": "box", "run": basis, "x": quantiles["p50"], **quantiles}
            )
    parts = _sides(analysis, rows, quantity(alt.X, "step time, ms (mean of each log interval)"))
    tips = [tip("backend"), tip("run", "over")]
    tips += [tip(name, f"{q} %", ",.4~r") for name, q in QUANTILES.items()]
    shared = {"y": parts.y, "opacity": parts.dimmed(1.0), "tooltip": tips}
    whisker = parts.of("box").mark_rule(strokeWidth=2, clip=True)
    box = parts.of("box").mark_bar(height={"band": 0.5}, clip=True)
    tick = parts.of("box").mark_tick(thickness=3, height={"band": 0.5}, clip=True)
    layers = [
        whisker.encode(x=over(parts.x, "p5"), x2=alt.X2(field="p95"), color=parts.colour(), **shared),
        box.encode(x=over(parts.x, "p25"), x2=alt.X2(field="p75"), color=parts.colour(), **shared),
        tick.encode(x=parts.x, **shared).add_params(parts.pick),
    ]
    note = "; ".join(["box: middle half, line: 5 to 95 %, mark: median", *_sharing(analysis)])
    return finish(layers, analysis.setting, "Step time after warm-up", rows, note=note, height=_height(rows))


def _rows(bars: Bars, analysis: Analysis) -> list[Datum]:
    compared = {c.group.label: getattr(c, bars.compared) for c in analysis.comparisons}
    rows: list[Datum] = []
    for group in analysis.groups:
        if estimate := group.means[bars.figure]:
            factor = compared.get(group.label)
            beside = "" if factor is None else bars.relative(factor.value)
            rows += _bar(group, estimate, bars.figure, {"text": bars.show(estimate.value), "beside": beside})
    _cut(rows)
    return rows


def _bars(analysis: Analysis, title: str, bars: Bars) -> Spec:
    in_units = _in_units(bars, analysis.quantities)
    rows, unit = _rows(in_units, analysis), in_units.unit
    parts = _sides(analysis, rows, quantity(alt.X, unit, domain=[0, _longest(rows) * BAR_ROOM], nice=False))
    x, y = parts.x, parts.y
    tips = [tip("backend"), tip("run", "over"), tip("x", unit, ",.4~r")]
    drawn = parts.of("bar").mark_bar(cornerRadiusEnd=3, height={"band": 0.62})
    drawn = drawn.encode(x=x, y=y, color=parts.colour(), opacity=parts.dimmed(1.0, 0.12), tooltip=tips)
    layers = [drawn.add_params(parts.pick)]
    if parts.has("run"):
        runs = parts.of("run").mark_tick(thickness=2, height={"band": 0.34})
        layers.append(runs.encode(x=x, y=y, opacity=parts.dimmed(0.7), tooltip=tips))
    notes = []
    if parts.has_intervals:
        notes.append(f"line: 95 % {analysis.interval_kind} interval over runs; ticks: single runs")
        whisker = parts.spans("bar").mark_rule(strokeWidth=2.5)
        span = [*tips, tip("low", "95 % interval from", ",.4~r"), tip("high", "to", ",.4~r")]
        ends = {"x": over(x, "low"), "x2": alt.X2(field="high"), "y": y}
        layers.append(whisker.encode(**ends, opacity=parts.dimmed(0.9), tooltip=span))
    # What compares stands below the figure: in one line the longest would not fit beside the longest bar.
    is_roomy = not _is_crowded(rows)
    figures = parts.of("bar").mark_text(
        align="left", dx=8, dy=-7 if is_roomy else 0, fontSize=12, fontWeight=600
    )
    below = parts.of("bar").mark_text(align="left", dx=8, dy=8, fontSize=11)
    for field, texts in {"text": figures, "beside": below}.items():
        if field == "text" or is_roomy:
            text = alt.Text(field=field, type="nominal")
            layers.append(texts.encode(x=over(x, "end"), y=y, text=text, opacity=parts.dimmed(1.0)))
    if bars is TIME:
        few = [g for g in analysis.groups if 0 < g.reached.runs < g.reached.of]
        notes += [f"{g.label}: {g.reached.words}" for g in few]
    if bars.figure in TIMED:
        notes += _sharing(analysis)
    note = "; ".join(notes) or None
    return finish(layers, analysis.setting, title, rows, note=note, height=_height(rows))


def _sharing(analysis: Analysis) -> list[str]:
    """What is to be said of groups whose times are not their own."""
    labels = [group.label for group in analysis.groups if group.shares_machine]
    return [f"not to be compared, as runs shared the machine: {some(labels)}"] if labels else []


def _cut(rows: list[Datum]) -> None:
    """Cut intervals that are far longer than the bars, and say in each bar's row where its drawing ends."""
    longest = max((row["x"] for row in rows), default=1.0)
    for row in rows:
        if "low" in row:
            row["low"], row["high"] = max(0.0, row["low"]), min(row["high"], longest * WIDEST_INTERVAL)
        if row["kind"] == "bar":
            row["end"] = max(row["x"], row.get("high", 0.0))


def _longest(rows: list[Datum]) -> float:
    return max((row["end"] for row in rows if "end" in row), default=1.0) or 1.0


def _bar(group: Group, estimate: Estimate, figure: str, words: Datum) -> list[Datum]:
    basis = f"mean of {plural(estimate.n, 'run')}"
    bar: Datum = {"backend": group.label, "kind": "bar", "run": basis, "x": estimate.value, **words}
    if estimate.low is not None and estimate.high is not None:
        bar |= {"low": estimate.low, "high": estimate.high}
    rows = [bar]
    if group.n > 1:
        rows += [
            {"backend": group.label, "kind": "run", "run": str(f.run.name), "x": v}
            for f in group.counted
            if (v := getattr(f, figure)) is not None
        ]
    return rows


def _sides(analysis: Analysis, rows: list[Datum], x: alt.X) -> Parts:
    """Groups one below the other, their names beside them; a click on a bar picks it."""
    styles = drawn_styles(analysis, rows)
    order = [style.label for style in styles]
    y = alt.Y(field="backend", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=140))
    return Parts(rows, styles, x, y, legend="none")


def _is_crowded(rows: list[Datum]) -> bool:
    return len({row["backend"] for row in rows}) > MANY_BARS


def _height(rows: list[Datum]) -> int:
    count = len({row["backend"] for row in rows})
    return max(HEIGHT, (LOW_BAR_HEIGHT if _is_crowded(rows) else BAR_HEIGHT) * count)
