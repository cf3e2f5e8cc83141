"""A publication beside one's own runs: which are of its arms, each figure related to the baseline's on both
sides, and the verdicts on them.

Figures are compared as ratios to the baseline (accuracies as differences in points, that of the baseline as
it is).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ampcompare.published.printed import Printed
from ampcompare.published.publication import Figure, Publication
from ampcompare.records import RunRecord
from ampcompare.report import words
from ampcompare.report.analysis.judged import (
    ELSEWHERE,
    OPEN,
    REFUTED,
    REPRODUCED,
    Relation,
    Row,
    with_verdicts,
)
from ampcompare.report.runs.arms import Matched, Pool, match
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.measured import measured
from ampcompare.report.runs.table import environment_of, is_on_cpu
from ampcompare.report.statistics.agreement import Theirs, quantile
from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.statistics.samples import difference, mean

WITHIN = 0.1  # of a ratio: what still counts as the same
POINTS = 0.5  # the same of an accuracy, beyond its own rounding
LONGEST = 10  # characters of a printed figure that is shown as it is


SPEED = Relation("speed-up in {what}", "times as fast as {base}", words.ratio, 1)
MEMORY = Relation("peak memory", "times the memory of {base}", words.ratio, 1)
POINTS_ABOVE = Relation("difference in {what}", "points above {base}", words.signed, 0)
AS_IT_IS = Relation("{what}", "{what}, %", words.in_percent, None)


@dataclass(frozen=True)
class Reproduction:
    """A publication, the runs of its arms, and a verdict on each of its figures."""

    publication: Publication
    matched: Matched
    rows: tuple[Row, ...]
    differences: tuple[str, ...]

    @property
    def is_refuted(self) -> bool:
        """Whether a figure is not reproduced."""
        return any(row.verdict == REFUTED for row in self.rows)

    @property
    def refuted(self) -> tuple[str, ...]:
        """A sentence for each figure that is not reproduced, with what differs."""
        tail = f" What differs: {words.listed(self.differences)}." if self.differences else ""
        return tuple(f"{row.sentence}.{tail}" for row in self.rows if row.verdict == REFUTED)

    @property
    def headline(self) -> str:
        """How many figures came out how."""
        name = f"{self.publication.name} {self.matched.scaled}".rstrip()
        if not self.rows:
            return f"{name}: published as charts alone, no figure to be judged"
        said = {v: v for v in (REPRODUCED, REFUTED)} | {
            ELSEWHERE: "on other hardware",
            OPEN: "not to be told",
        }
        counts = {v: sum(row.verdict == v for row in self.rows) for v in said}
        told = [f"{n} {said[verdict]}" for verdict, n in counts.items() if n]
        return f"{name}: of {words.plural(len(self.rows), 'figure')} {words.listed(told)}"

    @property
    def note(self) -> str:
        """What its file says of it, without a full stop."""
        return self.publication.note.rstrip(".")

    @property
    def setting(self) -> str:
        """The setting of the publication in one line."""
        keys = ("model.name", "data.source", "batch_size", "epochs")
        known = self.publication.setting
        return ", ".join(f"{key} {known[key]}" for key in keys if key in known)


def set_beside(
    publication: Publication,
    runs: Sequence[RunRecord],
    pool: Pool,
    *,
    within: float = WITHIN,
    points: float = POINTS,
) -> Reproduction:
    """The runs, and what `pool` makes groups of, beside the publication. `within` is the margin of ratios
    (0.1: 10 %), `points` that of accuracies. Raises UserError where no run is of its model, its data and one
    of its arms.
    """
    matched = match(publication, runs, pool)
    rows = [row for figure in publication.figures for row in _rows(publication, figure, matched)]
    margins = [points if row.figure.kind.is_share else math.log1p(within) for row in rows]
    judged = with_verdicts(rows, margins, within, points)
    return Reproduction(publication, matched, tuple(judged), tuple(_differences(publication, matched)))


def _rows(publication: Publication, figure: Figure, matched: Matched) -> Iterator[Row]:
    """A row for each printed figure; of the baseline only where it is an accuracy, or stands alone."""
    base = publication.baseline
    is_ratio = not figure.kind.is_share
    for arm, printed in figure.values.items():
        alone = arm == base or base not in figure.values
        if is_ratio and arm == base and len(figure.values) > 1:
            continue
        relation = _relation(figure, base, alone)
        theirs = None
        if not (is_ratio and alone):
            theirs = _theirs(figure, printed, None if alone else figure.values[base], publication.runs)
        both = [printed] if alone else [printed, figure.values[base]]
        told = " against ".join(shown_as_printed(figure, one) for one in both)
        unit = "" if figure.unit == "fraction" else figure.unit
        own = matched.arms.get(arm)
        runs = f"{own.value}, {words.plural(own.n, 'run')}" if own else ""
        row = Row(figure, arm, relation, f"{told} {unit}".strip(), theirs, None, runs=runs)
        needed = (arm,) if alone else (arm, base)
        groups = [matched.arms.get(name) for name in needed]
        if missing := [name for name, group in zip(needed, groups, strict=True) if group is None]:
            yield replace(row, why=f"no run of {words.listed(missing)} here")
        elif theirs is None:
            reaches_0 = "its published interval reaches 0, so that there is no ratio"
            yield replace(row, why="no other arm was printed to relate it to" if alone else reaches_0)
        else:
            found = [group for group in groups if group]
            yield _compared(row, found[0], None if alone else found[1], matched)


def shown_as_printed(figure: Figure, one: Printed) -> str:
    """A figure as it was printed, in its unit; of more digits than anybody reads the first."""
    is_short = one.is_rounding and len(one.text) <= LONGEST
    return one.text if is_short else words.number(one.value / figure.factor, 4)


def _compared(row: Row, group: Group, base: Group | None, matched: Matched) -> Row:
    ours = _estimate(row.figure, group, base)
    row = replace(row, ours=ours)
    if ours is not None and row.theirs is not None:
        row = replace(row, theirs=row.theirs.with_interval(ours))
    kind = row.figure.kind
    runs = [one for g in (group, base) if g for _, one in g.rows.iterrows()]
    if ours is None:
        return replace(row, why=f"{kind.words} is not recorded")
    if matched.scaled:
        return replace(row, why=matched.scaled)
    if any(g.is_unfinished for g in (group, base) if g):
        return replace(row, why="no run of it has finished")
    if kind.is_share and matched.is_of_another_length:
        lengths = [text for key, text in matched.deviations.items() if key in ("epochs", "max_steps")]
        return replace(row, why=f"another length of training: {words.listed(lengths)}")
    if kind.is_time and not matched.same_card:
        where = words.some(list(matched.devices), 2)
        why = f"measured on {where}; how fast an arm is there is another question"
        return replace(row, verdict=ELSEWHERE, why=why)
    if row.figure.measured == "peak_memory" and not matched.same_card and any(map(is_on_cpu, runs)):
        return replace(row, verdict=ELSEWHERE, why="here it is the process's resident memory, on a CPU")
    return row


def _relation(figure: Figure, base: str, alone: bool) -> Relation:
    kind = figure.kind
    shape = SPEED if kind.is_time else MEMORY
    if kind.is_share:
        shape = AS_IT_IS if alone else POINTS_ABOVE
    return replace(shape, figure=shape.figure.format(what=kind.words), axis=shape.axis)


def _theirs(figure: Figure, printed: Printed, base: Printed | None, runs: int) -> Theirs | None:
    """The published figure related to that of the baseline, its rounding carried through."""
    runs = printed.n or runs
    if base is None:
        return _with_error(Theirs(printed.value, printed.low, printed.high, runs), (printed,), log=False)
    if figure.kind.is_share:
        value, low, high = printed.value - base.value, printed.low - base.high, printed.high - base.low
        return _with_error(Theirs(value, low, high, runs), (printed, base), log=False)
    if min(printed.low, base.low) <= 0:
        return None
    over, under = (base, printed) if figure.kind.is_time and figure.kind.falls else (printed, base)
    ends = over.value / under.value, over.low / under.high, over.high / under.low
    return _with_error(Theirs(*ends, runs), (printed, base), log=True)


def _with_error(theirs: Theirs, parts: Sequence[Printed], *, log: bool) -> Theirs:
    """Its error where all of it have intervals of their own: on the logarithm's scale for a ratio."""
    if any(part.confidence is None for part in parts):
        return theirs
    errors, dfs = [], []
    for part in parts:
        assert part.confidence is not None
        df = part.n - 1.0 if part.n else math.inf
        width = math.log(part.high / part.low) if log else part.high - part.low
        errors.append(width / 2 / quantile((1 + part.confidence) / 2, df))
        dfs.append(df)
    error = math.hypot(*errors)
    df = min(dfs)
    if error > 0:
        df = 1 / (sum((e / error) ** 4 / d for e, d in zip(errors, dfs, strict=True)) or 1e-9)
    return replace(theirs, error=error, df=df)


def _estimate(figure: Figure, group: Group, base: Group | None) -> Estimate | None:
    """Ours as the relation says. Not paired by seed: who publishes shares neither seeds nor hours with us."""
    values = measured(group, figure.measured)
    kind = figure.kind
    floor = max(group.floor, base.floor if base else 0.0) if kind.is_share else 0.0
    if base is None:
        found = mean(values, resolution=floor)
        return found and replace(found, bounds=(0.0, 100.0) if kind.is_share else (0.0, math.inf))
    other = measured(base, figure.measured)
    other.index = pd.Index([("baseline", key) for key in other.index], tupleize_cols=False)
    if kind.is_time and kind.falls:
        values, other = other, values
    return difference(values, other, log=not kind.is_share, resolution=floor)


def _differences(publication: Publication, matched: Matched) -> Iterator[str]:
    """In what setting, hardware and software are others than the published."""
    yield from matched.deviations.values()
    if not matched.same_card:
        theirs = publication.hardware or "not said"
        yield f"hardware {words.some(list(matched.devices), 2)} (published {theirs})"
    runs = [run for group in matched.arms.values() for run in group.records]
    torch = dict.fromkeys(words.short(str(v), 30) for run in runs if (v := environment_of(run).get("torch")))
    software = publication.software
    if torch and software and not all(version in software for version in torch):
        yield f"torch {words.some(list(torch), 2)} (published {software})"
