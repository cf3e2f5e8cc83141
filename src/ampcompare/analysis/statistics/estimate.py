"""Estimates with a confidence interval at one level and a prediction interval for the next run."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from scipy.special import stdtrit

ALPHA = 0.05  # error probability of each question, over all groups and looks


def quantile(probability: float, df: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        probability: Probability below the quantile, 0..1.
        df: Degrees of freedom. Infinity gives the normal distribution.
    """
    return float(stdtrit(min(df, 1e9), probability))


@dataclass
class Estimate:
    """A mean, a difference of means, or a ratio of geometric means, with Student's interval.

    Ratios are computed on the logarithmic scale: `error`, `df` and `spread` are on the scale of the
    computation.

    Attributes:
        value: The point estimate.
        observed_range: The lowest and highest value of single runs, or of single pairs of runs.
        n: Number of pairs, or number of runs of the smaller side.
        error: Standard error. None below three runs per side: then there is no interval.
        df: Degrees of freedom of `error`.
        spread: Standard deviation of one more run, or of one more pair.
        spread_df: Degrees of freedom of `spread`.
        log: Whether this is a ratio, computed on logarithms.
        sizes: Number of runs of each side. None for the mean of one sample.
        paired_by: The setting that pairs the runs (`seed`), "" if they are not paired.
        bounds: Limits of the interval. A throughput is never below 0.
        level: Confidence level of the interval, 0..1.
    """

    value: float
    observed_range: tuple[float, float]
    n: int
    error: float | None = None
    df: float = 0.0
    spread: float = 0.0
    spread_df: float = 0.0
    log: bool = False
    sizes: tuple[int, int] | None = None
    paired_by: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    level: float = 1 - ALPHA

    @cached_property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """The ends of the confidence interval, both None if there is none."""
        return (None, None) if self.error is None else self._around(self.error, self.df)

    @property
    def low(self) -> float | None:
        """The lower end of the interval, None if there is none."""
        return self.ends[0]

    @property
    def high(self) -> float | None:
        """The upper end of the interval, None if there is none."""
        return self.ends[1]

    @property
    def has_interval(self) -> bool:
        """Return whether there is a confidence interval."""
        return self.low is not None

    @property
    def span(self) -> tuple[float, float]:
        """The confidence interval, or the observed range if there is no interval."""
        low, high = self.ends
        return self.observed_range if low is None or high is None else (low, high)

    def side_of(self, null: float) -> int:
        """Return 1 if the interval lies above `null`, -1 if it lies below, and 0 otherwise."""
        low, high = self.ends
        if low is None or high is None:
            return 0
        return int(low > null) - int(high < null)

    @property
    def is_paired(self) -> bool:
        """Return whether runs are paired."""
        return bool(self.paired_by)

    @property
    def center(self) -> float:
        """The value on the scale of the computation."""
        return self.on_scale(self.value)

    @property
    def basis(self) -> str:
        """The sample size and the pairing, such as `n = 5, paired by seed` or `n = 5 and 4, not paired`."""
        n = f"{self.n}"
        if self.sizes and not self.paired_by and self.sizes[0] != self.sizes[1]:
            n = f"{self.sizes[0]} and {self.sizes[1]}"
        if not self.has_interval:
            return f"n = {n}, no interval"
        if self.paired_by:
            unpaired = sum(self.sizes or ()) - 2 * self.n
            tail = f", {unpaired} without a partner left out" if unpaired else ""
            return f"n = {n}, paired by {self.paired_by}{tail}"
        return f"n = {n}, not paired" if self.sizes else f"n = {n}"

    def at_level(self, level: float) -> Self:
        """Return this estimate with its interval at another level."""
        return replace(self, level=level)

    def prediction_interval(self) -> tuple[float, float] | None:
        """Return the interval for one more run, or one more pair, at the same level; None without one."""
        if self.error is None or not self.spread_df:
            return None
        return self._around(math.hypot(self.error, self.spread), self.spread_df)

    def on_scale(self, value: float) -> float:
        """Convert a value of this estimate to the scale of the computation."""
        if not self.log:
            return value
        return math.log(value) if value > 0 else -math.inf

    def from_scale(self, value: float) -> float:
        """Convert a value back from the scale of the computation; infinite if no float can hold it."""
        if not self.log:
            return value
        return math.exp(value) if value < 709 else math.inf

    def _around(self, error: float, df: float) -> tuple[float, float]:
        if error == 0:
            return self.value, self.value
        half_width = quantile((1 + self.level) / 2, df) * error
        low = self.from_scale(self.center - half_width)
        high = self.from_scale(self.center + half_width)
        return max(low, self.bounds[0]), min(high, self.bounds[1])
