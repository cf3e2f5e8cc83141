"""Means, differences and ratios of samples: one figure a seed, or a process; each to be checked by hand.

A sample is a series whose index is what runs are paired by: same seed, same first weights and order of
images, so what the seeds share drops out. Ratios are taken of the logarithms, so that 2x and 0.5x are equally
far from 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from ampcompare.report.statistics.estimate import Estimate

FEWEST = 3  # runs a side, or pairs, from which there is an interval
LARGEST = 1e300  # a figure beyond it could not be squared or added up
ROUNDING = 8 * 2.0**-52  # figures that vary by less, relative to their size, do not vary


def mean(a: pd.Series, *, log: bool = False, resolution: float = 0.0) -> Estimate | None:
    """The mean (of the logarithms: the geometric mean); None of an empty sample.

    `resolution` is the least that the standard deviation is taken for: what a figure cannot tell apart is no
    certainty.
    """
    values = _known(a, log)
    if not len(values):
        return None
    n, seen = len(values), (float(values.min()), float(values.max()))
    scaled = np.log(values) if log else values
    made = Estimate(float(np.exp(scaled.mean())) if log else float(scaled.mean()), seen, n, log=log)
    if n == 1:
        made = replace(made, value=seen[0])
    if n < FEWEST:
        return made
    spread = max(_deviation(scaled), resolution)
    return replace(made, error=spread / math.sqrt(n), df=n - 1.0, spread=spread, spread_df=n - 1.0)


def difference(
    a: pd.Series, b: pd.Series, *, log: bool = False, resolution: float = 0.0, by: str = "seed"
) -> Estimate | None:
    """The mean of `a` minus `b`, or (`log`) the ratio of their geometric means; None where one is empty.

    Paired where the complete pairs are at least three and at least half of the smaller side, else Welch's t
    on all runs, from three a side. `resolution` is the least that the standard deviation of a difference (of
    a side, where nothing is paired) is taken for. `by` names what pairs them; empty: nothing does.
    """
    for side in (a, b):
        assert side.index.is_unique, "pandas would multiply equal labels"
    a, b = (side[_is_known(side, log)] for side in (a, b))
    if a.empty or b.empty:
        return None
    scaled = [np.log(side) if log else side for side in (a, b)]
    common = a.index.intersection(b.index)
    sizes, fewer = (len(a), len(b)), min(len(a), len(b))
    if by and len(common) >= (FEWEST if fewer >= FEWEST else 1) and 2 * len(common) >= fewer:
        pairs = (scaled[0][common] - scaled[1][common]).to_numpy(float)
        largest = max(float(side[common].abs().max()) for side in scaled)
        return _paired(pairs, log, sizes, by, max(_deviation(pairs, largest), resolution))
    ours, theirs = (side.to_numpy(float) for side in scaled)
    value, seen = ours.mean() - theirs.mean(), (ours.min() - theirs.max(), ours.max() - theirs.min())
    made = _made(value, seen, fewer, log, sizes)
    if fewer < FEWEST:
        return made
    deviations = [max(_deviation(side), resolution) for side in (ours, theirs)]
    errors = [s / math.sqrt(n) for s, n in zip(deviations, sizes, strict=True)]
    nexts = [s * math.sqrt(1 + 1 / n) for s, n in zip(deviations, sizes, strict=True)]
    df, spread_df = (_satterthwaite(parts, sizes) for parts in (errors, nexts))
    return replace(
        made, error=math.hypot(*errors), df=df, spread=math.hypot(*deviations), spread_df=spread_df
    )


def _paired(pairs: np.ndarray, log: bool, sizes: tuple[int, int], by: str, spread: float) -> Estimate:
    n = len(pairs)
    made = _made(pairs.mean(), (pairs.min(), pairs.max()), n, log, sizes, by)
    if n < FEWEST:
        return made
    return replace(made, error=spread / math.sqrt(n), df=n - 1.0, spread=spread, spread_df=n - 1.0)


def _made(
    value: float, seen: tuple[float, float], n: int, log: bool, sizes: tuple[int, int], by: str = ""
) -> Estimate:
    least, most = float(seen[0]), float(seen[1])
    made = Estimate(float(value), (least, most), n, log=log, sizes=sizes, by=by)
    if not log:
        return made
    return replace(
        made, value=made.from_scale(float(value)), seen=(made.from_scale(least), made.from_scale(most))
    )


def _known(a: pd.Series, log: bool) -> np.ndarray:
    return a[_is_known(a, log)].to_numpy(float)


def _is_known(a: pd.Series, log: bool) -> pd.Series:
    values = a.astype(float).abs() <= LARGEST  # NaN is not either
    return values & (a.astype(float) > 0) if log else values


def _deviation(values: np.ndarray, largest: float = 0.0) -> float:
    """The standard deviation, 0 where it is only the rounding of figures as large as `largest`."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return 0.0 if deviation <= ROUNDING * max(largest, float(np.abs(values).max())) else deviation


def _satterthwaite(parts: list[float], sizes: tuple[int, int]) -> float:
    whole = math.hypot(*parts)
    if whole == 0:
        return float(sum(sizes) - 2)
    return 1 / sum((part / whole) ** 4 / (n - 1) for part, n in zip(parts, sizes, strict=True))
