"""Which claims are open still, and how many more seeds would decide them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ampcompare.report.analysis.claims import EQUIVALENCE
from ampcompare.report.analysis.comparison import Comparison


@dataclass(frozen=True)
class Undecided:
    """One claim of one group, "speed" or "quality", that is open; None where it cannot be told how long."""

    label: str
    question: str
    more_seeds: int | None


def open_questions(comparison: Comparison) -> Iterator[Undecided]:
    """What of speed and quality is not decided. A failed run decides quality; without a margin no number of
    seeds would show that nothing changed, so that nothing is then waited for.
    """
    label, claims = comparison.group.label, comparison.claims
    if comparison.is_control or comparison.refusal:
        return
    ended = comparison.group.outcomes
    has_begun = not comparison.group.counted and bool(ended.running)
    only_failed = bool(ended.failed) and not (
        ended.finished or ended.running
    )  # of that no seed makes a speed
    if (comparison.speed is not None and not only_failed) or has_begun:
        claim = claims.get("speed")
        if claim is None or not claim.rejected:
            yield Undecided(label, "speed", None if claim is None else claim.more_seeds)
    is_asked = comparison.quality is not None and comparison.metric.margin is not None
    if is_asked and not comparison.silence and comparison.chip == "undecided":
        yield Undecided(label, "quality", more_for_quality(comparison))


def more_for_quality(comparison: Comparison) -> int | None:
    """The fewest further seeds that would show either that quality is the same or that it is not."""
    found = (comparison.claims.get(question) for question in (EQUIVALENCE, "quality"))
    return min((c.more_seeds for c in found if c is not None and c.more_seeds), default=None)
