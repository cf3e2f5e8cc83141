"""Compare a published value with a measured one: shown to be equal, shown to differ, or neither."""

import math
from dataclasses import dataclass, replace

from ampcompare.analysis.statistics.estimate import ALPHA, Estimate, quantile
from ampcompare.analysis.statistics.mean_difference import combine_errors
from ampcompare.analysis.statistics.multiplicity import count_further_seeds


@dataclass(frozen=True)
class PublishedEstimate:
    """A published value with its interval.

    Attributes:
        value: The published value.
        low: Lower end: of the interval that was published, or of the values that round to the printed digits.
        high: Upper end.
        runs: Number of runs behind a value that has only its rounding. They are assumed to vary as the
            measured runs do.
        error: Standard error of a value that was published with an interval, on the scale of the computation.
            None for a value that has only its rounding.
        df: Degrees of freedom of `error`.
    """

    value: float
    low: float
    high: float
    runs: int = 1
    error: float | None = None
    df: float = math.inf


def is_different(measured: Estimate, published: PublishedEstimate, level: float) -> bool:
    """Return whether the published value lies outside the prediction interval of the measured runs.

    A value with only its rounding counts as one more mean of `runs` runs that vary as the measured runs do.
    All values that round to its digits count as agreement. A value with its own error is compared by both
    errors (Welch's test with Satterthwaite's degrees of freedom).

    Args:
        measured: The measured estimate.
        published: The published value.
        level: Level of the prediction interval, 0..1.
    """
    if measured.error is None:
        return False
    error = math.hypot(measured.error, measured.spread / math.sqrt(published.runs))
    df = min(measured.df, measured.spread_df)
    if published.error is not None:
        error, df = combine_errors((measured.error, measured.df), (published.error, published.df))
    return max(0.0, *_distances(measured, published)) > quantile((1 + level) / 2, df) * error


def is_equivalent(measured: Estimate, published: PublishedEstimate, margin: float) -> bool:
    """Return whether two one-sided tests at 5% show equivalence within `margin` (Schuirmann 1987).

    The margin begins at the ends of the rounding interval, or at the value if it has its own error.

    Args:
        measured: The measured estimate.
        published: The published value.
        margin: Equivalence margin on the scale of the computation: log(1.1) for a ratio within 10%.
    """
    if measured.error is None:
        return False
    error, df = combine_errors((measured.error, measured.df), (published.error or 0.0, published.df))
    return max(_distances(measured, published)) + quantile(1 - ALPHA, df) * error < margin


def count_further_runs(
    measured: Estimate, published: PublishedEstimate, margin: float, level: float
) -> int | None:
    """Return how many further runs per arm would decide the comparison, assuming the same estimate.

    Args:
        measured: The measured estimate.
        published: The published value.
        margin: Equivalence margin on the scale of the computation.
        level: Error probability of the test for a difference.

    Returns:
        The number of runs. None if no number decides it, because the published value stays uncertain, or
        because the spread of the measured runs is unknown.
    """
    if measured.error is None:
        return None
    distance = max(0.0, *_distances(measured, published))
    difference = replace(measured, log=False, value=distance, level=1 - level)
    if distance < margin:
        uncertainty = quantile(1 - level / 2, published.df) * (published.error or 0.0)
        return (
            None
            if distance + uncertainty >= margin
            else count_further_seeds(difference.at_level(0.9), margin=margin)
        )
    published_error = (
        published.error if published.error is not None else measured.spread / math.sqrt(published.runs)
    )
    is_hidden = distance <= quantile(1 - level / 2, max(measured.df, 30.0)) * published_error
    return None if is_hidden else count_further_seeds(difference, null=0.0) or 1


def _distances(measured: Estimate, published: PublishedEstimate) -> tuple[float, float]:
    """Return how far the measured value lies below and above the published interval; negative inside it."""
    low, high = (
        (published.low, published.high) if published.error is None else (published.value, published.value)
    )
    return measured.on_scale(low) - measured.center, measured.center - measured.on_scale(high)
