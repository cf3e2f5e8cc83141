"""Whether a run was steady by its log intervals: stalls, and drift from its beginning to its end.

The first of the intervals are left out, so that a machine that gets going slowly is not accused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FEWEST_INTERVALS = 10  # after the warm start, for stalls to be told
WARM_START = 0.1  # of the intervals, where stalls are looked for
WARM_TREND = 0.2  # where a trend is: what settles, settles by then
# A stall takes 1.25 times the median or more, and five times the spread of the others more: of noise with a
# standard deviation of 15 % none in 2,000 runs of 200 intervals lost 2 % (tests/report/analysis).
STALL_FACTOR, STALL_SPREADS, STALL_SHARE = 1.25, 5.0, 0.02
BLOCKS = 10  # whose medians a trend is of: neighbours are alike, so intervals are no independent witnesses
TREND_CONCORDANCE = 31  # of Kendall's 45: two-sided p = 0.005
TREND_CHANGE = 0.03


@dataclass(frozen=True)
class Steadiness:
    """`stalled`: the share of the run's time that it lost in stalls; `change`: its throughput at the end as a
    ratio to that at the beginning, where there is a trend; None where nothing of it is shown.
    """

    stalled: float | None = None
    change: float | None = None


def steadiness(speeds: np.ndarray) -> Steadiness:
    """What the throughputs of the log intervals after warm-up show; what is no number above 0 is left out."""
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
