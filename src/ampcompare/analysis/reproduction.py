"""A publication beside one's own runs: which are of its arms, each figure related to the baseline's on both
sides, and what becomes of it: reproduced, not reproduced, or not to be told, with the reason.

Figures are compared as ratios to the baseline (accuracies as differences in points, that of the baseline as
it is). Tested is whether the published figure can be one more run like ours (a prediction interval,
Bonferroni over all figures of the publication), and whether ours is equal to it within a margin (TOST).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pandas as pd

from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group, measured
from ampcompare.analysis.grouping.run_table import ON_CPU
from ampcompare.analysis.publication_match import Matched, match
from ampcompare.analysis.statistics.equivalence import Theirs, differs, equals, more_to_tell
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate, quantile
from ampcompare.analysis.statistics.mean_difference import both_errors, difference, mean
from ampcompare.publications.printed_value import Printed
from ampcompare.publications.publication import Figure, Publication
from ampcompare.runtime import formatting

REPRODUCED, REFUTED, OPEN, ELSEWHERE = "reproduced", "not reproduced", "cannot be told", "other hardware"
WITHIN = 0.1  # of a ratio: what still counts as the same
POINTS = 0.5  # the same of an accuracy, beyond its own rounding
MEASURED_ON = "measured on"
RESIDENT = "here it is the process's resident memory, on a CPU"
BY_MACHINE = (MEASURED_ON, RESIDENT)  # why a figure is another machine's question
COUNTED = {v: v for v in (REPRODUCED, REFUTED)} | {ELSEWHERE: "on other hardware", OPEN: "not to be told"}


@dataclass(frozen=True)
class Relation:
    """How a figure of an arm is related to that of the baseline: in words, how it is shown, whether as a
    ratio.
    """

    figure: str
    show: Callable[[float], str]
    is_ratio: bool = False


@dataclass
class JudgedFigure:
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

    def __post_init__(self) -> None:
        self.sentence = f"{self.relation.figure} of {self.arm}: {self.verdict}{self.why and ': '}{self.why}"
        # Between what theirs lies, in brackets; nothing where that is less than is shown.
        ends = dict.fromkeys(
            map(self.relation.show, (self.theirs.low, self.theirs.high) if self.theirs else ())
        )
        self.between = f" ({' to '.join(ends)})" if len(ends) > 1 else ""


def with_verdicts(rows: Sequence[JudgedFigure], within: float, points: float) -> list[JudgedFigure]:
    """The rows with their verdicts, ratios `within` 0.1 (10 %), others within `points`; a row that says why
    it cannot be told keeps that. All that can be tested are one family.
    """
    count = sum(bool(row.ours and row.ours.has_interval and row.theirs and not row.why) for row in rows)
    return [_judged(row, row.ours, row.theirs, count, within, points) for row in rows]


def _judged(
    row: JudgedFigure, ours: Estimate | None, theirs: Theirs | None, count: int, within: float, points: float
) -> JudgedFigure:
    if ours is None or theirs is None or row.why:
        return row
    if not ours.has_interval:
        why = (
            f"{formatting.plural(ours.n, 'run')} of each is no measure of how runs vary; three are the least"
        )
        return replace(row, why=why, more_runs=3 - ours.n)
    margin, level, show = math.log1p(within) if ours.log else points, 1 - ALPHA / count, row.relation.show
    own = f"{show(ours.value)}{formatting.between(ours.low, ours.high, show)}"
    beside = f"here {own}, published {show(theirs.value)}{row.between}"
    if equals(ours, theirs, margin):
        same = f"{within * 100:g} %" if ours.log else f"{points:g} point{'s' if points != 1 else ''}"
        return replace(row, verdict=REPRODUCED, why=f"{beside}, the same within {same}")
    if differs(ours, theirs, level):
        off = (ours.value / theirs.value - 1) * 100 if ours.log else ours.value - theirs.value
        size = f"{formatting.number(abs(off), 2)} {'%' if ours.log else 'points'}"
        side = "above" if off > 0 else "below"
        return replace(row, verdict=REFUTED, why=f"{beside}, {size} {side} it")
    more = more_to_tell(ours, theirs, margin, 1 - level)
    needed = "no number of further runs would tell: what was published varies too much or ours do"
    if more is not None:
        needed = f"{formatting.plural(more, 'further run')} of each would tell, should ours come out as now"
    return replace(row, more_runs=more, why=f"{beside}; {needed}")


@dataclass
class Reproduction:
    """A publication, the runs of its arms, and a verdict on each of its figures."""

    publication: Publication
    matched: Matched
    rows: tuple[JudgedFigure, ...]
    differences: tuple[str, ...]

    def __post_init__(self) -> None:
        tail = f" What differs: {formatting.listed(self.differences)}." if self.differences else ""
        # A sentence for each figure that is not reproduced, with what differs.
        self.refuted = tuple(f"{row.sentence}.{tail}" for row in self.rows if row.verdict == REFUTED)
        self.is_refuted = bool(self.refuted)
        self.note = self.publication.note.rstrip(".")  # what its file says of it
        verdicts = [row.verdict for row in self.rows]
        told = [f"{n} {said}" for verdict, said in COUNTED.items() if (n := verdicts.count(verdict))]
        found = f"of {formatting.plural(len(self.rows), 'figure')} {formatting.listed(told)}"
        found = found if told else "published as charts alone, no figure to be judged"
        self.headline = f"{f'{self.publication.name} {self.matched.scaled}'.rstrip()}: {found}"


def set_beside(
    publication: Publication,
    runs: pd.DataFrame,
    metric: ComparedMetric,
    ignored: frozenset[str],
    within: float,
) -> Reproduction:
    """The table of runs beside the publication. `within` is the margin of ratios (0.1: 10 %); that of
    accuracies is the metric's. Raises UserError where no run is of its model, its data and one of its arms.
    """
    matched = match(publication, runs, metric, ignored)
    rows = [row for figure in publication.figures for row in _rows(publication, figure, matched)]
    points = metric.margin if metric.is_share and metric.margin else POINTS
    judged = with_verdicts(rows, within, points)
    return Reproduction(publication, matched, tuple(judged), tuple(_differences(publication, matched)))


def _rows(publication: Publication, figure: Figure, matched: Matched) -> Iterator[JudgedFigure]:
    """A row for each printed figure; of the baseline only where it is an accuracy, or stands alone."""
    base, kind = publication.baseline, figure.kind
    for arm, printed in figure.values.items():
        if not kind.is_share and arm == base and len(figure.values) > 1:
            continue
        other = None if arm == base else figure.values.get(base)
        shown = [
            one.text if one.is_rounding else formatting.number(one.value / figure.factor, 4)
            for one in (printed, other)
            if one
        ]
        unit = "" if figure.unit == "fraction" else f" {figure.unit}"
        theirs = _theirs(figure, printed, other, publication.runs) if kind.is_share or other else None
        names = [arm] if other is None else [arm, base]
        groups = [matched.arms[name] for name in names if name in matched.arms]
        ours = _ours(figure, *groups) if theirs and len(groups) == len(names) else None
        if len(groups) < len(names):
            why = f"no run of {formatting.listed(name for name in names if name not in matched.arms)} here"
        elif theirs is None:
            reaches_0 = "its published interval reaches 0, so that there is no ratio"
            why = reaches_0 if other else "no other arm was printed to relate it to"
        else:
            why = _unfit(figure, ours, matched, groups)
        verdict = ELSEWHERE if why.startswith(BY_MACHINE) else OPEN
        told = f"speed-up in {kind.words}" if kind.is_time else kind.words
        relation = Relation(told, formatting.ratio, is_ratio=True)
        if kind.is_share and other is None:
            relation = Relation(kind.words, formatting.in_percent)
        elif kind.is_share:
            relation = Relation(f"difference in {kind.words}", formatting.signed)
        yield JudgedFigure(figure, arm, relation, " against ".join(shown) + unit, theirs, ours, verdict, why)


def _unfit(figure: Figure, ours: Estimate | None, matched: Matched, groups: Sequence[Group]) -> str:
    """Why ours are no evidence for a figure; nothing where they are."""
    kind, lengths = figure.kind, [v for k, v in matched.deviations.items() if k in ("epochs", "max_steps")]
    if ours is None:
        return f"{kind.words} is not recorded"
    if matched.scaled:
        return matched.scaled
    if any(group.is_unfinished for group in groups):
        return "no run of it has finished"
    if kind.is_share and lengths:
        return f"another length of training: {formatting.listed(lengths)}"
    if kind.is_time and not matched.same_card:
        devices = formatting.some(matched.devices, 2)
        return f"{MEASURED_ON} {devices}; how fast an arm is there is another question"
    on_cpu = any(group.rows[ON_CPU].any() for group in groups)
    is_resident = figure.measured == "peak_memory" and not matched.same_card and on_cpu
    return RESIDENT if is_resident else ""


def _theirs(figure: Figure, printed: Printed, base: Printed | None, runs: int) -> Theirs | None:
    """The published figure related to that of the baseline: from end to end of what both may be, or, where
    both have intervals of their own, with its error, on the logarithm's scale for a ratio.
    """
    parts = [one for one in (printed, base) if one]
    is_ratio = base is not None and not figure.kind.is_share
    if is_ratio and min(one.low for one in parts) <= 0:
        return None
    scale, back = (math.log, math.exp) if is_ratio else (float, float)
    value, low, high = (scale(end) for end in (printed.value, printed.low, printed.high))
    if base is not None:
        other = [scale(end) for end in (base.value, base.low, base.high)]
        value, low, high = value - other[0], low - other[2], high - other[1]
        if figure.kind.is_time and figure.kind.falls:
            value, low, high = -value, -high, -low
    error, df = None, math.inf
    if not any(part.is_rounding for part in parts):
        error, df = reduce(both_errors, [_error(scale(one.high) - scale(one.low), one) for one in parts])
        half = quantile(1 - ALPHA / 2, df) * error
        low, high = value - half, value + half
    return Theirs(back(value), back(low), back(high), parts[0].n or runs, error, df)


def _error(width: float, one: Printed) -> tuple[float, float]:
    """The standard error of a figure whose printed interval is so wide, and its degrees of freedom."""
    df = one.n - 1.0 if one.n else math.inf
    return width / 2 / quantile((1 + (one.confidence or 0.0)) / 2, df), df


def _ours(figure: Figure, group: Group, base: Group | None = None) -> Estimate | None:
    """Ours as the relation says. Not paired by seed: who publishes shares neither seeds nor hours with us."""
    kind, values = figure.kind, measured(group, figure.measured)
    floor = group.metric.floor if kind.is_share else 0.0
    if base is None:
        found = mean(values, resolution=floor)
        return found and replace(found, bounds=(0.0, 100.0) if kind.is_share else (0.0, math.inf))
    other = measured(base, figure.measured)
    if kind.is_time and kind.falls:
        values, other = other, values
    return difference(values, other, log=not kind.is_share, resolution=floor, by="")


def _differences(publication: Publication, matched: Matched) -> Iterator[str]:
    """In what setting, hardware and software are others than the published."""
    yield from matched.deviations.values()
    if not matched.same_card:
        theirs = publication.hardware or "not said"
        yield f"hardware {formatting.some(matched.devices, 2)} (published {theirs})"
    runs = [run for group in matched.arms.values() for run in group.records]
    torch = dict.fromkeys(formatting.short(str(v), 30) for run in runs if (v := run.environment.get("torch")))
    software = publication.software
    if torch and software and not all(version in software for version in torch):
        yield f"torch {formatting.some(list(torch), 2)} (published {software})"
