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
from ampcompare.analysis.grouping.groups import Group, sample_measurement
from ampcompare.analysis.grouping.run_table import ON_CPU
from ampcompare.analysis.publication_match import PublicationMatch, match_runs
from ampcompare.analysis.statistics.equivalence import (
    PublishedEstimate,
    count_further_runs,
    is_different,
    is_equivalent,
)
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate, quantile
from ampcompare.analysis.statistics.mean_difference import combine_errors, difference, mean
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.publications.publication import Publication, PublishedMetric
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

    label: str
    show: Callable[[float], str]
    is_ratio: bool = False


@dataclass
class AssessedValue:
    """A published figure of an arm, ours beside it, and the verdict with its reason.

    `theirs` and `ours` are as `relation` says; either is None where it cannot be had. `printed` is what was
    printed, `more_runs` how many of each would tell.
    """

    figure: PublishedMetric
    arm: str
    relation: Relation
    printed: str
    published: PublishedEstimate | None
    measured: Estimate | None
    verdict: str = OPEN
    why: str = ""
    more_runs: int | None = None

    def __post_init__(self) -> None:
        self.sentence = f"{self.relation.label} of {self.arm}: {self.verdict}{self.why and ': '}{self.why}"
        # Between what theirs lies, in brackets; nothing where that is less than is shown.
        ends = dict.fromkeys(
            map(self.relation.show, (self.published.low, self.published.high) if self.published else ())
        )
        self.between = f" ({' to '.join(ends)})" if len(ends) > 1 else ""


def assess_values(rows: Sequence[AssessedValue], within: float, points: float) -> list[AssessedValue]:
    """The rows with their verdicts, ratios `within` 0.1 (10 %), others within `points`; a row that says why
    it cannot be told keeps that. All that can be tested are one family.
    """
    count = sum(
        bool(row.measured and row.measured.has_interval and row.published and not row.why) for row in rows
    )
    return [_assess(row, row.measured, row.published, count, within, points) for row in rows]


def _assess(
    row: AssessedValue,
    measured: Estimate | None,
    published: PublishedEstimate | None,
    count: int,
    within: float,
    points: float,
) -> AssessedValue:
    if measured is None or published is None or row.why:
        return row
    if not measured.has_interval:
        runs = formatting.plural(measured.n, "run")
        why = f"{runs} of each is no measure of how runs vary; three are the least"
        return replace(row, why=why, more_runs=3 - measured.n)
    margin, level, show = math.log1p(within) if measured.log else points, 1 - ALPHA / count, row.relation.show
    own = f"{show(measured.value)}{formatting.between(measured.low, measured.high, show)}"
    beside = f"here {own}, published {show(published.value)}{row.between}"
    if is_equivalent(measured, published, margin):
        same = f"{within * 100:g} %" if measured.log else f"{points:g} point{'s' if points != 1 else ''}"
        return replace(row, verdict=REPRODUCED, why=f"{beside}, the same within {same}")
    if is_different(measured, published, level):
        off = (
            (measured.value / published.value - 1) * 100 if measured.log else measured.value - published.value
        )
        size = f"{formatting.number(abs(off), 2)} {'%' if measured.log else 'points'}"
        side = "above" if off > 0 else "below"
        return replace(row, verdict=REFUTED, why=f"{beside}, {size} {side} it")
    more = count_further_runs(measured, published, margin, 1 - level)
    needed = "no number of further runs would tell: what was published varies too much or ours do"
    if more is not None:
        needed = f"{formatting.plural(more, 'further run')} of each would tell, should ours come out as now"
    return replace(row, more_runs=more, why=f"{beside}; {needed}")


@dataclass
class ReproductionResult:
    """A publication, the runs of its arms, and a verdict on each of its figures."""

    publication: Publication
    match: PublicationMatch
    rows: tuple[AssessedValue, ...]
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
        self.headline = f"{f'{self.publication.name} {self.match.scaled}'.rstrip()}: {found}"


def assess_reproduction(
    publication: Publication,
    runs: pd.DataFrame,
    metric: ComparedMetric,
    ignored: frozenset[str],
    within: float,
) -> ReproductionResult:
    """The table of runs beside the publication. `within` is the margin of ratios (0.1: 10 %); that of
    accuracies is the metric's. Raises UserError where no run is of its model, its data and one of its arms.
    """
    match = match_runs(publication, runs, metric, ignored)
    rows = [row for figure in publication.figures for row in _rows(publication, figure, match)]
    points = metric.margin if metric.is_percentage and metric.margin else POINTS
    judged = assess_values(rows, within, points)
    return ReproductionResult(publication, match, tuple(judged), tuple(_differences(publication, match)))


def _rows(
    publication: Publication, figure: PublishedMetric, match: PublicationMatch
) -> Iterator[AssessedValue]:
    """A row for each printed figure; of the baseline only where it is an accuracy, or stands alone."""
    base, kind = publication.baseline, figure.kind
    for arm, printed in figure.values.items():
        if not kind.is_percentage and arm == base and len(figure.values) > 1:
            continue
        other = None if arm == base else figure.values.get(base)
        shown = [
            one.text if one.is_rounding else formatting.number(one.value / figure.factor, 4)
            for one in (printed, other)
            if one
        ]
        unit = "" if figure.unit == "fraction" else f" {figure.unit}"
        published = (
            _published_estimate(figure, printed, other, publication.runs)
            if kind.is_percentage or other
            else None
        )
        names = [arm] if other is None else [arm, base]
        groups = [match.arms[name] for name in names if name in match.arms]
        measured = _measured_estimate(figure, *groups) if published and len(groups) == len(names) else None
        if len(groups) < len(names):
            why = f"no run of {formatting.listed(name for name in names if name not in match.arms)} here"
        elif published is None:
            reaches_0 = "its published interval reaches 0, so that there is no ratio"
            why = reaches_0 if other else "no other arm was printed to relate it to"
        else:
            why = _unfit(figure, measured, match, groups)
        verdict = ELSEWHERE if why.startswith(BY_MACHINE) else OPEN
        told = f"speed-up in {kind.label}" if kind.is_time else kind.label
        relation = Relation(told, formatting.ratio, is_ratio=True)
        if kind.is_percentage and other is None:
            relation = Relation(kind.label, formatting.in_percent)
        elif kind.is_percentage:
            relation = Relation(f"difference in {kind.label}", formatting.signed)
        yield AssessedValue(
            figure, arm, relation, " against ".join(shown) + unit, published, measured, verdict, why
        )


def _unfit(
    figure: PublishedMetric, measured: Estimate | None, match: PublicationMatch, groups: Sequence[Group]
) -> str:
    """Why ours are no evidence for a figure; nothing where they are."""
    kind, lengths = figure.kind, [v for k, v in match.deviations.items() if k in ("epochs", "max_steps")]
    if measured is None:
        return f"{kind.label} is not recorded"
    if match.scaled:
        return match.scaled
    if any(group.is_unfinished for group in groups):
        return "no run of it has finished"
    if kind.is_percentage and lengths:
        return f"another length of training: {formatting.listed(lengths)}"
    if kind.is_time and not match.same_card:
        devices = formatting.some(match.devices, 2)
        return f"{MEASURED_ON} {devices}; how fast an arm is there is another question"
    on_cpu = any(group.rows[ON_CPU].any() for group in groups)
    is_resident = figure.measured == "peak_memory" and not match.same_card and on_cpu
    return RESIDENT if is_resident else ""


def _published_estimate(
    figure: PublishedMetric, printed: PrintedValue, base: PrintedValue | None, runs: int
) -> PublishedEstimate | None:
    """The published figure related to that of the baseline: from end to end of what both may be, or, where
    both have intervals of their own, with its error, on the logarithm's scale for a ratio.
    """
    parts = [one for one in (printed, base) if one]
    is_ratio = base is not None and not figure.kind.is_percentage
    if is_ratio and min(one.low for one in parts) <= 0:
        return None
    scale, back = (math.log, math.exp) if is_ratio else (float, float)
    value, low, high = (scale(end) for end in (printed.value, printed.low, printed.high))
    if base is not None:
        other = [scale(end) for end in (base.value, base.low, base.high)]
        value, low, high = value - other[0], low - other[2], high - other[1]
        if figure.kind.is_time and figure.kind.lower_is_better:
            value, low, high = -value, -high, -low
    error, df = None, math.inf
    if not any(part.is_rounding for part in parts):
        error, df = reduce(combine_errors, [_error(scale(one.high) - scale(one.low), one) for one in parts])
        half = quantile(1 - ALPHA / 2, df) * error
        low, high = value - half, value + half
    return PublishedEstimate(back(value), back(low), back(high), parts[0].n or runs, error, df)


def _error(width: float, one: PrintedValue) -> tuple[float, float]:
    """The standard error of a figure whose printed interval is so wide, and its degrees of freedom."""
    df = one.n - 1.0 if one.n else math.inf
    return width / 2 / quantile((1 + (one.confidence or 0.0)) / 2, df), df


def _measured_estimate(figure: PublishedMetric, group: Group, base: Group | None = None) -> Estimate | None:
    """Ours as the relation says. Not paired by seed: who publishes shares neither seeds nor hours with us."""
    kind, values = figure.kind, sample_measurement(group, figure.measured)
    floor = group.metric.resolution if kind.is_percentage else 0.0
    if base is None:
        found = mean(values, resolution=floor)
        return found and replace(found, bounds=(0.0, 100.0) if kind.is_percentage else (0.0, math.inf))
    other = sample_measurement(base, figure.measured)
    if kind.is_time and kind.lower_is_better:
        values, other = other, values
    return difference(values, other, log=not kind.is_percentage, resolution=floor, paired_by="")


def _differences(publication: Publication, match: PublicationMatch) -> Iterator[str]:
    """In what setting, hardware and software are others than the published."""
    yield from match.deviations.values()
    if not match.same_card:
        hardware = publication.hardware or "not said"
        yield f"hardware {formatting.some(match.devices, 2)} (published {hardware})"
    runs = [run for group in match.arms.values() for run in group.records]
    torch = dict.fromkeys(formatting.short(str(v), 30) for run in runs if (v := run.environment.get("torch")))
    software = publication.software
    if torch and software and not all(version in software for version in torch):
        yield f"torch {formatting.some(list(torch), 2)} (published {software})"
