"""How many more seeds would decide a claim, from those there are."""

from __future__ import annotations

import math
from collections.abc import Callable

from ampcompare.report.statistics.estimate import Estimate, Side
from ampcompare.report.statistics.student import chi_squared_quantile, t_power, t_quantile

# Of pilots that decide nothing, at least .85 are to decide with so many seeds more. At 0.8 .81 did where the
# truth lies at 60 % of the margin (tests/report/simulated/test_more_seeds.py).
POWER = 0.9
BOUND = 0.8  # confidence of the upper bound of the standard deviation that is planned with
MOST = 1000  # seeds beyond which no number is named


def more_seeds(
    found: Estimate,
    *,
    null: float | None = None,
    margin: float | None = None,
    level: float = 0.05,
    side: Side = "two",
    power: float = POWER,
) -> int | None:
    """How many further seeds (of both sides) show the claim with `power`; 0 where it is shown already.

    The claim is that the truth is not `null` (`side` "above" or "below": that it is on that side of it), or,
    where `margin` is given, that it is equivalent to no difference within it; each at `level`. None from one
    seed, and where no number up to 1,000 would do: the estimate lies outside the margin, or on the wrong
    side.

    It is planned with the estimate for the truth and the upper 80 % bound of the standard deviation (Browne
    1995): that of a small pilot is as often too small as too large, and a plan made with it falls short in
    half of the cases.
    """
    error, df, spread, spread_df = found.error, found.df, found.spread, found.spread_df
    if error is None or df is None or spread is None or spread_df is None:
        return None
    ends: tuple[float, ...]  # distances to be told from 0
    if margin is not None and null is None:
        p = max(found.p_of(-margin, "above") or 0.0, found.p_of(margin, "below") or 0.0)
        ends, level_of_end = (found.value + margin, margin - found.value), level
    elif null is not None and margin is None:
        p = found.p_of(null, side) or 0.0
        distance = found.center - found.on_scale(null)
        ends = ({"two": abs(distance), "above": distance, "below": -distance}[side],)
        level_of_end = level / 2 if side == "two" else level
    else:
        raise ValueError("more_seeds: give either `null` or `margin`")
    if p < level:
        return 0
    if error == 0 or not all(0 < end < math.inf for end in ends):
        return None
    worst = math.sqrt(spread_df / chi_squared_quantile(1 - BOUND, spread_df))
    sizes = found.sizes or (found.n, found.n)
    now = 2 / (1 / sizes[0] + 1 / sizes[1])
    # All further seeds are pairs; what those without a partner add to the error fades with the square.
    unpaired = (error**2 * now - spread**2) * now

    def is_enough(more: int) -> bool:
        seeds = now + more
        degrees = df * (seeds - 1) / (now - 1)
        planned = worst * math.sqrt(max(0.0, spread**2 + unpaired / seeds) / seeds)
        limit = t_quantile(1 - level_of_end, degrees)
        missed = sum(1 - t_power(end / planned, degrees, limit) if planned else 0.0 for end in ends)
        return missed <= 1 - power

    return _first(is_enough)


def _first(is_enough: Callable[[int], bool]) -> int | None:
    """The first number from 1 to MOST that is enough; more are never less."""
    if not is_enough(MOST):
        return None
    low, high = 0, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
