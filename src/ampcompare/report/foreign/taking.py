"""Runs of other programs on their way under our names, and what of it has to be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare.records import RunRecord
from ampcompare.records.tree import flatten
from ampcompare.report.runs.metric import is_logged
from ampcompare.report.runs.quantities import Quantities
from ampcompare.report.words import printable, short, some

MOST_NAMES = 12


class Logged:
    """What a set of runs logged: in how many of them a key is, in their rows or summaries."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self.runs = runs
        self.keys: Counter[str] = Counter()
        for run in runs:
            self.keys.update(
                {*run.logged, *(key for key, _ in flatten(run.summary) if not key.startswith("_"))}
            )

    def has(self, key: str) -> bool:
        """Whether any run has it as a number."""
        return key in self.keys and is_logged(key, self.runs)

    def best(self, ranks: dict[str, Any]) -> str | None:
        """The key that most runs have as a number, of those the lowest rank."""
        ranked = sorted(ranks, key=lambda key: (-self.keys[key], ranks[key], len(key), key))
        return next((key for key in ranked if self.has(key)), None)

    def named(self) -> str:
        """Some keys that the runs have, for a message: numbers, W&B's own left out."""
        known = sorted(key for key in self.keys if not key.startswith("_"))[: 10 * MOST_NAMES]
        return (
            some([short(printable(key)) for key in known if self.has(key)], MOST_NAMES)
            or "nothing that is a number"
        )


@dataclass
class Taking:
    """The runs as they become ours; `picked` has what was taken by guess, and the option for another."""

    runs: list[RunRecord]
    theirs: list[int]  # the numbers of those that another program recorded
    logged: Logged
    quantities: Quantities
    picked: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)

    @property
    def is_foreign(self) -> bool:
        """Whether none of the runs is ours."""
        return len(self.theirs) == len(self.runs)
