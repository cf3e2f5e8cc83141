"""Plan sample sizes: the power of a number of seeds, and the seeds that would decide a comparison.

All plans are for paired differences that vary normally. A plan asks for a power of 90%: nine of ten
comparisons of this size would be decided.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from scipy.optimize import brentq
from scipy.special import gammaincinv, nctdtr, stdtrit

from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS

PLANNED_POWER = 0.9
MAX_SEEDS = 1000  # larger numbers of seeds are not reported
MAX_DEVIATIONS = 30.0  # in standard errors; from 36 on SciPy's non-central t is sometimes NaN
# Level of the range of a standard deviation: 10% of the true values lie below it and 10% above it.
DEVIATION_CONFIDENCE = 0.8
MAX_FORECAST_RATIO = 10  # a range that is wider than this factor tells nothing


def power_to_clear(distances: Iterable[float], deviation: float, n: int, level: float) -> float:
    """Return the probability that an interval clears all limits, at least.

    Args:
        distances: Distances of the true value from the limits that the interval must not reach.
        deviation: Standard deviation of one pair.
        n: Number of pairs.
        level: Confidence level of the two-sided interval.

    Returns:
        The power. With several limits it is a lower bound (the misses are added).
    """
    df = n - 1.0
    limit = stdtrit(df, (1 + level) / 2)
    error = deviation / math.sqrt(n)
    misses = sum(
        float(nctdtr(df, min(distance / error, MAX_DEVIATIONS), limit)) if distance > 0 else 1.0
        for distance in distances
    )
    return max(0.0, 1.0 - misses)


def seeds_to_clear(distances: Sequence[float], deviation: float, level: float) -> int | None:
    """Return the smallest number of pairs whose interval clears all limits in 9 of 10 comparisons.

    Args:
        distances: Distances of the true value from the limits.
        deviation: Standard deviation of one pair.
        level: Confidence level of the two-sided interval.

    Returns:
        The number of pairs, at least 3. None if 1,000 are not enough.

    >>> seeds_to_clear([0.5, 0.5], 0.2, 0.95), seeds_to_clear([0.5], 0.2, 0.975)
    (5, 5)
    """
    if min(distances) <= 0 or not deviation > 0 or not all(map(math.isfinite, (*distances, deviation))):
        return None
    sizes = range(MIN_RUNS, MAX_SEEDS + 1)
    # The power increases with the number of pairs.
    index = bisect_left(
        sizes, True, key=lambda n: power_to_clear(distances, deviation, n, level) >= PLANNED_POWER
    )
    return sizes[index] if index < len(sizes) else None


def largest_deviation(margin: float, n: int, level: float, sides: int = 1) -> float:
    """Return the largest standard deviation of a pair at which `n` pairs keep the margin in 9 of 10 cases.

    The true difference is taken as 0.

    It is 0 if no standard deviation that matters is small enough.

    Args:
        n: Number of pairs, at least 2.
        level: Confidence level of the two-sided interval.
        sides: 1 for "not lower by more than the margin", 2 for "the same within the margin".

    >>> f"{largest_deviation(0.5, 5, 0.975):.2f}"
    '0.21'
    """

    def missing_power(deviation: float) -> float:
        return power_to_clear([margin] * sides, deviation, n, level) - PLANNED_POWER

    smallest = margin / MAX_DEVIATIONS / 100
    if missing_power(smallest) < 0:
        return 0.0
    return float(brentq(missing_power, smallest, margin * math.sqrt(n) * 10))


def deviation_range(deviation: float, df: float) -> tuple[float, float]:
    """Return the 80% confidence interval of a standard deviation that was estimated with `df`."""
    tail = (1 - DEVIATION_CONFIDENCE) / 2
    low, high = (
        deviation * math.sqrt(df / (2 * float(gammaincinv(df / 2, probability))))
        for probability in (1 - tail, tail)
    )
    return low, high


def pool_deviations(estimates: Iterable[Estimate]) -> tuple[float, float] | None:
    """Return the pooled standard deviation of one pair and its degrees of freedom; None if it is unknown.

    It is for planning only. Intervals never use it: over unequal arms they would not keep their level.
    """
    known = [estimate for estimate in estimates if estimate.spread > 0 and estimate.spread_df > 0]
    df = sum(estimate.spread_df for estimate in known)
    if not df:
        return None
    squares = sum(estimate.spread_df * estimate.spread**2 for estimate in known)
    return math.sqrt(squares / df), df


def forecast_further_seeds(
    estimate: Estimate,
    alternatives: Iterable[Sequence[float]],
    deviation: float,
    df: float,
) -> tuple[int, int] | None:
    """Return a range of how many further seeds would decide a comparison.

    The estimate is taken for the true value. The range comes from the 80% confidence interval of the standard
    deviation.

    Args:
        estimate: The estimate so far.
        alternatives: The ways to decide it, each with its distances from the limits that the interval must
            clear (on the scale of the computation). The fastest way counts.
        deviation: Standard deviation of one pair.
        df: Degrees of freedom of `deviation`.

    Returns:
        The lowest and the highest number, each at least 1. None if the range is wider than a factor of 10 or
        if no number up to 1,000 is enough.
    """
    possible = [distances for distances in alternatives if min(distances) > 0]
    further = []
    for bound in deviation_range(deviation, df):
        sizes = [seeds_to_clear(distances, bound, estimate.level) for distances in possible]
        enough = [size for size in sizes if size is not None]
        if not enough:
            return None
        further.append(max(1, min(enough) - estimate.n))
    low, high = further
    return (low, high) if high <= MAX_FORECAST_RATIO * low else None
