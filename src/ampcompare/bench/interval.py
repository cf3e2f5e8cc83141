"""How many times as fast, over rounds, and how well that is known, whatever the spread. Free of torch."""

import math
import statistics
from collections.abc import Sequence

FEWEST = 12  # rounds: fewer have no interval

Ratio = tuple[float, float | None, float | None]


def ratio_of(own: Sequence[float], base: Sequence[float], level: float = 0.95) -> Ratio:
    """The median of the ratios round by round, as far as both have rounds, and its interval.

    >>> ratio_of([3.0, 4.0, 2.0], [2.0, 2.0, 2.0])
    (1.5, None, None)
    """
    ratios = [one / two for one, two in zip(own, base, strict=False)]
    return statistics.median(ratios), *(interval(ratios, level) or (None, None))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The narrowest interval between order statistics that holds the true median at that level, None of fewer
    than twelve values or where even their range does not reach it.

    Source: the sign test; David and Nagaraja, Order Statistics, 7.1.

    >>> interval(range(1, 13))
    (3, 10)
    """
    ordered, n = sorted(values), len(values)
    outside = 0.0
    found = None
    for k in range(n // 2):
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - level:
            break
        found = ordered[k], ordered[n - 1 - k]
    return found if n >= FEWEST else None
