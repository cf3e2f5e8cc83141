"""What was found: the whole answer, for the table, the picture and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ampcompare.why.diff.compare import Line, Side
from ampcompare.why.diff.drift import Drift

CHANCE = "another order of the batches"


@dataclass(frozen=True)
class Difference:
    """The whole answer. `sides` are the backends, the one asked about first; `lines` are in the order of the
    forward; `drifts` by pair, empty for one step.
    """

    network: str
    data: str
    seed: int
    samples: int
    steps: int
    types: dict[str, str]  # by backend
    loss: float  # fp64's
    sides: list[Side]
    lines: list[Line]
    not_called: list[str]
    drifts: dict[tuple[str, str], Drift]
    skipped: dict[str, int]  # of `steps`, by backend
    environment: dict[str, Any]

    @property
    def first(self) -> str:
        return self.sides[0].label

    @property
    def between(self) -> Drift | None:
        """How the two backends part."""
        labels = [side.label for side in self.sides]
        return self.drifts.get((labels[0], labels[-1]))

    @property
    def chance(self) -> Drift | None:
        """How the last backend parts from itself in another order of the batches."""
        return self.drifts.get((self.sides[-1].label, CHANCE))

    def by_worst(self) -> list[Line]:
        """The lines, the largest error of their own under the first backend first; among those that are not
        finite those that were it first.
        """
        firsts = {self.sides[0].first_output, self.sides[0].first_gradient}
        return sorted(self.lines, key=lambda line: (-own_size(line, self.first), line.title not in firsts))


def own_size(line: Line, label: str) -> float:
    """The largest of a module's own relative errors; -1 where none could be measured."""
    return line.errors[label].own.size if label in line.errors else -1.0
