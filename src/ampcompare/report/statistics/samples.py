"""The statistics of a comparison: small pure functions over one figure per seed, each to be checked by hand.

Ratios (speed, memory, energy) are taken of the logarithms, so that 2x and 0.5x are equally far from 1;
differences (accuracy) as they are. Both are paired by seed as far as seeds are in common: same seed, same
first weights and order of images, so what the seeds share drops out. Intervals are Student's t. From one seed
there is none. A figure that is not finite is none, and left out: who lost one is told by who calls.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ampcompare.report.statistics.estimate import (
    CONFIDENCE,
    PARTLY,
    WELCH,
    Equivalence,
    Estimate,
    T,
    equivalence,
)

__all__ = [
    "CONFIDENCE",
    "PARTLY",
    "WELCH",
    "Equivalence",
    "Estimate",
    "PerSeed",
    "T",
    "difference",
    "equivalence",
    "explained",
    "mean",
    "mean_of_seeds",
    "prediction",
    "ratio",
]

PerSeed = Mapping[Hashable, float]
FEWEST_PAIRS = 3  # of two the correlation is 1 or -1 (tests/report/simulated/test_partly_paired.py)
LARGEST = 1e300  # a figure beyond it could not be squared or added up
ROUNDED = 12**-0.5  # the deviation of a rounded figure from the true one, in steps
ROUNDING = 8 * 2.0**-52  # differences that vary by less, relative to their terms, do not vary


def mean_of_seeds(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """One figure per seed; a seed that was run several times counts once, with its mean."""
    found: dict[Hashable, list[float]] = {}
    for seed, value in pairs:
        if abs(value) <= LARGEST:
            found.setdefault(seed, []).append(value)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def mean(
    values: PerSeed, low: float = -math.inf, high: float = math.inf, over: str = "seeds"
) -> Estimate | None:
    """The mean with a t interval; None without a value.

    The interval is cut at `low` and `high`, beyond which the figure cannot be (a throughput below 0), and the
    method says so. `over` names what the values are of: "seeds", or "runs" where the process is the unit.
    """
    if not (numbers := list(_figures(values).values())):
        return None
    spread = _deviation(numbers)
    error = None if spread is None else spread / math.sqrt(len(numbers))
    df = len(numbers) - 1.0
    method = f"t interval over {over}" if error is not None else "one value, no interval"
    found = _interval(
        statistics.fmean(numbers),
        error,
        df if error is not None else None,
        len(numbers),
        method,
        T,
        spread=spread,
        spread_df=df,
        lowest=low,
        highest=high,
    )
    is_cut = found.has_interval and (found.low == low or found.high == high) and found.low != found.high
    return replace(found, method=f"{method}, cut at its bound") if is_cut else found


def prediction(
    values: PerSeed, low: float = -math.inf, high: float = math.inf, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval that holds one more value with `confidence`, cut at `low` and `high`; None from one."""
    found = mean(values, low, high)
    return found and found.prediction(confidence)


def difference(ours: PerSeed, theirs: PerSeed, *, by: str = "seed", step: float = 0.0) -> Estimate | None:
    """The mean of ours minus theirs; None where one side has nothing. `by` names what pairs them, `step` is
    the least amount by which two figures can differ (of an accuracy, one answer of the test set).

    A figure in steps is known to half a step, so its deviation is taken for no less than that of rounding,
    step / sqrt(12): two pairs that differ by the same answer are no proof, though they do not vary.

    All in common: the paired t. None in common, or fewer than FEWEST_PAIRS: Welch's t on all runs. Between:
    all runs, with the correlation of the pairs (Derrick, Toher and White 2017, T_new2, of unequal variances),
    which is the paired t and Welch's in its two ends.
    """
    ours, theirs = _figures(ours), _figures(theirs)
    if not ours or not theirs:
        return None
    common = [key for key in ours if key in theirs]
    sizes = (len(ours), len(theirs))
    if common and (len(common) == len(ours) == len(theirs) or min(sizes) == 1):
        return _paired([ours[key] for key in common], [theirs[key] for key in common], sizes, by, step)
    value = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    told: dict[str, Any] = {"sizes": sizes, "pairs": len(common)}
    if min(sizes) < 2:
        method = f"not paired: no {by} in common; no interval"
        return _interval(value, None, None, min(sizes), method, WELCH, **told)
    if len(common) < FEWEST_PAIRS:
        few = f"only {len(common)}" if common else "none"
        method = f"not paired: {few} of the {by}s in common; Welch's t interval of all runs"
        parts = _two_sides(list(ours.values()), list(theirs.values()), None, 0, step)
        return _interval(value, n=min(sizes), method=method, kind=WELCH, **parts, **told)
    r = _correlation([ours[key] for key in common], [theirs[key] for key in common])
    parts = _two_sides(list(ours.values()), list(theirs.values()), r or 0.0, len(common), step)
    method = (
        f"{len(common)} pairs by {by} and {sum(sizes) - 2 * len(common)} runs without a partner, all used: "
        "partly paired t interval (Derrick 2017)"
    )
    told |= {"correlation": r, "paired": True}
    return _interval(value, n=min(sizes), method=method, kind=PARTLY, **parts, **told)


def ratio(ours: PerSeed, theirs: PerSeed, *, by: str = "seed") -> Estimate | None:
    """The geometric mean of ours over theirs, by `difference` of the logarithms. Values must be above 0."""
    sides = [{key: value for key, value in _figures(side).items() if value > 0} for side in (ours, theirs)]
    logs = [{key: math.log(value) for key, value in side.items()} for side in sides]
    if (found := difference(logs[0], logs[1], by=by)) is None:
        return None
    on_log = replace(found, scale="log", value=1.0)  # `from_scale` of a log estimate
    low, high = (None if end is None else on_log.from_scale(end) for end in (found.low, found.high))
    value = on_log.from_scale(found.value)
    if len(sides[0]) == len(sides[1]) == 1:  # as it is, without the rounding of a logarithm
        value = next(iter(sides[0].values())) / next(iter(sides[1].values()))
    return replace(on_log, value=value, low=low, high=high)


def explained(kind: str) -> tuple[str, str]:
    """In full, for the page: intervals of this kind, and that of two means that cannot be paired."""
    if kind == T:
        return (
            "Student's t over runs (quality: over seeds), of the logarithm for ratios",
            "Welch's interval of the two means",
        )
    return f"{kind} over runs (quality: over seeds)", f"the {kind} interval of the two means"


def _figures(values: PerSeed) -> dict[Hashable, float]:
    return {key: float(value) for key, value in values.items() if abs(value) <= LARGEST}  # NaN is not either


def _paired(ours: list[float], theirs: list[float], sizes: tuple[int, int], by: str, step: float) -> Estimate:
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    rounding = ROUNDING * max(map(abs, [*ours, *theirs]))
    if max(pairs) - min(pairs) <= rounding:  # 0.3 - 0.2 and 0.2 - 0.1 are the same difference
        pairs = [0.0 if abs(pairs[0]) <= rounding else pairs[0]] * len(pairs)
    n, spread = len(pairs), _deviation(pairs)
    told: dict[str, Any] = {"paired": True, "sizes": sizes, "pairs": n, "left_out": sum(sizes) - 2 * n}
    if spread is None:
        return _interval(pairs[0], None, None, n, "one pair, no interval", T, **told)
    method, least = f"paired by {by}, t interval", math.sqrt(2) * step * ROUNDED
    if spread < least:
        spread, method = least, f"{method} of figures in steps"
    told |= {"spread": spread, "spread_df": n - 1.0, "correlation": _correlation(ours, theirs)}
    error = spread / math.sqrt(n)
    return _interval(statistics.fmean(pairs), error, n - 1.0, n, method, T, **told)


def _two_sides(
    ours: list[float], theirs: list[float], r: float | None, pairs: int, step: float = 0.0
) -> dict[str, float]:
    """Error, spread and their degrees of freedom: Welch and Satterthwaite's, with `pairs` correlated by `r`.

    Derrick, Toher and White (2017): the variance of the difference of all means less twice the covariance
    that the pairs bring into it; the degrees of freedom lie between those of the pairs and Welch's, by the
    share of runs that have no partner.
    """
    sizes = (len(ours), len(theirs))
    deviations = [max(_deviation(side) or 0.0, step * ROUNDED) for side in (ours, theirs)]
    errors = [s / math.sqrt(n) for s, n in zip(deviations, sizes, strict=True)]
    nexts = [s * math.sqrt(1 + 1 / n) for s, n in zip(deviations, sizes, strict=True)]
    df, spread_df = (_satterthwaite(parts, sizes) for parts in (errors, nexts))
    error, spread = math.hypot(*errors), math.hypot(*deviations)
    if r is not None and error > 0:
        alone = sum(sizes) - 2 * pairs
        df, spread_df = (
            pairs - 1 + (gamma - pairs + 1) / (alone + 2 * pairs) * alone for gamma in (df, spread_df)
        )
        shared = [2 * r * (deviations[0] / whole) * (deviations[1] / whole) for whole in (error, spread)]
        error *= math.sqrt(max(0.0, 1 - shared[0] * pairs / (sizes[0] * sizes[1])))
        spread *= math.sqrt(max(0.0, 1 - shared[1]))
    return {"error": error, "df": df, "spread": spread, "spread_df": spread_df}


def _satterthwaite(parts: list[float], sizes: tuple[int, int]) -> float:
    whole = math.hypot(*parts)
    if whole == 0:
        return float(sum(sizes) - 2)
    return 1 / sum((part / whole) ** 4 / (n - 1) for part, n in zip(parts, sizes, strict=True))


def _deviation(values: list[float]) -> float | None:
    """The standard deviation; None of one value, exactly 0 where all are the same."""
    if len(values) < 2:
        return None
    return 0.0 if min(values) == max(values) else statistics.stdev(values)


def _correlation(ours: list[float], theirs: list[float]) -> float | None:
    """Pearson's; None from two pairs, where it is always 1 or -1, and where one side does not vary."""
    if len(ours) < 3 or min(ours) == max(ours) or min(theirs) == max(theirs):
        return None
    return max(-1.0, min(1.0, statistics.correlation(ours, theirs)))


def _interval(
    value: float, error: float | None, df: float | None, n: int, method: str, kind: str, **more: Any
) -> Estimate:
    found = Estimate(value, None, None, n, method, kind, error=error, df=df, confidence=0, **more)
    return found.at(CONFIDENCE)
