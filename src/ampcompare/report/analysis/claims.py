"""What is claimed of the compared groups, tested together: each question is a family that errs in 5 %.

A claim prints the interval that it was tested with, at the level at which it was: that of several groups is
wider than 95 %, so that all of a page hold together, the headline's own choice of the fastest included.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from ampcompare.report.statistics.estimate import Estimate, equivalence
from ampcompare.report.statistics.family import Tested, holm
from ampcompare.report.statistics.looks import level_of
from ampcompare.report.statistics.power import more_seeds

ALPHA = 0.05
RATIOS = ("speed", "memory", "energy", "time")  # attributes of Comparison; without a change they are 1
EQUIVALENCE = "equivalence"
QUESTIONS = (*RATIOS, "quality", EQUIVALENCE)


@dataclass(frozen=True)
class Claim:
    """One question of one group: `estimate` is at the level at which it was tested.

    For a ratio or the difference of quality, `rejected` says that a change is shown: the interval leaves out
    1, or 0. For "equivalence" it says that the difference is within the margin: the interval at 1 - 2 `level`
    lies within it, as both one-sided tests at `level` reject. `adjusted_p` is that within the family. Of an
    interval that is not Student's there is no p: it stands for itself, at its own level.
    `more_seeds` is how many further seeds would decide it, None where it is decided or cannot be told.
    """

    question: str
    estimate: Estimate
    level: float
    p: float | None
    adjusted_p: float | None
    rejected: bool
    more_seeds: int | None = None

    @property
    def null(self) -> float:
        """The value of no change."""
        return null_of(self.question)

    @property
    def is_above(self) -> bool:
        """Whether the figure is shown to be above that of no change."""
        return self.rejected and self.question != EQUIVALENCE and self.estimate.value > self.null

    @property
    def is_below(self) -> bool:
        """Whether it is shown to be below."""
        return self.rejected and self.question != EQUIVALENCE and self.estimate.value < self.null


Claims = Mapping[str, Claim]  # by question


@dataclass(frozen=True)
class Levels:
    """The levels of a family of two-sided tests, and of one side of the tests of equivalence."""

    two_sided: float = ALPHA
    one_sided: float = ALPHA


def levels_of(looks: Sequence[int]) -> Levels:
    """Those that keep 5 % over all planned looks; without looks the plain 5 %."""
    if len(looks) < 2:
        return Levels()
    return Levels(level_of(looks, two_sided=True), level_of(looks, two_sided=False))


def claims_of(
    samples: Sequence[Mapping[str, Estimate]],
    margin: float | None,
    levels: Levels,
    barred: Collection[int] = (),
) -> list[Claims]:
    """The claims of each compared group, in order: of every question one family, by Holm (1979).

    `samples` are the estimates of each group by question (those of QUESTIONS but for equivalence, which is
    tested of the quality's difference wherever there is a `margin`). `barred` are the places of groups that
    can never be equivalent.
    """
    found: list[dict[str, Claim]] = [{} for _ in samples]
    for question in QUESTIONS:
        one_sided = question == EQUIVALENCE
        estimates = {
            place: estimate
            for place, one in enumerate(samples)
            if (estimate := one.get("quality" if one_sided else question)) is not None
            and not (one_sided and place in barred)
        }
        p_values: dict[Hashable, float] = {
            place: p for place, e in estimates.items() if (p := _p_of(question, e, margin)) is not None
        }
        tested = holm(p_values, levels.one_sided if one_sided else levels.two_sided)
        for place, estimate in estimates.items():
            if place in tested:
                found[place][question] = _claim(question, estimate, p_values[place], tested[place], margin)
            elif estimate.low is not None and estimate.high is not None and not one_sided:
                shown = not estimate.low <= null_of(question) <= estimate.high
                level = 1 - estimate.confidence
                found[place][question] = Claim(question, estimate, level, None, None, shown)
    return list(found)


def _p_of(question: str, estimate: Estimate, margin: float | None) -> float | None:
    if question != EQUIVALENCE:
        return estimate.p_of(null_of(question))
    test = None if margin is None else equivalence(estimate, margin)
    return None if test is None else test.p


def _claim(question: str, estimate: Estimate, p: float, test: Tested, margin: float | None) -> Claim:
    one_sided = question == EQUIVALENCE
    wanted = {"margin": margin} if one_sided else {"null": null_of(question)}
    return Claim(
        question,
        estimate.at(1 - 2 * test.level if one_sided else 1 - test.level),
        test.level,
        p,
        test.adjusted_p,
        test.rejected,
        None if test.rejected else more_seeds(estimate, level=test.level, **wanted),
    )


def null_of(question: str) -> float:
    """The value of no change: of a ratio 1, of a difference 0."""
    return 1.0 if question in RATIOS else 0.0
