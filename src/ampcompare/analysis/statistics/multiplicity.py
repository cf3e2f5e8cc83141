"""Confidence levels for several comparisons, sample size planning, and intervals of proportions."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from scipy.special import betaincinv, gammaincinv, nctdtr, ndtri, stdtrit

from ampcompare.analysis.statistics.estimate import ALPHA, Estimate

PLANNED_POWER = 0.9  # power of the plan for further seeds
# Plans use this upper confidence bound of the standard deviation. With the estimate itself, half of the plans
# would be too small.
DEVIATION_CONFIDENCE = 0.8
MAX_SEEDS = 1000  # larger numbers of seeds are not reported
MAX_DEVIATIONS = 30.0  # in standard errors; from 36 on SciPy's non-central t is sometimes NaN


def joint_level(groups: int, looks: int = 1) -> float:
    """Return the level of each interval at which all intervals hold together in 95% (Bonferroni).

    Args:
        groups: Number of groups that are compared with the baseline.
        looks: Number of planned interim looks.

    >>> f"{joint_level(3):.4f}"
    '0.9833'
    """
    return 1 - ALPHA / max(1, groups * looks)


def count_further_seeds(
    estimate: Estimate, *, null: float | None = None, margin: float | None = None
) -> int | None:
    """Return how many further seeds per side are needed to exclude `null` or to stay within `margin`.

    The plan has a power of 90% and uses the estimate's own level. It takes the estimate for the true value
    and the upper 80% confidence bound for the standard deviation (Browne 1995), with the non-central t
    distribution.

    Args:
        estimate: The estimate so far.
        null: The value to exclude.
        margin: The equivalence margin around no difference, used instead of `null`.

    Returns:
        The number of seeds. None if the standard deviation is unknown, or if no number up to 1,000 is enough.
    """
    spread, spread_df = estimate.spread, estimate.spread_df
    if not spread:
        return None
    distances = [abs(estimate.center - estimate.on_scale(null or 0.0))]
    if margin is not None:
        distances = [estimate.center + margin, margin - estimate.center]
    if min(distances) <= 0 or not all(map(math.isfinite, distances)):
        return None
    sizes = estimate.sizes or (estimate.n, estimate.n)
    current = estimate.n if estimate.is_paired else 2 / (1 / sizes[0] + 1 / sizes[1])
    deviation = spread * math.sqrt(
        spread_df / (2 * float(gammaincinv(spread_df / 2, 1 - DEVIATION_CONFIDENCE)))
    )

    def is_enough(more: int) -> bool:
        """Return whether so many further seeds reach the planned power."""
        seeds = current + more
        df = estimate.df * (seeds - 1) / max(current - 1, 1)
        limit, error = stdtrit(df, (1 + estimate.level) / 2), deviation / math.sqrt(seeds)
        return sum(nctdtr(df, min(d / error, MAX_DEVIATIONS), limit) for d in distances) <= 1 - PLANNED_POWER

    # power increases with the number of seeds
    more = bisect_left(range(1, MAX_SEEDS + 1), True, key=is_enough) + 1
    return more if more <= MAX_SEEDS else None


@dataclass(frozen=True)
class Proportion:
    """A proportion `k` of `n` with its exact 95% interval (Clopper and Pearson 1934), as fractions 0..1."""

    k: int
    n: int
    low: float
    high: float


def estimate_proportion(k: int, n: int) -> Proportion:
    """Return the proportion `k` of `n` with its exact 95% interval.

    >>> found = estimate_proportion(3, 5)
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '0.147 to 0.947'
    """
    low = float(betaincinv(k, n - k + 1, ALPHA / 2)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - ALPHA / 2)) if k < n else 1.0
    return Proportion(k, n, low, high)


def wilson_interval(fraction: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval (1927) of a proportion at 95%.

    Args:
        fraction: The observed proportion, 0..1.
        n: Number of trials.

    >>> "{:.4f} to {:.4f}".format(*wilson_interval(1.0, 200))
    '0.9812 to 1.0000'
    """
    z = float(ndtri(1 - ALPHA / 2))
    center = (fraction + z * z / (2 * n)) / (1 + z * z / n)
    half_width = z / (1 + z * z / n) * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    return max(0.0, center - half_width), min(1.0, center + half_width)
