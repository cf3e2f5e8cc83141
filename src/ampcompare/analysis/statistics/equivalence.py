"""Whether somebody else's figure agrees with one's own: shown to be equal, shown to differ, or neither."""

import math
from dataclasses import dataclass, replace

from ampcompare.analysis.statistics.estimate import ALPHA, Estimate, quantile
from ampcompare.analysis.statistics.mean_difference import both_errors
from ampcompare.analysis.statistics.multiplicity import more_seeds


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


def differs(ours: Estimate, theirs: Theirs, level: float) -> bool:
    """Whether theirs is no draw of what ours are draws of: it lies outside the interval of one more run.

    Theirs of the digits alone is one more mean of `runs` runs that vary as ours do, and what the digits leave
    open counts as agreement. One with an error of its own is compared by both errors (Welch, Satterthwaite).
    """
    if ours.error is None:
        return False
    error, df = math.hypot(ours.error, ours.spread / math.sqrt(theirs.runs)), min(ours.df, ours.spread_df)
    if theirs.error is not None:
        error, df = both_errors((ours.error, ours.df), (theirs.error, theirs.df))
    return max(0.0, *_distances(ours, theirs)) > quantile((1 + level) / 2, df) * error


def equals(ours: Estimate, theirs: Theirs, margin: float) -> bool:
    """Whether two one-sided tests at 5 % (Schuirmann 1987) show that ours lies within `margin` of theirs, on
    the scale of the computation: log(1.1) for a ratio within 10 %.

    Theirs is taken as it was printed, from `low` to `high`, the margin beyond either end; one with an error
    of its own by its value and that error.
    """
    if ours.error is None:
        return False
    error, df = both_errors((ours.error, ours.df), (theirs.error or 0.0, theirs.df))
    return max(_distances(ours, theirs)) + quantile(1 - ALPHA, df) * error < margin


def more_to_tell(ours: Estimate, theirs: Theirs, margin: float, level: float) -> int | None:
    """How many further runs of each arm would tell either way, if ours came out as now; None where no number
    would, as theirs stays as uncertain as it is, or nothing is known of how ours vary.
    """
    if ours.error is None:
        return None
    off = max(0.0, *_distances(ours, theirs))
    apart = replace(ours, log=False, value=off, level=1 - level)
    if off < margin:
        vague = quantile(1 - level / 2, theirs.df) * (theirs.error or 0.0)
        return None if off + vague >= margin else more_seeds(apart.at(0.9), margin=margin)
    own = theirs.error if theirs.error is not None else ours.spread / math.sqrt(theirs.runs)
    is_hidden = off <= quantile(1 - level / 2, max(ours.df, 30.0)) * own
    return None if is_hidden else more_seeds(apart, null=0.0) or 1


def _distances(ours: Estimate, theirs: Theirs) -> tuple[float, float]:
    """How far ours lies below theirs, and above; below 0 within."""
    low, high = (theirs.low, theirs.high) if theirs.error is None else (theirs.value, theirs.value)
    return ours.on_scale(low) - ours.center, ours.center - ours.on_scale(high)
