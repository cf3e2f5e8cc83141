"""Median speed-up over rounds, with a distribution-free confidence interval. Does not import torch."""

import math
import statistics
from collections.abc import Sequence

MIN_ROUNDS = 12  # Fewer rounds have no interval.
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
    ordered, n = sorted(values), len(values)
    error_probability = 0.0
    ends = None
    for k in range(n // 2):
        error_probability += 2 * math.comb(n, k) / 2**n
        if error_probability > 1 - level:
            break
        ends = ordered[k], ordered[n - 1 - k]
    return ends if n >= MIN_ROUNDS else None


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
