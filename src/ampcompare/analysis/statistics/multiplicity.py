"""What holds of all groups of a question together: the level, how many more seeds would do, failures."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from scipy.special import betaincinv, gammaincinv, nctdtr, ndtri, stdtrit

from ampcompare.analysis.statistics.estimate import ALPHA, Estimate

POWER = 0.9  # at which further seeds are planned
BOUND = 0.8  # of the deviation that is planned with: with the plain one half of the plans fall short
MOST = 1000  # seeds beyond which no number is named
FARTHEST = 30.0  # deviations; from 36 on SciPy's non-central t is NaN here and there


def joint_level(groups: int, looks: int = 1) -> float:
    """The level of each interval so that all of one question hold together in 95 % (Bonferroni).

    >>> f"{joint_level(3):.4f}"
    '0.9833'
    """
    return 1 - ALPHA / max(1, groups * looks)


def more_seeds(found: Estimate, *, null: float | None = None, margin: float | None = None) -> int | None:
    """How many further seeds of both sides would show, in 90 % of cases, that the truth is not `null`, or
    lies within `margin` of no difference, by an interval at the estimate's own level.

    Planned with the estimate for the truth and the upper 80 % bound of its deviation (Browne 1995), by the
    non-central t. None where nothing is known of the deviation, or where no number up to 1,000 would do.
    """
    spread, spread_df = found.spread, found.spread_df
    if not spread:
        return None
    distances = [abs(found.center - found.on_scale(null or 0.0))]
    if margin is not None:
        distances = [found.center + margin, margin - found.center]
    if min(distances) <= 0 or not all(map(math.isfinite, distances)):
        return None
    sizes = found.sizes or (found.n, found.n)
    now = found.n if found.paired else 2 / (1 / sizes[0] + 1 / sizes[1])
    worst = spread * math.sqrt(spread_df / (2 * float(gammaincinv(spread_df / 2, 1 - BOUND))))

    def is_enough(more: int) -> bool:
        seeds = now + more
        df = found.df * (seeds - 1) / max(now - 1, 1)
        limit, error = stdtrit(df, (1 + found.level) / 2), worst / math.sqrt(seeds)
        return sum(nctdtr(df, min(d / error, FARTHEST), limit) for d in distances) <= 1 - POWER

    more = bisect_left(range(1, MOST + 1), True, key=is_enough) + 1  # power rises with every seed
    return more if more <= MOST else None


@dataclass(frozen=True)
class Share:
    """`k` of `n` with the exact interval (Clopper and Pearson 1934) at 95 %, fractions 0..1."""

    k: int
    n: int
    low: float
    high: float


def share_of(k: int, n: int) -> Share:
    """How many of the runs failed, and how many might.

    >>> found = share_of(3, 5)
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '0.147 to 0.947'
    """
    low = float(betaincinv(k, n - k + 1, ALPHA / 2)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - ALPHA / 2)) if k < n else 1.0
    return Share(k, n, low, high)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval (1927) at 95% of a share, 0..1, that was found in `n` trials.

    >>> "{:.4f} to {:.4f}".format(*wilson(1.0, 200))
    '0.9812 to 1.0000'
    """
    z = float(ndtri(1 - ALPHA / 2))
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)
