"""What becomes of published figures: reproduced, not reproduced, or not to be told; with the reason.

Tested is whether the published figure can be one more run like ours (a prediction interval, Bonferroni over
all figures of the publication), and whether ours is equal to it within a margin (TOST).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ampcompare.published.publication import Figure
from ampcompare.report import words
from ampcompare.report.statistics.agreement import Theirs, more_to_tell, p_differs, p_equal
from ampcompare.report.statistics.estimate import ALPHA, Estimate

REPRODUCED, REFUTED, OPEN, ELSEWHERE = "reproduced", "not reproduced", "cannot be told", "other hardware"


@dataclass(frozen=True)
class Relation:
    """How a figure of an arm is related to that of the baseline, in words and to be shown."""

    figure: str
    axis: str
    show: Callable[[float | None], str]
    neutral: float | None


@dataclass(frozen=True)
class Row:
    """A published figure of an arm, ours beside it, and the verdict with its reason.

    `theirs` and `ours` are as `relation` says; either is None where it cannot be had. `p` is that of the test
    that theirs is one more of ours, `adjusted_p` that within all figures. `printed` is what was printed,
    `runs` which of ours are of the arm.
    """

    figure: Figure
    arm: str
    relation: Relation
    printed: str
    theirs: Theirs | None
    ours: Estimate | None
    verdict: str = OPEN
    why: str = ""
    p: float | None = None
    adjusted_p: float | None = None
    more_runs: int | None = None
    runs: str = ""

    @property
    def between(self) -> str:
        """Between what theirs lies, in brackets; nothing where that is less than is shown."""
        return "" if self.theirs is None else _ends_of(self.theirs, self.relation.show)

    @property
    def sentence(self) -> str:
        """The verdict in words, with the figure that it is of."""
        return f"{self.relation.figure} of {self.arm}: {self.verdict}{f': {self.why}' if self.why else ''}"


def with_verdicts(rows: Sequence[Row], margins: Sequence[float], within: float, points: float) -> list[Row]:
    """The rows with their verdicts; all that can be tested are one family."""
    tested = {
        number: (row.ours, row.theirs)
        for number, row in enumerate(rows)
        if row.ours and row.theirs and not row.why
    }
    p_values = {n: p for n, (ours, theirs) in tested.items() if (p := p_differs(ours, theirs)) is not None}
    level = ALPHA / max(1, len(p_values))
    found = list(rows)
    for number, (ours, theirs) in tested.items():
        row, margin = rows[number], margins[number]
        same = (
            f"within {within * 100:g} %"
            if ours.log
            else f"within {points:g} point{'s' if points != 1 else ''}"
        )
        equal = p_equal(ours, theirs, margin)
        if number not in p_values or equal is None:
            why = f"{words.plural(ours.n, 'run')} of each is no measure of how runs vary; three are the least"
            found[number] = replace(row, why=why, more_runs=3 - ours.n)
            continue
        p, adjusted = p_values[number], min(1.0, p_values[number] * len(p_values))
        row = replace(row, p=p, adjusted_p=adjusted)
        if equal < ALPHA:
            found[number] = replace(row, verdict=REPRODUCED, why=f"{_beside(row)}, the same {same}")
        elif p < level:
            why = f"{_beside(row)}, {_amount(row)}, p = {_p(adjusted)} over all figures"
            found[number] = replace(row, verdict=REFUTED, why=why)
        else:
            more = more_to_tell(ours, theirs, margin, level)
            found[number] = replace(row, more_runs=more, why=f"{_beside(row)}; {_needed(more)}")
    return found


def _beside(row: Row) -> str:
    show, ours, theirs = row.relation.show, row.ours, row.theirs
    assert ours is not None
    assert theirs is not None
    own = f"{show(ours.value)}{words.between(ours.low, ours.high, show)}"
    return f"here {own}, published {show(theirs.value)}{_ends_of(theirs, show)}"


def _ends_of(theirs: Theirs, show: Callable[[float | None], str]) -> str:
    """Between what a published figure lies, in brackets; nothing where that is less than is shown."""
    if show(theirs.low) == show(theirs.high):
        return ""
    return f" ({show(theirs.low)} to {show(theirs.high)})"


def _amount(row: Row) -> str:
    """Which way ours is off theirs, and by how much: `20 % below`."""
    assert row.ours is not None
    assert row.theirs is not None
    ours, theirs = row.ours.value, row.theirs.value
    if row.ours.log:
        off = f"{words.number(abs(ours / theirs - 1) * 100, 2)} %" if theirs else "far"
    else:
        off = f"{words.number(abs(ours - theirs), 2)} points"
    return f"{off} {'above' if ours > theirs else 'below'} it"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.0001 else "below 0.0001"


def _needed(more: int | None) -> str:
    if more is None:
        return "no number of further runs would tell: what was published varies too much or ours do"
    return f"{words.plural(more, 'further run')} of each would tell, should ours come out as now"
