"""How strictly to test when one looks several times: the level per look that keeps 5 % over all looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from ampcompare.report.statistics.student import t_quantile

# Of 4e7 simulated series, so that the usual plan costs nothing: (looks, two-sided, alpha).
KNOWN: dict[tuple[tuple[int, ...], bool, float], float] = {
    ((3, 6, 10), True, 0.05): 0.0194,
    ((3, 6, 10), False, 0.05): 0.0204,
}
MOST = 100  # looks; who looks more often has no plan
SERIES, DRAWN = 500_000, 8_000_000  # series at most, and looks of series: so much takes under a second
SEED = 223


def level_of(looks: Sequence[int], two_sided: bool = True, alpha: float = 0.05) -> float:
    """The constant level of a paired t test at each of `looks` (seeds so far) that keeps `alpha` over all.

    One side is that of an equivalence test, or of a bound. Found by simulation with a fixed seed, so that it
    is the same wherever it is asked; the error that it keeps is known to 0.1 points. Pocock (1977), whose
    levels are those of a normal statistic, for Student's t with few seeds. Raises ValueError unless `looks`
    are whole numbers of at least two seeds, and at most MOST of them.

    >>> level_of([3, 6, 10]), level_of([3, 6, 10], two_sided=False), level_of([5])
    (0.0194, 0.0204, 0.05)
    """
    seeds = tuple(sorted(set(looks)))
    if not seeds or any(not isinstance(n, int) or n < 2 for n in seeds):
        raise ValueError(f"looks {list(looks)}: expected numbers of seeds, whole and at least 2")
    if len(seeds) > MOST:
        raise ValueError(f"{len(seeds)} looks: expected {MOST} at most")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha}: expected a number between 0 and 1")
    if len(seeds) == 1:
        return alpha
    return KNOWN.get((seeds, two_sided, alpha)) or _simulated(seeds, two_sided, alpha)


@cache
def _simulated(looks: tuple[int, ...], two_sided: bool, alpha: float) -> float:
    series = statistics_at(looks, min(SERIES, DRAWN // len(looks)), np.random.default_rng(SEED))
    low, high = alpha / len(looks), alpha  # by Bonferroni, and that of one look
    while high - low > 1e-4 * high:
        level = (low + high) / 2
        low, high = (low, level) if error_of(series, looks, level, two_sided) > alpha else (level, high)
    return float(f"{low:.3g}")


def error_of(series: np.ndarray, looks: Sequence[int], level: float, two_sided: bool) -> float:
    """The share of `series` (looks, series) in which a test at `level` rejects at one look or more."""
    above, below = np.zeros((2, series.shape[1]), dtype=bool)
    for seeds, t in zip(looks, series, strict=True):
        limit = t_quantile(1 - (level / 2 if two_sided else level), seeds - 1)
        above |= t > limit
        below |= t < -limit
    return float((above | below).mean()) if two_sided else float(above.mean() + below.mean()) / 2


def statistics_at(looks: Sequence[int], series: int, generator: np.random.Generator) -> np.ndarray:
    """Student's t of the growing sample at each look, (looks, series), where the truth is no difference.

    Between two looks a sample grows by so many normal values; their sum and their squares about their own
    mean are all that t needs, and are drawn as such.
    """
    found = np.empty((len(looks), series))
    total, squares, before = np.zeros(series), np.zeros(series), 0
    for row, seeds in enumerate(looks):
        more = seeds - before
        added = generator.standard_normal(series) * math.sqrt(more)
        if more > 1:
            squares += generator.chisquare(more - 1, series)
        if before:
            squares += (added / more - total / before) ** 2 * (before * more / seeds)
        total += added
        found[row] = total / np.sqrt(squares * seeds / (seeds - 1))
        before = seeds
    return found
