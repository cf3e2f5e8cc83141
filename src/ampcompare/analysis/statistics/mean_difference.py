"""Means, differences and ratios of samples, with Student's or Welch's interval.

A sample is a series with one value per seed, or per process. Its index pairs the runs: the same seed gives
the same initial weights and the same order of images. How far the results of a seed correlate is measured
(`seed_correlation`), not assumed. Ratios are computed on logarithms, so that 2x and 0.5x are equally far
from 1.
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from ampcompare.analysis.statistics.estimate import Estimate

MIN_RUNS = 3  # runs per side, or pairs, that an interval needs
MAX_VALUE = 1e300  # squares and sums of larger values would overflow
ROUNDING = 8 * 2.0**-52  # a smaller relative variation is rounding error


def estimate_mean(a: pd.Series, *, log: bool = False, resolution: float = 0.0) -> Estimate | None:
    """Return the mean, or the geometric mean if `log`; None for an empty sample.

    Args:
        a: The sample.
        log: Whether to average logarithms.
        resolution: Lower bound of the standard deviation. Values that agree within the resolution of the
            measurement are no evidence of a spread of zero.
    """
    values = _scaled(a, log).to_numpy()
    if not len(values):
        return None
    return _mean_estimate(values, log, max(_deviation(values), resolution))


def estimate_difference(
    a: pd.Series, b: pd.Series, *, log: bool = False, resolution: float = 0.0, paired_by: str = "seed"
) -> Estimate | None:
    """Return mean(a) - mean(b), or the ratio of geometric means if `log`; None if a sample is empty.

    Runs that share a seed are pairs, whatever their values are. With fewer than three complete pairs nothing
    is paired, and Welch's t uses all runs, from three runs per side.

    Args:
        a: The sample of the numerator.
        b: The sample of the denominator.
        log: Whether to compute a ratio.
        resolution: Lower bound of the standard deviation of a difference, or of each side if runs are not
            paired.
        paired_by: The setting that the index holds. "" if runs are never paired.
    """
    for side in (a, b):
        assert side.index.is_unique, "pandas would multiply equal labels"
    a = _scaled(a, log)
    b = _scaled(b, log)
    if a.empty or b.empty:
        return None
    sizes = (len(a), len(b))
    shared = a.index.intersection(b.index)
    if paired_by and len(shared) >= MIN_RUNS:
        own, other = a[shared].to_numpy(), b[shared].to_numpy()
        pairs = own - other
        largest = float(max(np.abs(own).max(), np.abs(other).max()))
        paired = _mean_estimate(pairs, log, max(_deviation(pairs, largest), resolution))
        return replace(paired, sizes=sizes, paired_by=paired_by)
    return _unpaired_difference(a, b, log, resolution)


def _unpaired_difference(a: pd.Series, b: pd.Series, log: bool, resolution: float) -> Estimate:
    """Return Welch's difference of two samples on the scale of the computation."""
    sizes = (len(a), len(b))
    of_means = _mean_estimate(np.array([a.mean() - b.mean()]), log, 0.0)
    lowest = of_means.from_scale(a.min() - b.max())
    highest = of_means.from_scale(a.max() - b.min())
    estimate = replace(of_means, n=min(sizes), sizes=sizes, observed_range=(lowest, highest))
    if min(sizes) < MIN_RUNS:
        return estimate
    spreads = [max(_deviation(side.to_numpy()), resolution) for side in (a, b)]
    parts = [(spread / math.sqrt(n), n - 1.0) for spread, n in zip(spreads, sizes, strict=True)]
    next_ones = [(spread * math.sqrt(1 + 1 / n), n - 1.0) for spread, n in zip(spreads, sizes, strict=True)]
    error, df = combine_errors(*parts)
    _, spread_df = combine_errors(*next_ones)
    return replace(estimate, error=error, df=df, spread=math.hypot(*spreads), spread_df=spread_df)


def seed_correlation(a: pd.Series, b: pd.Series) -> float | None:
    """Return the correlation of two samples over the seeds that they share; None if it is not defined."""
    shared = a.index.intersection(b.index)
    own, other = a[shared].to_numpy(), b[shared].to_numpy()
    if len(shared) < MIN_RUNS or np.ptp(own) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(own, other)[0, 1])


def combine_errors(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the standard error of a difference and its degrees of freedom (Satterthwaite).

    Args:
        one: Standard error and degrees of freedom of one value.
        other: Those of the other value.
    """
    error = math.hypot(one[0], other[0])
    if error == 0:
        return 0.0, one[1] + other[1]
    return error, 1 / (sum((part / error) ** 4 / df for part, df in (one, other)) or 1e-9)


def _mean_estimate(values: np.ndarray, log: bool, spread: float) -> Estimate:
    """Return the mean of values on the scale of the computation, with standard deviation `spread`."""
    n = len(values)
    from_scale = Estimate(0.0, (0.0, 0.0), 0, log=log).from_scale
    observed_range = (from_scale(float(values.min())), from_scale(float(values.max())))
    estimate = Estimate(from_scale(float(values.mean())), observed_range, n, log=log)
    if n < MIN_RUNS:
        return estimate
    return replace(estimate, error=spread / math.sqrt(n), df=n - 1.0, spread=spread, spread_df=n - 1.0)


def _scaled(a: pd.Series, log: bool) -> pd.Series:
    """Return the numbers of a sample on the scale of the computation."""
    values = a.to_numpy(float)
    counts = np.abs(values) <= MAX_VALUE  # False for NaN
    if log:
        counts &= values > 0
    values = values[counts]
    return pd.Series(np.log(values) if log else values, a.index[counts])


def _deviation(values: np.ndarray, largest: float = 0.0) -> float:
    """Return the standard deviation; 0 if it is only the rounding error of values as large as `largest`."""
    if len(values) < 2:
        return 0.0
    deviation = float(values.std(ddof=1))
    rounding = ROUNDING * max(largest, float(np.abs(values).max()))
    return 0.0 if deviation <= rounding else deviation
