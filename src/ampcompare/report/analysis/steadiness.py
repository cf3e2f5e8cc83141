"""Whether runs were steady: stalls and drift within one, one unlike its fellows, what its median leaves out.

All figures are of the log intervals after warm-up, the first of them left out, so that a machine that gets
going slowly is not accused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.figures import RunFigures, steady_rows
from ampcompare.report.analysis.groups import Group

FEWEST_INTERVALS = 10  # after the warm start, for stalls to be told
WARM_START = 0.1  # of the intervals, where stalls are looked for
WARM_TREND = 0.2  # where a trend is: what settles, settles by then
# A stall takes 1.25 times the median or more, and five times the spread of the others more: of noise with a
# standard deviation of 15 % none in 2,000 runs of 200 intervals lost 2 % (tests/report/analysis).
STALL_FACTOR, STALL_SPREADS, STALL_SHARE = 1.25, 5.0, 0.02
BLOCKS = 10  # whose medians a trend is of: neighbours are alike, so intervals are no independent witnesses
TREND_CONCORDANCE = 31  # of Kendall's 45: two-sided p = 0.005
TREND_CHANGE = 0.03
SKIPPED_SHARE = 0.01
MEDIAN_GAP = 0.03
ODD_SHARE, ODD_SPREADS = 0.15, 5.0


@dataclass(frozen=True)
class Steadiness:
    """`stalled`: the share of the run's time that it lost in stalls; `change`: its throughput at the end as a
    ratio to that at the beginning, where there is a trend; None where nothing of it is shown.
    """

    stalled: float | None = None
    change: float | None = None


def steadiness(figures: RunFigures) -> Steadiness:
    """What the log intervals of one run show."""
    speeds = figures.run.numbers(metrics.THROUGHPUT)[steady_rows(figures.run)]
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    return Steadiness(stalled_share(speeds), trend(speeds))


def stalled_share(speeds: np.ndarray) -> float | None:
    """The share of the time of intervals of these throughputs that was lost in stalls, None if below 2 %.

    An interval is stalled if it took 1.25 times the median or more, and is off it by five robust standard
    deviations of the logarithms (1.4826 times the median absolute deviation).
    """
    times = 1 / speeds[math.ceil(WARM_START * len(speeds)) :]
    if len(times) < FEWEST_INTERVALS:
        return None
    usual = float(np.median(times))
    off = np.log(times / usual)
    spread = 1.4826 * float(np.median(np.abs(off)))
    stalls = times[off >= max(math.log(STALL_FACTOR), STALL_SPREADS * spread)]
    share = float(np.sum(stalls - usual) / np.sum(times))
    return share if share >= STALL_SHARE else None


def trend(speeds: np.ndarray) -> float | None:
    """Throughput at the end as a ratio to that at the beginning, None where no trend of 3 % is shown.

    Of ten blocks' medians: Kendall's rank test for a trend (Mann 1945), Theil and Sen's slope for its size.
    """
    rest = speeds[math.ceil(WARM_TREND * len(speeds)) :]
    if len(rest) < 2 * BLOCKS:
        return None
    levels = np.log([float(np.median(block)) for block in np.array_split(rest, BLOCKS)])
    first, second = np.triu_indices(BLOCKS, 1)
    rises = levels[second] - levels[first]
    change = float(np.median(rises / (second - first))) * (BLOCKS - 1)
    if abs(int(np.sign(rises).sum())) < TREND_CONCORDANCE or abs(change) < math.log1p(TREND_CHANGE):
        return None
    return math.exp(change)


def skipped_share(figures: RunFigures) -> float | None:
    """The share of its steps that a run skipped, None where it is not known."""
    if figures.skipped_steps is None or not figures.steps:
        return None
    return min(1.0, figures.skipped_steps / figures.steps)


def median_gap(group: Group, base: Group) -> tuple[float, float] | None:
    """The ratio of the two groups' throughputs, of medians, and that of their whole training seconds a step,
    where these differ by more than 3 %: by what the medians leave out. None where they do not, or one is not
    known.
    """
    ours, theirs = (_speeds(side.counted) for side in (group, base))
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
        if f.images_per_second and f.steps and f.train_seconds and f.train_seconds > 0
    ]


def odd_ones(group: Group) -> list[tuple[RunFigures, float]]:
    """Runs whose throughput is unlike that of all others of the group, as ratios to the others' median: off
    by 15 % and by five times the range of the others. Of three runs or more.
    """
    speeds = [(f, f.images_per_second) for f in group.counted if f.images_per_second]
    found = []
    for number, (figures, speed) in enumerate(speeds):
        others = [math.log(s) for i, (_, s) in enumerate(speeds) if i != number]
        if len(others) < 2:
            continue
        off = math.log(speed) - median(others)
        if abs(off) > max(-math.log1p(-ODD_SHARE), ODD_SPREADS * (max(others) - min(others))):
            found.append((figures, math.exp(off)))
    return found
