"""Charts that set the groups side by side: a bar each, the 95 % interval over seeds, single runs as ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.figures import RunFigures, steady_rows
from ampcompare.report.analysis.groups import Group, seed_key
from ampcompare.report.analysis.statistics import Estimate, mean, mean_of_seeds, ratio
from ampcompare.report.charts.parts import HEIGHT, Parts, Spec, drawn_styles, finish, over, quantity, tip
from ampcompare.report.charts.series import Datum
from ampcompare.report.words import change, duration, mib, number
from ampcompare.report.words import ratio as times

BAR_HEIGHT, LOW_BAR_HEIGHT, MANY_BARS = 46, 18, 12
BAR_ROOM = 1.6  # of the longest bar's length, for the figure beside it on a phone
WIDEST_INTERVAL = 1.3  # of the longest bar; two seeds can give one that is many times as long
QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}

Value = Callable[[RunFigures], float | None]


def throughput_bars(analysis: Analysis) -> Spec:
    """Images per second by group: the mean over seeds of each run's median after warm-up."""
    title = "Throughput, median after warm-up"
    return _bars(analysis, title, "images/s", attrgetter("images_per_second"), number, times, "speed")


def peak_memory(analysis: Analysis) -> Spec:
    """Peak memory by group."""
    title = "Peak memory of the process" if analysis.setting.is_cpu else "Peak memory on the device"
    return _bars(analysis, title, "MiB", attrgetter("peak_mib"), mib, change, "memory")


def energy(analysis: Analysis) -> Spec:
    """Energy per training image by group, where the GPU counts it."""
    title, value = "Energy per training image", attrgetter("joules_per_image")
    return _bars(analysis, title, "J per image", value, number, change, "energy")


def time_to_target(analysis: Analysis) -> Spec:
    """Training time until the metric first reaches a value that every finished run reaches."""
    metric = analysis.metric
    target = common_target(analysis)
    words = "a common value" if target is None else f"{target:g}{' %' if metric.is_fraction else ''}"
    title = f"Training time to {words} {metric.name}"

    def value(f: RunFigures) -> float | None:
        return None if target is None else seconds_to(f, metric.key, target / metric.factor, metric.falls)

    return _bars(analysis, title, "seconds of training", value, duration, times, None)


def common_target(analysis: Analysis) -> float | None:
    """The value of the metric, as it is shown, that every finished run reaches; None without a run."""
    metric = analysis.metric
    best = []
    for group in analysis.groups:
        for f in () if group.is_unfinished else group.counted:
            values = f.run.values(metric.key) * metric.factor
            values = values[np.isfinite(values)]
            if len(values):
                best.append(float(values.min() if metric.falls else values.max()))
    if not best:
        return None
    worst = max(best) if metric.falls else min(best)
    step = 1.0 if metric.is_fraction and worst >= 2 else 10.0 ** math.floor(math.log10(abs(worst) or 1) - 1)
    rounded = (math.ceil if metric.falls else math.floor)(round(worst / step, 9)) * step
    return float(f"{rounded:.6g}")


def seconds_to(figures: RunFigures, key: str, target: float, falls: bool) -> float | None:
    """Training seconds at the first row whose metric is at the target or better; None if none is."""
    run = figures.run
    values, clock = run.numbers(key), run.numbers(metrics.TRAIN_SECONDS)
    slack = 1e-9 * max(1.0, abs(target))
    there = np.flatnonzero((values <= target + slack) if falls else (values >= target - slack))
    if figures.clock_jumps or not len(there):
        return None
    known = clock[: there[0] + 1]
    known = known[np.isfinite(known)]  # a row without the clock is at the time of the row before
    return float(known[-1]) if len(known) else None


def step_time(analysis: Analysis) -> Spec:
    """How step times are spread over the log intervals after warm-up: 5, 25, 50, 75 and 95 % quantiles."""
    rows: list[Datum] = []
    for group in analysis.groups:
        windows = [f.run.numbers(metrics.STEP_TIME)[steady_rows(f.run)] for f in group.counted]
        values = np.concatenate(windows) if windows else np.empty(0)
        values = values[np.isfinite(values)]
        if len(values):
            quantiles = {name: float(f"{np.percentile(values, q):.5g}") for name, q in QUANTILES.items()}
            head = {"backend": group.label, "run": f"{len(values):,} intervals of {group.n} runs"}
            rows.append({**head, "kind": "box", "x": quantiles["p50"], **quantiles})
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
    note = "box: middle half, line: 5 to 95 %, mark: median"
    return finish(layers, analysis.setting, "Step time after warm-up", rows, note=note, height=_height(rows))


def _bars(
    analysis: Analysis,
    title: str,
    unit: str,
    value: Value,
    show: Callable[[float], str],
    relative: Callable[[float], str],
    compared: str | None,
) -> Spec:
    rows: list[Datum] = []
    for group in analysis.groups:
        estimate = mean(_per_seed(group, value))
        if estimate is not None:
            factor = _relative(analysis, group, value, compared)
            beside = "" if factor is None else f" · {relative(factor)}"
            rows += _bar(group, estimate, value, show(estimate.value) + beside)
    furthest = _cut(rows)
    parts = _sides(analysis, rows, quantity(alt.X, unit, domain=[0, furthest * BAR_ROOM], nice=False))
    x, y = parts.x, parts.y
    tips = [tip("backend"), tip("run", "over"), tip("x", unit, ",.4~r")]
    bars = parts.of("bar").mark_bar(cornerRadiusEnd=3, height={"band": 0.62})
    bars = bars.encode(x=x, y=y, color=parts.colour(), opacity=parts.dimmed(1.0, 0.12), tooltip=tips)
    layers = [bars.add_params(parts.pick)]
    if parts.has("run"):
        runs = parts.of("run").mark_tick(thickness=2, height={"band": 0.34})
        layers.append(runs.encode(x=x, y=y, opacity=parts.dimmed(0.7), tooltip=tips))
    note = None
    if parts.has_intervals:
        note = f"line: 95 % {analysis.interval_kind} interval over seeds; ticks: single runs"
        whisker = parts.spans("bar").mark_rule(strokeWidth=2.5)
        span = [*tips, tip("low", "95 % interval from", ",.4~r"), tip("high", "to", ",.4~r")]
        ends = {"x": over(x, "low"), "x2": alt.X2(field="high"), "y": y}
        layers.append(whisker.encode(**ends, opacity=parts.dimmed(0.9), tooltip=span))
    texts = parts.of("bar").mark_text(align="left", dx=8, fontSize=12, fontWeight=600)
    text = alt.Text(field="text", type="nominal")
    layers.append(texts.encode(x=over(x, "end"), y=y, text=text, opacity=parts.dimmed(1.0)))
    return finish(layers, analysis.setting, title, rows, note=note, height=_height(rows))


def _cut(rows: list[Datum]) -> float:
    """Cut intervals that are far longer than the bars; returns how far the drawing reaches."""
    longest = max((row["x"] for row in rows), default=1.0)
    for row in rows:
        if "low" in row:
            row["low"], row["high"] = max(0.0, row["low"]), min(row["high"], longest * WIDEST_INTERVAL)
        if row["kind"] == "bar":
            row["end"] = max(row["x"], row.get("high", 0.0))
    return max((row["end"] for row in rows if "end" in row), default=1.0) or 1.0


def _bar(group: Group, estimate: Estimate, value: Value, text: str) -> list[Datum]:
    basis = f"mean of {group.n} runs" if estimate.n > 1 else "one seed"
    bar: Datum = {"backend": group.label, "kind": "bar", "run": basis, "x": estimate.value, "text": text}
    if estimate.low is not None and estimate.high is not None:
        bar |= {"low": estimate.low, "high": estimate.high}
    rows = [bar]
    if group.n > 1:
        rows += [
            {"backend": group.label, "kind": "run", "run": str(f.run.name), "x": v}
            for f in group.counted
            if (v := value(f)) is not None
        ]
    return rows


def _relative(analysis: Analysis, group: Group, value: Value, compared: str | None) -> float | None:
    """The ratio to the baseline: that of the verdict, or of a figure that only this chart has."""
    comparison = analysis.comparison(group.label)
    if comparison is None or comparison.baseline is None:
        return None
    if compared is not None:
        estimate = getattr(comparison, compared)
    else:
        usable = comparison.same_device
        estimate = ratio(_per_seed(group, value), _per_seed(comparison.baseline, value)) if usable else None
    return None if estimate is None else estimate.value


def _per_seed(group: Group, value: Value) -> Mapping[Hashable, float]:
    return mean_of_seeds((seed_key(f), v) for f in group.counted if (v := value(f)) is not None)


def _sides(analysis: Analysis, rows: list[Datum], x: alt.X) -> Parts:
    """Groups one below the other, their names beside them; a click on a bar picks it."""
    styles = drawn_styles(analysis, rows)
    order = [style.label for style in styles]
    y = alt.Y(field="backend", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=140))
    return Parts(rows, styles, x, y, legend="none")


def _height(rows: list[Datum]) -> int:
    count = len({row["backend"] for row in rows})
    return max(HEIGHT, (BAR_HEIGHT if count <= MANY_BARS else LOW_BAR_HEIGHT) * count)
