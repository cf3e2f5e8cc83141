"""What the median of a run's throughput does not show: training seconds beside it, a run unlike its fellows,
steps that were skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group

SKIPPED_SHARE = 0.01
MEDIAN_GAP = 0.03
SHORTEST = 1e-9  # seconds of training; less is no measurement
ODD_SHARE, ODD_SPREADS = 0.15, 5.0


def skipped_share(figures: RunFigures) -> float | None:
    """The share of its steps that a run skipped, None where it is not known."""
    if figures.skipped_steps is None or figures.steps is None or figures.steps <= 0:
        return None
    return min(1.0, figures.skipped_steps / figures.steps)


def median_gap(group: Group, base: Group) -> tuple[float, float] | None:
    """The ratio of the two groups' throughputs, of medians, and that of their whole training seconds a step,
    where these differ by more than 3 %: by what the medians leave out. None where they do not, or one is not
    known.
    """
    if group.shares_machine or base.shares_machine:
        return None
    ours, theirs = (_speeds(side.timed) for side in (group, base))
    if not ours or not theirs:
        return None
    by_median, by_seconds = (
        math.exp(fmean(math.log(pair[i]) for pair in ours) - fmean(math.log(pair[i]) for pair in theirs))
        for i in (0, 1)
    )
    return (by_median, by_seconds) if abs(math.log(by_median / by_seconds)) > math.log1p(MEDIAN_GAP) else None


def _speeds(runs: Sequence[RunFigures]) -> list[tuple[float, float]]:
    """Median throughput and steps a second of all training, of the runs that have both."""
    return [
        (f.images_per_second, f.steps / f.train_seconds)
        for f in runs
        if f.images_per_second and f.steps and f.steps > 0 and f.train_seconds and f.train_seconds >= SHORTEST
    ]


def odd_ones(group: Group) -> list[tuple[RunFigures, float]]:
    """Runs whose throughput is unlike that of all others of the group, as ratios to the others' median: off
    by 15 % and by five times the range of the others. Of three runs or more that had their machine to
    themselves.
    """
    if group.shares_machine:
        return []
    speeds = [(f, f.images_per_second) for f in group.timed if f.images_per_second]
    found = []
    for number, (figures, speed) in enumerate(speeds):
        others = [math.log(s) for i, (_, s) in enumerate(speeds) if i != number]
        if len(others) < 2:
            continue
        off = math.log(speed) - median(others)
        if abs(off) > max(-math.log1p(-ODD_SHARE), ODD_SPREADS * (max(others) - min(others))):
            found.append((figures, math.exp(off)))
    return found
