"""A set of runs as it is read: under our names, how they are told apart, and what is to be said of that."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare.records import RunRecord
from ampcompare.records.tree import flatten
from ampcompare.report.runs.metric import OWN, ComparedMetric, Quantities, is_logged
from ampcompare.report.words import listed, printable, short, some

MOST_NAMES = 12


class Logged:
    """What a set of runs logged: in how many of them a key is, in their rows or summaries."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self.runs = runs
        self.keys: Counter[str] = Counter()
        for run in runs:
            self.keys.update({*run.logged, *(key for key, _ in flatten(run.summary) if key[:1] != "_")})

    def has(self, key: str) -> bool:
        """Whether any run has it as a number."""
        return key in self.keys and is_logged(key, self.runs)

    def best(self, ranks: Mapping[str, Any]) -> str | None:
        """The key that most runs have as a number, of those the lowest rank."""
        ranked = sorted(ranks, key=lambda key: (-self.keys[key], ranks[key], len(key), key))
        return next((key for key in ranked if self.has(key)), None)

    def named(self) -> str:
        """Some keys that the runs have, for a message: numbers, W&B's own left out."""
        known = sorted(key for key in self.keys if key[:1] != "_")[: 10 * MOST_NAMES]
        shown = [short(printable(key)) for key in known if self.has(key)]
        return some(shown, MOST_NAMES) or "nothing that is a number"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for, in the words of `analyse_runs`; None leaves it to the runs."""

    baseline: str | None = None
    metric: str | None = None
    margin: float | None = None
    group_by: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    throughput: str | None = None
    memory: str | None = None


@dataclass
class Reading:
    """The runs on their way under our names, what they are compared by, and what has to be said of that.

    `is_foreign`: another program recorded them. `settings` and `seeds` tell the runs apart, a value each in
    order. `picked` has what was taken by guess, and the option for another.
    """

    runs: list[RunRecord]
    asked: Asked
    is_foreign: bool
    logged: Logged
    quantities: Quantities = OWN
    metric: ComparedMetric = field(default_factory=ComparedMetric)
    keys: tuple[str, ...] = ()
    baseline: str = ""
    settings: list[dict[str, str]] = field(default_factory=list)
    seeds: list[Any] = field(default_factory=list)
    picked: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def said(self) -> tuple[str, ...]:
        """What was taken by guess, and how the rest was read."""
        took = listed([printable(what) for what, _ in self.picked])
        options = ", ".join(option for _, option in self.picked)
        return (*([f"took {took}: {options} for another"] if took else []), *self.notes)
