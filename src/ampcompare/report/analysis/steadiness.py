"""Whether a run's throughput was steady: stalls, drift within the run, what its median does not show."""

from __future__ import annotations

from dataclasses import dataclass

from ampcompare.report.analysis.figures import RunFigures


@dataclass(frozen=True)
class Steadiness:
    """`stalled`: the share of the run's time that stalls took; `change`: throughput at the run's end as a
    ratio to its beginning, where a trend is shown; None where nothing of it is shown.
    """

    stalled: float | None = None
    change: float | None = None


def steadiness(figures: RunFigures) -> Steadiness:
    """What is shown of one run by its log intervals."""
    return Steadiness()
