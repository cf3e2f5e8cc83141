"""Means, differences and ratios of samples: one figure a seed, or a process; each to be checked by hand.

A sample is a series whose index is what runs are paired by: same seed, same first weights and order of
images, so what the seeds share drops out. Ratios are taken of the logarithms, so that 2x and 0.5x are equally
far from 1.
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from ampcompare.analysis.statistics.estimate import Estimate

FEWEST = 3  # runs a side, or pairs, from which there is an interval
LARGEST = 1e300  # a figure beyond it could not be squared or added up
ROUNDING = 8 * 2.0**-52  # figures that vary by less, relative to their size, do not vary


def mean(a: pd.Series, *, log: bool = False, resolution: float = 0.0) -> Estimate | None:
    """The mean (of the logarithms: the geometric mean); None of an empty sample.

    `resolution` is the least that the standard deviation is taken for: what a figure cannot tell apart is no
    certainty.
    """
    values = _scaled(a, log).to_numpy()
    return _of_one(values, log, max(_deviation(values), resolution)) if len(values) else None


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
    a, b = _scaled(a, log), _scaled(b, log)
    if a.empty or b.empty:
        return None
    common, sizes = a.index.intersection(b.index), (len(a), len(b))
    fewer = min(sizes)
    if by and len(common) >= (FEWEST if fewer >= FEWEST else 1) and 2 * len(common) >= fewer:
        pairs, largest = (a[common] - b[common]).to_numpy(), max(a[common].abs().max(), b[common].abs().max())
        paired = _of_one(pairs, log, max(_deviation(pairs, largest), resolution))
        return replace(paired, sizes=sizes, by=by)
    found = replace(_of_one(np.array([a.mean() - b.mean()]), log, 0.0), n=fewer, sizes=sizes)
    found = replace(found, seen=(found.from_scale(a.min() - b.max()), found.from_scale(a.max() - b.min())))
    if fewer < FEWEST:
        return found
    spreads = [max(_deviation(side.to_numpy()), resolution) for side in (a, b)]
    parts = [(spread / math.sqrt(n), n - 1.0) for spread, n in zip(spreads, sizes, strict=True)]
    next_ones = [(spread * math.sqrt(1 + 1 / n), n - 1.0) for spread, n in zip(spreads, sizes, strict=True)]
    error, df = both_errors(*parts)
    _, spread_df = both_errors(*next_ones)
    return replace(found, error=error, df=df, spread=math.hypot(*spreads), spread_df=spread_df)


def both_errors(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The error of a difference of two figures, each with (error, degrees of freedom), and its degrees of
    freedom by Satterthwaite.
    """
    error = math.hypot(one[0], other[0])
    if error == 0:
        return 0.0, one[1] + other[1]
    return error, 1 / (sum((part / error) ** 4 / df for part, df in (one, other)) or 1e-9)


def _of_one(values: np.ndarray, log: bool, spread: float) -> Estimate:
    """The mean of values on the scale of the computation that vary by `spread`."""
    n, scale = len(values), Estimate(0.0, (0.0, 0.0), 0, log=log).from_scale
    least, center, most = (scale(float(value)) for value in (values.min(), values.mean(), values.max()))
    found = Estimate(center, (least, most), n, log=log)
    if n < FEWEST:
        return found
    return replace(found, error=spread / math.sqrt(n), df=n - 1.0, spread=spread, spread_df=n - 1.0)


def _scaled(a: pd.Series, log: bool) -> pd.Series:
    """What of a sample are numbers, on the scale of the computation."""
    values = a.astype(float)
    values = values[values.abs() <= LARGEST]  # NaN is not either
    return np.log(values[values > 0]) if log else values


def _deviation(values: np.ndarray, largest: float = 0.0) -> float:
    """The standard deviation, 0 where it is only the rounding of figures as large as `largest`."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return 0.0 if deviation <= ROUNDING * max(largest, float(np.abs(values).max())) else deviation
