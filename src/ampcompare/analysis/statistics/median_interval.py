"""Speed-up with a confidence interval: over the rounds of one start, or over starts. Does not import torch.

The rounds of one start repeat the same processes. Their interval is distribution-free, and true of these
processes only: another start of the same training can differ by more. Over starts, the process is the unit.
"""

import math
import statistics
from collections.abc import Sequence

from ampcompare.analysis.statistics.estimate import quantile

MIN_ROUNDS = 12  # Fewer rounds have no interval.
MIN_STARTS = 3  # From so many starts on, the process is the unit of the interval.
MIN_DIFFERENCE = 0.02  # As a fraction. Processes of one training may differ by less, which fewer starts hide.
UNEVEN = 0.01  # An A/A control this far from 1, as a whole interval, calls the machine uneven.

Ratio = tuple[float, float | None, float | None]


def ratio_of(rates: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> Ratio:
    """Return the median of the ratios within rounds, and its interval.

    Args:
        rates: Rates of one training, one per round.
        baseline: Rates of the baseline in the same rounds. The longer sequence is cut.
        level: Confidence level of the interval.

    Returns:
        Median, lower end, upper end; both ends are None where `interval` has none.

    >>> ratio_of([3.0, 4.0, 2.0], [2.0, 2.0, 2.0])
    (1.5, None, None)
    """
    ratios = [rate / base for rate, base in zip(rates, baseline, strict=False)]
    return statistics.median(ratios), *(interval(ratios, level) or (None, None))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the narrowest interval between order statistics that covers the true median at that level.

    Source: the sign test; David and Nagaraja, Order Statistics, 7.1.

    Returns:
        Lower and upper end; None for fewer than 12 values, or where even their range does not reach the
        level.

    >>> interval(range(1, 13))
    (3, 10)
    """
    ordered = sorted(values)
    n = len(values)
    error_probability = 0.0
    ends = None
    for k in range(n // 2):
        error_probability += 2 * math.comb(n, k) / 2**n
        if error_probability > 1 - level:
            break
        ends = ordered[k], ordered[n - 1 - k]
    return ends if n >= MIN_ROUNDS else None


def ratio_of_starts(ratios: Sequence[float], level: float = 0.95) -> Ratio:
    """Return the geometric mean of the ratios of several starts, and Student's interval on their logarithms.

    Args:
        ratios: The speed-up in each start, at least one.
        level: Confidence level of the interval.

    Returns:
        Geometric mean, lower end, upper end; both ends are None for fewer than three starts.

    >>> ratio_of_starts([2.0, 8.0])
    (4.0, None, None)
    """
    logs = [math.log(ratio) for ratio in ratios]
    center = math.fsum(logs) / len(logs)
    if len(logs) < MIN_STARTS:
        return math.exp(center), None, None
    half = quantile((1 + level) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(center), math.exp(center - half), math.exp(center + half)


def is_even(low: float, high: float) -> bool:
    """Return whether the interval of an A/A control comes within 1% of 1.

    >>> is_even(1.0025, 1.0032), is_even(0.9, 1.2), is_even(1.02, 1.03)
    (True, True, False)
    """
    return low <= 1 + UNEVEN and high >= 1 - UNEVEN


def smallest_difference(low: float, high: float) -> float:
    """Return how far the interval of an A/A control reaches from 1, as a fraction.

    A speed-up closer to 1 than this may be the difference between two identical trainings.

    >>> round(smallest_difference(1.0025, 1.0032), 4), round(smallest_difference(0.8, 1.1), 4)
    (0.0032, 0.25)
    """
    return max(high, 1 / low) - 1


def side_of(low: float, high: float, resolution: float, null: float = 1.0) -> int:
    """Return 1 if the interval of a ratio lies above what two identical trainings differ by, -1 if below.

    Args:
        low: Lower end of the interval.
        high: Upper end of it.
        resolution: What two identical trainings differ by, as a fraction (`resolved_difference`).
        null: The ratio that the interval is compared with.

    Returns:
        1, -1, or 0: no difference is shown.

    >>> side_of(1.03, 1.1, 0.02), side_of(1.01, 1.1, 0.02), side_of(0.9, 0.97, 0.02)
    (1, 0, -1)
    """
    return int(low > null * (1 + resolution)) - int(high < null / (1 + resolution))


def resolved_difference(low: float | None, high: float | None, starts: int) -> float:
    """Return how far from 1, as a fraction, a speed-up has to be so that it is no chance of the processes.

    Args:
        low: Lower end of the interval of the A/A control; None without an interval.
        high: Upper end of it.
        starts: Number of starts. From three on, the intervals of the speed-ups include what differs between
            processes; 0 is returned.

    >>> [resolved_difference(low, 1.01, starts) for low, starts in ((0.999, 1), (0.8, 1), (0.8, 3))]
    [0.02, 0.25, 0.0]
    """
    if starts >= MIN_STARTS:
        return 0.0
    if low is None or high is None or low <= 0:
        return MIN_DIFFERENCE
    return max(MIN_DIFFERENCE, smallest_difference(low, high))
