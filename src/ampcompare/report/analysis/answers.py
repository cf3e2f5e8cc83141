"""How many test images two backends answer differently, beside how many two seeds of one backend do.

Two runs that reach the same accuracy may be right about other images. Two seeds of one backend are, so what
a backend does is what goes beyond that (`permutation.py` has the test). The runs' predictions are read here,
and nowhere else: a report that does not ask for `answers` reads none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import numpy as np

from ampcompare.records.predictions import Predictions
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group, seed_key
from ampcompare.report.statistics.family import holm
from ampcompare.report.statistics.permutation import FEWEST, disagreement

MOST_SEEDS = 32  # of a group are compared: the pairs, and the files read, grow with their number
LEVEL = 0.05  # of all comparisons together
OTHER_IMAGES = "it was tested on other images"


@final
@dataclass(frozen=True)
class Answers:
    """A group against its baseline, in test images.

    `between`: how many of `images` two runs answer differently, one of each group and of other seeds, in the
    mean over pairs; `within`: two runs of one group; `same_seed`: one of each with the seed in common. `p` is
    that of the permutation test that the groups differ by more than seeds do, `adjusted_p` the same over all
    comparisons (Holm), None where it was not tested: `method` and `sentence` say why. `n` is how many seeds
    of the group and of the baseline were compared, `left_out` each run that was not, with the reason.
    """

    group: str
    baseline: str
    images: int | None = None
    between: float | None = None
    within: float | None = None
    same_seed: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    n: tuple[int, int] = (0, 0)
    method: str = ""
    left_out: tuple[tuple[str, str], ...] = ()
    sentence: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything can be said of the images."""
        return self.between is not None or self.same_seed is not None

    @property
    def is_more(self) -> bool:
        """Whether it is shown that they differ by more than seeds do."""
        return self.adjusted_p is not None and self.adjusted_p < LEVEL


@dataclass
class _Side:
    """The predictions of a group by what runs are paired by, and the runs that have none to compare."""

    group: Group
    kept: dict[Hashable, tuple[RunFigures, Predictions]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def read(self) -> _Side:
        """Read the runs that count, one of each seed."""
        for run in self.group.counted:
            key = seed_key(run)
            if key in self.kept:
                self._leave(run, "another run of its seed is compared")
            elif len(self.kept) == MOST_SEEDS:
                self._leave(run, f"{MOST_SEEDS} seeds of its group are compared")
            elif (found := run.run.predictions).classes is not None:
                self.kept[key] = run, found
            else:
                self._leave(run, found.problem or "it kept no predictions")
        return self

    def commonest(self) -> str:
        """The test set of most runs; an empty text where there are no predictions."""
        sets = Counter(found.test_set for _, found in self.kept.values()).most_common(1)
        return sets[0][0] if sets else ""

    def on(self, test_set: str) -> dict[Hashable, np.ndarray]:
        """The answers to one set of test images."""
        return {
            key: found.classes
            for key, (_, found) in self.kept.items()
            if found.test_set == test_set and found.classes is not None
        }

    def lacking(self, test_set: str) -> list[tuple[str, str]]:
        """The runs that are not compared on it, with the reason."""
        others = [run for run, found in self.kept.values() if found.test_set != test_set]
        return [*self.left_out, *((run.run.name, OTHER_IMAGES) for run in others)]

    def _leave(self, run: RunFigures, why: str) -> None:
        self.left_out.append((run.run.name, why))


def answers(groups: Sequence[Group], baseline: Group | None) -> list[Answers]:
    """Every other group against the baseline, in order; nothing without one. Reads the runs' predictions."""
    return answers_of([(group, baseline) for group in groups if baseline and group is not baseline])


def answers_of(pairs: Sequence[tuple[Group, Group]]) -> list[Answers]:
    """The same of (group, its baseline): where settings differ, not all have one and the same."""
    groups = {id(group): group for pair in pairs for group in pair}
    sides = {key: _Side(group).read() for key, group in groups.items()}
    found = [_compare(sides[id(group)], sides[id(baseline)]) for group, baseline in pairs]
    p_values = {number: one.p for number, one in enumerate(found) if one.p is not None}
    # A control claims nothing: it is tested by itself and takes no level from the others.
    alone = {number for number in p_values if pairs[number][0].is_control}
    tested = holm({number: p for number, p in p_values.items() if number not in alone}, LEVEL)
    known = {number: one.adjusted_p for number, one in tested.items()} | {n: p_values[n] for n in alone}
    levelled = [replace(one, adjusted_p=known.get(number)) for number, one in enumerate(found)]
    return [
        replace(one, sentence=_sentence(one, 1 if number in alone else len(tested)))
        for number, one in enumerate(levelled)
    ]


def content(found: Sequence[Answers]) -> list[dict[str, Any]]:
    """The same as plain values, for JSON."""
    return [asdict(one) | {"is_more": one.is_more} for one in found]


def _compare(ours: _Side, theirs: _Side) -> Answers:
    test_set = theirs.commonest() or ours.commonest()
    found = disagreement(ours.on(test_set), theirs.on(test_set))
    return Answers(
        ours.group.label,
        theirs.group.label,
        found.images or None,
        found.between,
        found.within,
        found.same_seed,
        p=found.p,
        n=found.runs,
        method=found.method,
        left_out=(*ours.lacking(test_set), *theirs.lacking(test_set)),
    )


def _sentence(one: Answers, comparisons: int) -> str:
    pair = f"{one.group} and {one.baseline}"
    if not one.is_known:
        sides = zip((one.group, one.baseline), one.n, strict=True)
        lacking = " and ".join(name for name, n in sides if not n)
        why = f"{lacking} kept no predictions to compare" if lacking else one.method.partition(": ")[2]
        if any(reason == OTHER_IMAGES for _, reason in one.left_out):
            why = "they were tested on other images"
        return f"How {pair} differ in what they answer is not known: {why}."
    share = f"of {one.images:,} test images"
    if one.between is None:
        return f"{pair} answer {_images(one.same_seed)} {share} differently, with the same seed."
    said = f"{pair} answer {_images(one.between)} {share} differently"
    if one.within is None:
        return f"{said}; what two seeds of one of them do is not known (n = {one.n[0]} and {one.n[1]})."
    return f"{said}, two seeds of one of them {_images(one.within)}: {_tested(one, comparisons)}."


def _tested(one: Answers, comparisons: int) -> str:
    runs = f"n = {one.n[0]} and {one.n[1]}"
    if one.p is None or one.adjusted_p is None:
        return f"whether that is more than seeds do takes {FEWEST} runs of each to test ({runs})"
    over = f" over {comparisons} comparisons" if comparisons > 1 else ""
    basis = f"(p = {one.adjusted_p:.2g}{over}, {runs})"
    if one.is_more:
        return f"more than seeds do {basis}"
    if comparisons * _smallest_p(*one.n) >= LEVEL:
        return f"more than seeds do is not shown, and cannot be by so few runs {basis}"
    return f"more than seeds do is not shown {basis}"


def _smallest_p(ours: int, theirs: int) -> float:
    """What the test can come to at best: the division as run, and its mirror where the sides are as large."""
    return (2 if ours == theirs else 1) / math.comb(ours + theirs, ours)


def _images(mean: float | None) -> str:
    """A mean number of images: whole from ten on."""
    return "0" if not mean else f"{mean:,.0f}" if mean >= 10 else f"{mean:.1f}"
