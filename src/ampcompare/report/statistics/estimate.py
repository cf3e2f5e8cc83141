"""A figure with its interval, and what can be asked of it: another level, a p-value, the next run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, final

from ampcompare.report.statistics.student import t_quantile, t_tail
from ampcompare.report.words import plural

CONFIDENCE = 0.95
T, PARTLY, WELCH = "t", "partly paired t", "Welch t"  # kinds of interval

Scale = Literal["linear", "log"]
Side = Literal["two", "above", "below"]


@final
@dataclass(frozen=True)
class Estimate:
    """A value, its interval (None from one seed) and how both were found.

    `n` is the number of pairs where all are paired, else of seeds on the smaller side; `left_out` how many
    seeds have no partner and were not used. `method` says in full how it was found, `kind` what sort of
    interval it is ("t", "partly paired t", "Welch t"), `paired` whether seed by seed, wholly or in part.

    `scale` is the one on which the interval was computed, that of the logarithm for ratios; `error`, `df` and
    `spread` are on that scale: the standard error of the value, its degrees of freedom, and the standard
    deviation of one more run (of the difference of one more pair). `spread_df` are those of `spread`.
    `correlation` is that of the pairs, None where nothing is paired or fewer than three are: what pairing
    bought. `sizes` are the seeds of either side and `pairs` those in common. The interval never leaves
    `lowest` to `highest`: no throughput is below 0.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    method: str
    kind: str
    paired: bool = False
    left_out: int = 0
    error: float | None = None
    df: float | None = None
    confidence: float = CONFIDENCE
    correlation: float | None = None
    scale: Scale = "linear"
    spread: float | None = None
    spread_df: float | None = None
    sizes: tuple[int, int] | None = None
    pairs: int = 0
    lowest: float = -math.inf
    highest: float = math.inf

    @property
    def has_interval(self) -> bool:
        """Whether there are seeds enough for an interval."""
        return self.low is not None

    @property
    def basis(self) -> str:
        """What it rests on, for a table's cell: `n = 3, paired t, 1 seed left out`."""
        how = self.kind if self.has_interval else "no interval"
        if self.paired and self.kind != PARTLY:
            how = f"paired {how}"
        n = f"{self.n}"
        if self.sizes and self.sizes[0] != self.sizes[1] and not self.left_out:
            n = f"{self.sizes[0]} and {self.sizes[1]}"
        if self.kind == PARTLY:
            how += f", {plural(self.pairs, 'pair')}"
        if self.correlation is not None:  # what pairing bought
            how += f", r = {self.correlation:.2f}".replace("-", "−")
        left_out = f", {plural(self.left_out, 'seed')} left out" if self.left_out else ""
        return f"n = {n}, {how}{left_out}"

    def at(self, confidence: float) -> Estimate:
        """The same estimate with its interval at another level, a fraction between 0 and 1.

        An interval that is not Student's has no other level: the estimate then comes without one.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")
        if confidence == self.confidence:
            return self
        low, high = self._around(self.error, self.df, confidence) or (None, None)
        return replace(self, low=low, high=high, confidence=confidence)

    def within(self, lowest: float, highest: float) -> Estimate:
        """The same of a figure that cannot lie beyond these: no accuracy is above 100 %."""
        bounded = replace(self, lowest=lowest, highest=highest)
        if self.low is None or self.high is None:
            return bounded
        return replace(bounded, low=max(self.low, lowest), high=min(self.high, highest))

    def p_of(self, null: float, side: Side = "two") -> float | None:
        """The p-value of the test that the truth is `null`; None without Student's error.

        `side` "above" tests whether the truth is above `null` (against at or below it), "below" the other
        way. The interval at 1 - p just touches `null` (for one side: that at 1 - 2p). Without any spread p is
        0, or 1 where the value does not lie on the claimed side of `null`.
        """
        if self.error is None or self.df is None:
            return None
        distance = self.center - self.on_scale(null)
        if math.isnan(distance):  # both infinite
            return None
        if self.error == 0:
            shown = {"two": distance != 0, "above": distance > 0, "below": distance < 0}[side]
            return 0.0 if shown else 1.0
        t = distance / self.error
        if side == "two":
            return min(1.0, 2 * t_tail(abs(t), self.df))
        return t_tail(t if side == "above" else -t, self.df)

    def prediction(self, confidence: float | None = None) -> tuple[float, float] | None:
        """The interval for one more run, or one more pair: wider than that of the mean by its own spread.

        It holds the reader's next figure with `confidence` (that of the estimate if not given) where seeds
        and machine are as those measured. None from one seed. For two unpaired sides it is the difference, or
        ratio, of one more run of each (Satterthwaite's degrees of freedom).
        """
        if self.error is None or self.spread is None:
            return None
        error = math.hypot(self.error, self.spread)
        return self._around(error, self.spread_df, self.confidence if confidence is None else confidence)

    @property
    def center(self) -> float:
        """The value on the scale of the computation."""
        return self.on_scale(self.value)

    def on_scale(self, value: float) -> float:
        """A value of this figure on the scale of the computation; raises ValueError for a ratio below 0."""
        if self.scale == "linear":
            return value
        if value < 0:
            raise ValueError(f"{value}: a ratio is above 0")
        return math.log(value) if value else -math.inf

    def from_scale(self, value: float) -> float:
        """Back from the scale of the computation; what no float can hold is infinite."""
        if self.scale == "linear":
            return value
        try:
            return math.exp(value)
        except OverflowError:
            return math.inf

    def _around(self, error: float | None, df: float | None, confidence: float) -> tuple[float, float] | None:
        if error is None or df is None:
            return None
        half = t_quantile((1 + confidence) / 2, df) * error if error else 0.0
        low, high = (self.from_scale(end) for end in (self.center - half, self.center + half))
        return (max(low, self.lowest), min(high, self.highest)) if half else (self.value, self.value)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of |difference| < margin: the larger `p`, and the interval they are.

    Each is at `level`; `low` and `high` are the interval at 1 - 2 `level` (90 % for 0.05), which lies within
    the margin where the test `holds`. That it does not hold is no evidence of a difference.
    """

    margin: float
    p: float
    low: float
    high: float
    level: float = 0.05

    @property
    def holds(self) -> bool:
        """Whether equivalence within the margin is shown."""
        return self.p < self.level

    @property
    def confidence(self) -> float:
        """The level of the interval, a fraction."""
        return 1 - 2 * self.level

    @property
    def words(self) -> str:
        """What the test came to, for a table's cell."""
        return f"{'equivalent' if self.holds else 'not shown'} within {self.margin:g}"


def equivalence(found: Estimate, margin: float, level: float = 0.05) -> Equivalence | None:
    """Two one-sided tests that a difference is within the margin (Schuirmann 1987); None from one seed.

    `level` is that of each of the two tests.
    """
    if found.error is None or found.df is None:
        return None
    if found.scale != "linear":
        raise ValueError("equivalence is tested of differences, not of ratios")
    above, below = found.p_of(-margin, "above"), found.p_of(margin, "below")
    wide = found.at(1 - 2 * level)
    if above is None or below is None or wide.low is None or wide.high is None:
        return None
    return Equivalence(margin, max(above, below), wide.low, wide.high, level)
