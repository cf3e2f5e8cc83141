"""A figure with its interval, at one level, and what else can be asked of it: the next run's."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from scipy.special import stdtrit

ALPHA = 0.05  # the error of each question, all its groups and looks together


def quantile(probability: float, df: float) -> float:
    """Of Student's t, of the normal distribution where no degrees of freedom are known."""
    return float(stdtrit(min(df, 1e9), probability))


@dataclass
class Estimate:
    """A mean, a difference, or (`log`) a ratio, with Student's interval at `level`.

    `error`, `df` and `spread` are on the scale of the computation, that of the logarithm for ratios: the
    standard error, its degrees of freedom, and the standard deviation of one more run (of one more pair, with
    `spread_df`). `error` is None below three runs a side: there is no interval then, but `seen`, the least
    and largest of what single runs (pairs) gave. `n` is the number of pairs, or the runs of the smaller side,
    `sizes` those of either; `by` is what pairs them ("seed"), empty where nothing does. The interval never
    leaves `bounds`: no throughput is below 0. `center` is the value on the scale of the computation.
    """

    value: float
    seen: tuple[float, float]
    n: int
    error: float | None = None
    df: float = 0.0
    spread: float = 0.0
    spread_df: float = 0.0
    log: bool = False
    sizes: tuple[int, int] | None = None
    by: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    level: float = 1 - ALPHA

    @cached_property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        return (None, None) if self.error is None else self._around(self.error, self.df)

    @property
    def low(self) -> float | None:
        return self.ends[0]

    @property
    def high(self) -> float | None:
        return self.ends[1]

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    @property
    def span(self) -> tuple[float, float]:
        """The interval, or what was seen where there is none."""
        low, high = self.ends
        return self.seen if low is None or high is None else (low, high)

    def side_of(self, null: float) -> int:
        """1 where the interval lies above, -1 where it lies below; 0 where it holds it, or there is none."""
        low, high = self.ends
        return 0 if low is None or high is None else int(low > null) - int(high < null)

    @property
    def paired(self) -> bool:
        return bool(self.by)

    @property
    def center(self) -> float:
        return self.on_scale(self.value)

    @property
    def basis(self) -> str:
        """What it rests on: `n = 5, paired by seed`, `n = 5 and 4, not paired`, `n = 2, no interval`."""
        n, how = f"{self.n}", "not paired" if self.sizes else ""
        if self.by:
            alone = sum(self.sizes or ()) - 2 * self.n
            how = f"paired by {self.by}" + (f", {alone} without a partner left out" if alone else "")
        elif self.sizes and self.sizes[0] != self.sizes[1]:
            n = f"{self.sizes[0]} and {self.sizes[1]}"
        how = how if self.has_interval else "no interval"
        return f"n = {n}{how and ', '}{how}"

    def at(self, level: float) -> Self:
        return replace(self, level=level)

    def next_run(self) -> tuple[float, float] | None:
        """The interval that holds one more run, or one more pair, at the same level; None without one."""
        if self.error is None or not self.spread_df:
            return None
        return self._around(math.hypot(self.error, self.spread), self.spread_df)

    def on_scale(self, value: float) -> float:
        """A value of this figure on the scale of the computation."""
        if not self.log:
            return value
        return math.log(value) if value > 0 else -math.inf

    def from_scale(self, value: float) -> float:
        """Back from the scale of the computation; what no float can hold is infinite."""
        if not self.log:
            return value
        return math.exp(value) if value < 709 else math.inf

    def _around(self, error: float, df: float) -> tuple[float, float]:
        if error == 0:
            return self.value, self.value
        half = quantile((1 + self.level) / 2, df) * error
        low, high = (self.from_scale(end) for end in (self.center - half, self.center + half))
        return max(low, self.bounds[0]), min(high, self.bounds[1])
