"""What becomes of published figures: reproduced, not reproduced, or not to be told; with the reason.

Tested is whether the published figure can be one more run like ours (a prediction interval, Bonferroni over
all figures of the publication), and whether ours is equal to it within a margin (TOST).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ampcompare.published.publication import Figure
from ampcompare.report import words
from ampcompare.report.statistics.agreement import Theirs, differs, equals, more_to_tell
from ampcompare.report.statistics.estimate import ALPHA, Estimate

REPRODUCED, REFUTED, OPEN, ELSEWHERE = "reproduced", "not reproduced", "cannot be told", "other hardware"


@dataclass(frozen=True)
class Relation:
    """How a figure of an arm is related to that of the baseline: in words, how it is shown, whether as a
    ratio.
    """

    figure: str
    show: Callable[[float | None], str]
    is_ratio: bool = False


@dataclass(frozen=True)
class Row:
    """A published figure of an arm, ours beside it, and the verdict with its reason.

    `theirs` and `ours` are as `relation` says; either is None where it cannot be had. `printed` is what was
    printed, `more_runs` how many of each would tell.
    """

    figure: Figure
    arm: str
    relation: Relation
    printed: str
    theirs: Theirs | None
    ours: Estimate | None
    verdict: str = OPEN
    why: str = ""
    more_runs: int | None = None

    @property
    def between(self) -> str:
        """Between what theirs lies, in brackets; nothing where that is less than is shown."""
        if self.theirs is None:
            return ""
        low, high = map(self.relation.show, (self.theirs.low, self.theirs.high))
        return "" if low == high else f" ({low} to {high})"

    @property
    def sentence(self) -> str:
        return f"{self.relation.figure} of {self.arm}: {self.verdict}{f': {self.why}' if self.why else ''}"


def with_verdicts(rows: Sequence[Row], within: float, points: float) -> list[Row]:
    """The rows with their verdicts, ratios `within` 0.1 (10 %), others within `points`; a row that says why
    it cannot be told keeps that. All that can be tested are one family.
    """
    tested = [row for row in rows if row.ours and row.theirs and not row.why]
    count = sum(row.ours is not None and row.ours.has_interval for row in tested)
    return [_judged(row, count, within, points) if row in tested else row for row in rows]


def _judged(row: Row, count: int, within: float, points: float) -> Row:
    ours, theirs, show = row.ours, row.theirs, row.relation.show
    assert ours is not None
    assert theirs is not None
    if not ours.has_interval:
        why = f"{words.plural(ours.n, 'run')} of each is no measure of how runs vary; three are the least"
        return replace(row, why=why, more_runs=3 - ours.n)
    margin, level = math.log1p(within) if ours.log else points, 1 - ALPHA / count
    own = f"{show(ours.value)}{words.between(ours.low, ours.high, show)}"
    beside = f"here {own}, published {show(theirs.value)}{row.between}"
    if equals(ours, theirs, margin):
        same = f"{within * 100:g} %" if ours.log else f"{points:g} point{'s' if points != 1 else ''}"
        return replace(row, verdict=REPRODUCED, why=f"{beside}, the same within {same}")
    if differs(ours, theirs, level):
        return replace(row, verdict=REFUTED, why=f"{beside}, {_off(row)}")
    more = more_to_tell(ours, theirs, margin, 1 - level)
    needed = "no number of further runs would tell: what was published varies too much or ours do"
    if more is not None:
        needed = f"{words.plural(more, 'further run')} of each would tell, should ours come out as now"
    return replace(row, more_runs=more, why=f"{beside}; {needed}")


def _off(row: Row) -> str:
    """Which way ours is off theirs, and by how much: `20 % below it`."""
    assert row.ours is not None
    assert row.theirs is not None
    ours, theirs = row.ours.value, row.theirs.value
    off = f"{words.number(abs(ours - theirs), 2)} points"
    if row.ours.log:
        off = f"{words.number(abs(ours / theirs - 1) * 100, 2)} %"
    return f"{off} {'above' if ours > theirs else 'below'} it"
