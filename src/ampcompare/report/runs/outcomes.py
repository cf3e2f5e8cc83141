"""How the runs of a group ended. All are counted: a failed run is an outcome of its setting, and one that a
mean over those that went well would hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.report.runs.ending import Outcome, outcome_of
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.statistics.proportion import Proportion, clopper_pearson
from ampcompare.report.words import listed, plural

__all__ = ["Outcome", "Outcomes", "outcome_of"]


@dataclass(frozen=True)
class Outcomes:
    """The runs of a group by how they ended. `label` names the group in sentences."""

    label: str
    finished: tuple[RunFigures, ...] = ()
    failed: tuple[RunFigures, ...] = ()
    stopped: tuple[RunFigures, ...] = ()
    running: tuple[RunFigures, ...] = ()
    refused: tuple[RunFigures, ...] = ()

    @classmethod
    def of(cls, label: str, runs: Sequence[RunFigures]) -> Outcomes:
        """The runs sorted by their outcome, each kept in its order."""
        by = {word.value: tuple(r for r in runs if r.outcome is word) for word in Outcome}
        return cls(label, **by)

    @property
    def failures(self) -> Proportion | None:
        """The failed among the runs that came to an end of their own, with the exact interval (Clopper and
        Pearson 1934); None where none did."""
        ended = len(self.failed) + len(self.finished)
        return clopper_pearson(len(self.failed), ended) if ended else None

    @property
    def sentence(self) -> str:
        """`3 of 5 fp16 runs failed`; nothing where none did."""
        if not self.failed:
            return ""
        ended = len(self.failed) + len(self.finished)
        if ended == 1:
            return f"the one {self.label} run failed"
        return f"{len(self.failed)} of {ended} {self.label} runs failed"

    @property
    def others(self) -> str:
        """`1 run was stopped and 2 runs are still running`: what came to no end of its own; or nothing."""
        kinds = ((self.stopped, "stopped"), (self.refused, "refused before the first step"))
        parts = [
            f"{plural(len(r), 'run')} {'was' if len(r) == 1 else 'were'} {word}" for r, word in kinds if r
        ]
        if self.running:
            is_are = "is" if len(self.running) == 1 else "are"
            parts.append(f"{plural(len(self.running), 'run')} {is_are} still running")
        return listed(parts)
