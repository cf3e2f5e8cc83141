"""Compare a published value with a measured one: shown to be equal, shown to differ, or neither."""

import math
from dataclasses import dataclass

from ampcompare.analysis.statistics.estimate import Estimate, quantile


@dataclass(frozen=True)
class PublishedEstimate:
    """A published value with the interval of its rounding.

    Attributes:
        value: The published value.
        low: Lower end of the values that round to the printed digits.
        high: Upper end.
        runs: Number of runs behind the value. They are assumed to vary as the measured runs do.
    """

    value: float
    low: float
    high: float
    runs: int = 1


def is_different(measured: Estimate, published: PublishedEstimate, level: float) -> bool:
    """Return whether the published value lies outside the prediction interval of the measured runs.

    It counts as one more mean of `runs` runs that vary as the measured runs do. All values that round to its
    digits count as agreement.

    Args:
        published: The published value.
        level: Level of the prediction interval, 0..1.
    """
    if measured.error is None:
        return False
    error = math.hypot(measured.error, measured.spread / math.sqrt(published.runs))
    df = min(measured.df, measured.spread_df)
    return max(0.0, *_distances(measured, published)) > quantile((1 + level) / 2, df) * error


def is_equivalent(measured: Estimate, published: PublishedEstimate, margin: float, level: float) -> bool:
    """Return whether the two-sided interval of the difference lies within `margin`, as in the report.

    The margin begins at the ends of the rounding interval.

    Args:
        published: The published value.
        margin: Equivalence margin on the scale of the computation: log(1.1) for a ratio within 10%.
        level: Level of the two-sided interval, 0..1. 0.9 gives two one-sided tests at 5% (Schuirmann 1987).
    """
    if measured.error is None:
        return False
    half_width = quantile((1 + level) / 2, measured.df) * measured.error
    return max(_distances(measured, published)) + half_width < margin


def _distances(measured: Estimate, published: PublishedEstimate) -> tuple[float, float]:
    """Return how far the measured value lies below and above the published interval; negative inside it."""
    low, high = measured.on_scale(published.low), measured.on_scale(published.high)
    return low - measured.center, measured.center - high
