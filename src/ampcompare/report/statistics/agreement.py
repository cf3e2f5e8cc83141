"""Whether somebody else's figure agrees with one's own: shown to be equal, shown to differ, or neither."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.special import stdtr, stdtrit

from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.statistics.family import more_seeds


@dataclass(frozen=True)
class Theirs:
    """A figure of others, from `low` to `high`: between what it lies by its digits, or its own interval.

    `error` and `df` are those of an interval of its own, on the scale on which ours is computed; None of a
    figure with its digits alone, which is then one of `runs` that vary as ours do.
    """

    value: float
    low: float
    high: float
    runs: int = 1
    error: float | None = None
    df: float = math.inf

    def with_interval(self, ours: Estimate, confidence: float = 0.95) -> Theirs:
        """The same with the ends of its own error, on the scale of ours."""
        if self.error is None:
            return self
        half = quantile((1 + confidence) / 2, self.df) * self.error
        center = ours.on_scale(self.value)
        low, high = (ours.from_scale(end) for end in (center - half, center + half))
        return replace(self, low=low, high=high)


def quantile(probability: float, df: float) -> float:
    """Of Student's t, of the normal distribution where no degrees of freedom are known."""
    return float(stdtrit(min(df, 1e9), probability))


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t."""
    return float(stdtr(df, -t))


def p_differs(ours: Estimate, theirs: Theirs) -> float | None:
    """The p-value of the test that theirs is a draw of what ours are draws of; None from one run.

    Theirs of the digits alone is one more mean of `runs` runs that vary as ours do: the error is that of the
    prediction interval, and what the digits leave open counts as agreement. One with an error of its own is
    compared by both errors (Welch and Satterthwaite).
    """
    if (parts := _error(ours, theirs, as_run=True)) is None:
        return None
    distance = max(0.0, *(_distances(ours, theirs)))
    error, df = parts
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return min(1.0, 2 * t_tail(distance / error, df)) if distance else 1.0


def p_equal(ours: Estimate, theirs: Theirs, margin: float) -> float | None:
    """The p-value of two one-sided tests (Schuirmann 1987) that ours lies within `margin` of theirs; None
    from one run. `margin` is on the scale of the computation: log(1.1) for a ratio within 10 %.

    Theirs is taken as it was printed, from `low` to `high`, the margin beyond either end; one with an error
    of its own by its value and that error.
    """
    if (parts := _error(ours, theirs, as_run=False)) is None:
        return None
    error, df = parts
    inside = [margin - distance for distance in _distances(ours, theirs)]
    if error == 0:
        return 0.0 if min(inside) > 0 else 1.0
    return max(t_tail(end / error, df) for end in inside)


def more_to_tell(ours: Estimate, theirs: Theirs, margin: float, level: float) -> int | None:
    """How many further runs of each arm would tell either way, if ours came out as now; None where no number
    would, as theirs is known too little, or nothing is known of how ours vary.
    """
    if ours.error is None:
        return None
    below, above = _distances(ours, theirs)
    off = max(0.0, below, above)
    apart = replace(ours, log=False, value=off, level=1 - level)
    if off < margin:
        if theirs.error is not None and off + quantile(1 - level / 2, theirs.df) * theirs.error >= margin:
            return None  # theirs stays as uncertain as it is however often ours are run
        return more_seeds(replace(apart, level=0.9), margin=margin)
    # Theirs stays as uncertain as it is however often ours are run: the difference must be seen beyond that.
    own = theirs.error if theirs.error is not None else (ours.spread or 0.0) / math.sqrt(theirs.runs)
    if off <= quantile(1 - level / 2, max(ours.df or 1.0, 30.0)) * own:
        return None
    return more_seeds(apart, null=0.0) or 1


def _distances(ours: Estimate, theirs: Theirs) -> tuple[float, float]:
    """How far ours lies below theirs, and above; below 0 within."""
    low, high = (theirs.low, theirs.high) if theirs.error is None else (theirs.value, theirs.value)
    return ours.on_scale(low) - ours.center, ours.center - ours.on_scale(high)


def _error(ours: Estimate, theirs: Theirs, *, as_run: bool) -> tuple[float, float] | None:
    if ours.error is None or ours.df is None:
        return None
    if theirs.error is not None:
        error = math.hypot(ours.error, theirs.error)
        if error == 0:
            return 0.0, ours.df
        shares = ((ours.error, ours.df), (theirs.error, theirs.df))
        return error, 1 / sum((part / error) ** 4 / df for part, df in shares)
    if not as_run:
        return ours.error, ours.df
    if ours.spread is None or ours.spread_df is None:
        return None
    df = _cautious(min(ours.df, ours.spread_df), ours)
    return math.hypot(ours.error, ours.spread / math.sqrt(theirs.runs)), df


def _cautious(df: float, ours: Estimate) -> float:
    """Three tenths of the way from Welch's and Satterthwaite's to those that are safe however unlike the arms
    vary, one less than the smaller one's runs (Mickey and Brown 1966). The former are estimated from the same
    few runs: at a level of 1 % they refute 1.2 % of exact figures where one arm varies 3 times as much as the
    other (n = 5), 1.5 % at 15 times (n = 3); so it is 1.0 and 1.35 %. All of the way would miss most figures
    that are off by a fifth at n = 3.
    """
    if ours.paired or ours.sizes is None:
        return df
    safe = max(1.0, min(ours.sizes) - 1.0)
    return min(df, 0.7 * df + 0.3 * safe)
