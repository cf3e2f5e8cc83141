"""How long runs took to reach a value of the metric: one that is given, or that the baseline reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.metric import ComparedMetric


def with_seconds_to(
    figures: Sequence[RunFigures], target: float | None, metric: ComparedMetric
) -> list[RunFigures]:
    """The runs' figures with their `seconds_to_target`; `target` is in the metric's shown unit."""
    if target is None:
        return list(figures)
    value = target / metric.factor
    return [replace(f, seconds_to_target=seconds_to(f, metric.key, value, metric.falls)) for f in figures]


def baseline_target(figures: Sequence[RunFigures], metric: ComparedMetric) -> float | None:
    """The value of the metric, as it is shown, that every finished run of the baseline reaches, rounded to
    the side that is easier; None without one. `figures` are those of the baseline alone, so that no other
    group moves the value by which all are timed.
    """
    best = []
    for f in (f for f in figures if f.outcome is Outcome.FINISHED):
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
