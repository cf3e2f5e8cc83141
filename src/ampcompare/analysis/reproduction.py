"""Assess whether one's own runs reproduce a publication.

Runs are assigned to the arms of the publication. Values are compared as ratios to the baseline; accuracies as
differences in points, and the baseline's accuracy as it is. Each value has one level, as in the report: 95%
over all values of the publication (Bonferroni). At this level a value is not reproduced if it lies outside
the prediction interval of the measured runs, and reproduced if the whole confidence interval of the
difference lies within the margin.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pandas as pd

from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group, sample_measurement
from ampcompare.analysis.grouping.run_table import ON_CPU
from ampcompare.analysis.publication_match import PublicationMatch, match_runs
from ampcompare.analysis.statistics.equivalence import (
    PublishedEstimate,
    forecast_further_runs,
    is_different,
    is_equivalent,
)
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate, quantile
from ampcompare.analysis.statistics.mean_difference import combine_errors, estimate_difference, estimate_mean
from ampcompare.analysis.statistics.multiplicity import joint_level
from ampcompare.analysis.sweep_plan import RULE
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.publications.publication import Publication, PublishedMetric
from ampcompare.runtime import formatting

REPRODUCED, REFUTED, OPEN, ELSEWHERE = "reproduced", "not reproduced", "inconclusive", "other hardware"
POINTS = 0.5  # margin of accuracies in points, beyond their rounding
MEASURED_ON = "measured on"
RESIDENT = "on a CPU, memory is the resident memory of the process"
BY_MACHINE = (MEASURED_ON, RESIDENT)  # reasons that concern the machine
COUNTED = {v: v for v in (REPRODUCED, REFUTED)} | {ELSEWHERE: "on other hardware", OPEN: OPEN}


@dataclass(frozen=True)
class Relation:
    """How a value of an arm is related to that of the baseline.

    Attributes:
        label: The relation in words.
        show: How a number is written.
        is_ratio: Whether it is a ratio.
    """

    label: str
    show: Callable[[float], str]
    is_ratio: bool = False


@dataclass
class AssessedValue:
    """A published value of an arm, the measured value, and the verdict with its reason.

    Attributes:
        published_metric: The published metric.
        arm: Name of the arm.
        relation: How the values are related to the baseline.
        printed: The text as it was printed.
        published: The published value. None if it cannot be related to the baseline.
        measured: The measured value. None if it is not recorded.
        verdict: REPRODUCED, REFUTED, OPEN or ELSEWHERE.
        why: The reason of the verdict.
        more_runs: How many more runs per arm would decide: the lowest and the highest number.
        sentence: The verdict as a sentence.
        between: The published interval in brackets, "" if it is narrower than what is shown.
    """

    published_metric: PublishedMetric
    arm: str
    relation: Relation
    printed: str
    published: PublishedEstimate | None
    measured: Estimate | None
    verdict: str = OPEN
    why: str = ""
    more_runs: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.sentence = (
            f"{self.relation.label} of {display_name(self.arm)}: {self.verdict}{self.why and ', '}{self.why}"
        )

        ends = dict.fromkeys(
            map(self.relation.show, (self.published.low, self.published.high) if self.published else ())
        )
        self.between = f" ({' to '.join(ends)})" if len(ends) > 1 else ""


def assess_values(
    rows: Sequence[AssessedValue], within: float, points: float, rule: int = RULE
) -> list[AssessedValue]:
    """Return the rows with their verdicts; a row that has a reason keeps it.

    All values that can be tested are one family.

    Args:
        rows: The values without verdicts.
        within: Margin of ratios, as a fraction.
        points: Margin of accuracies, in percentage points.
        rule: Version of the rule that decides (`sweep_plan`). Version 1 tested equivalence at 5% for each
            value.
    """
    count = sum(
        bool(row.measured and row.measured.has_interval and row.published and not row.why) for row in rows
    )
    return [_assess(row, row.measured, row.published, count, within, points, rule) for row in rows]


def _assess(
    row: AssessedValue,
    measured: Estimate | None,
    published: PublishedEstimate | None,
    count: int,
    within: float,
    points: float,
    rule: int,
) -> AssessedValue:
    """Return one value with its verdict; `count` is the size of the family."""
    if measured is None or published is None or row.why:
        return row
    if not measured.has_interval:
        why = f"a comparison needs at least 3 runs per arm (n = {measured.n})"
        missing = 3 - measured.n
        return replace(row, why=why, more_runs=(missing, missing))
    margin, show = math.log1p(within) if measured.log else points, row.relation.show
    level = joint_level(count)
    equivalence_level = 1 - 2 * ALPHA if rule == 1 else level
    own_text = f"{show(measured.value)}{formatting.between(measured.low, measured.high, show)}"
    both_texts = f"measured {own_text}, published {show(published.value)}{row.between}"
    if is_equivalent(measured, published, margin, equivalence_level):
        margin_text = (
            f"{within * 100:g}%" if measured.log else f"{points:g} point{'s' if points != 1 else ''}"
        )
        return replace(row, verdict=REPRODUCED, why=f"{both_texts}; equal within {margin_text}")
    if is_different(measured, published, level):
        deviation = (
            (measured.value / published.value - 1) * 100 if measured.log else measured.value - published.value
        )
        size = f"{formatting.number(abs(deviation), 2)}{'%' if measured.log else ' points'}"
        side = "above" if deviation > 0 else "below"
        return replace(row, verdict=REFUTED, why=f"{both_texts}; {size} {side} the published value")
    further_runs = forecast_further_runs(measured, published, margin, level)
    needed = "the published or the measured values vary too much to say how many more runs would decide"
    if further_runs is not None:
        needed = f"about {formatting.count_range(*further_runs)} more runs per arm would decide"
    return replace(row, more_runs=further_runs, why=f"{both_texts}; {needed}")


@dataclass
class ReproductionResult:
    """A publication, the runs of its arms, and a verdict on each of its values.

    Attributes:
        publication: The publication.
        match: The runs of its arms.
        rows: The values with their verdicts.
        differences: Differences in settings, hardware and software.
        refuted: One sentence for each value that is not reproduced, with the differences.
        is_refuted: Whether a value is not reproduced.
        note: The note of the publication's file.
        headline: The verdicts in one line.
    """

    publication: Publication
    match: PublicationMatch
    rows: tuple[AssessedValue, ...]
    differences: tuple[str, ...]

    def __post_init__(self) -> None:
        tail = (
            f" Differences from the publication: {formatting.listed(self.differences)}."
            if self.differences
            else ""
        )

        self.refuted = tuple(f"{row.sentence}.{tail}" for row in self.rows if row.verdict == REFUTED)
        self.is_refuted = bool(self.refuted)
        self.note = self.publication.note.rstrip(".")
        verdicts = [row.verdict for row in self.rows]
        counts = [f"{n} {word}" for verdict, word in COUNTED.items() if (n := verdicts.count(verdict))]
        summary = f"{formatting.listed(counts)} (of {formatting.plural(len(self.rows), 'published value')})"
        summary = summary if counts else "the publication has charts only and no values to compare"
        self.headline = f"{f'{self.publication.name} {self.match.scaled}'.rstrip()}: {summary}"


def assess_reproduction(
    publication: Publication,
    runs: pd.DataFrame,
    metric: ComparedMetric,
    ignored: frozenset[str],
    within: float,
    rule: int = RULE,
) -> ReproductionResult:
    """Assess whether the runs reproduce a publication.

    Args:
        publication: The publication.
        runs: The table of runs.
        metric: The compared metric. Its margin is that of accuracies.
        ignored: Settings that may differ within a group.
        within: The margin of ratios, as a fraction.
        rule: Version of the rule that decides.

    Raises:
        UserError: No run has the model, the data and an arm of the publication.
    """
    match = match_runs(publication, runs, metric, ignored)
    rows = [
        row for published_metric in publication.figures for row in _rows(publication, published_metric, match)
    ]
    points = metric.margin if metric.is_percentage and metric.margin else POINTS
    assessed = assess_values(rows, within, points, rule)
    return ReproductionResult(publication, match, tuple(assessed), tuple(_differences(publication, match)))


def _rows(
    publication: Publication, published_metric: PublishedMetric, match: PublicationMatch
) -> Iterator[AssessedValue]:
    """Yield a row for each published value; for the baseline only accuracies, and values that stand alone."""
    base, kind = publication.baseline, published_metric.kind
    for arm, printed in published_metric.values.items():
        if not kind.is_percentage and arm == base and len(published_metric.values) > 1:
            continue
        base_printed = None if arm == base else published_metric.values.get(base)
        texts = [
            one.text if one.is_rounding else formatting.number(one.value / published_metric.factor, 4)
            for one in (printed, base_printed)
            if one
        ]
        unit = "" if published_metric.unit == "fraction" else f" {published_metric.unit}"
        published = (
            _published_estimate(published_metric, printed, base_printed, publication.runs)
            if kind.is_percentage or base_printed
            else None
        )
        names = [arm] if base_printed is None else [arm, base]
        groups = [match.arms[name] for name in names if name in match.arms]
        measured = (
            _measured_estimate(published_metric, *groups) if published and len(groups) == len(names) else None
        )
        if len(groups) < len(names):
            missing = [display_name(name) for name in names if name not in match.arms]
            why = f"no run of {formatting.listed(missing)}"
        elif published is None:
            no_ratio = "the published interval includes 0, so no ratio can be formed"
            why = no_ratio if base_printed else "the publication has no value of the baseline"
        else:
            why = _unfit(published_metric, measured, match, groups)
        verdict = ELSEWHERE if why.startswith(BY_MACHINE) else OPEN
        label = f"speed-up in {kind.label}" if kind.is_time else kind.label
        relation = Relation(label, formatting.ratio, is_ratio=True)
        if kind.is_percentage and base_printed is None:
            relation = Relation(kind.label, formatting.in_percent)
        elif kind.is_percentage:
            relation = Relation(f"difference in {kind.label}", formatting.signed)
        yield AssessedValue(
            published_metric, arm, relation, " against ".join(texts) + unit, published, measured, verdict, why
        )


def _unfit(
    published_metric: PublishedMetric,
    measured: Estimate | None,
    match: PublicationMatch,
    groups: Sequence[Group],
) -> str:
    """Return why the measured value is no evidence about the published one, "" if it is."""
    kind = published_metric.kind
    lengths = [v for k, v in match.deviations.items() if k in ("epochs", "max_steps")]
    if measured is None:
        return f"{kind.label} is not recorded"
    if match.scaled:
        return match.scaled
    if any(group.is_unfinished for group in groups):
        return "no run of this arm has finished"
    if kind.is_percentage and lengths:
        return f"different training length: {formatting.listed(lengths)}"
    if kind.is_time and not match.same_card:
        devices = formatting.some(match.devices, 2)
        return f"{MEASURED_ON} {devices}, so times are not compared"
    on_cpu = any(group.rows[ON_CPU].any() for group in groups)
    is_resident = published_metric.measured == "peak_memory" and not match.same_card and on_cpu
    return RESIDENT if is_resident else ""


def _published_estimate(
    published_metric: PublishedMetric, printed: PrintedValue, base: PrintedValue | None, runs: int
) -> PublishedEstimate | None:
    """Return the published value relative to the baseline.

    Without intervals, it ranges over all values that round to the printed digits. If both values have an
    interval, it has a standard error, on the logarithmic scale for a ratio.
    """
    parts = [one for one in (printed, base) if one]
    is_ratio = base is not None and not published_metric.kind.is_percentage
    if is_ratio and min(one.low for one in parts) <= 0:
        return None
    to_scale, from_scale = (math.log, math.exp) if is_ratio else (float, float)
    value, low, high = (to_scale(end) for end in (printed.value, printed.low, printed.high))
    if base is not None:
        base_ends = [to_scale(end) for end in (base.value, base.low, base.high)]
        value, low, high = value - base_ends[0], low - base_ends[2], high - base_ends[1]
        if published_metric.kind.is_time and published_metric.kind.lower_is_better:
            value, low, high = -value, -high, -low
    error, df = None, math.inf
    if not any(part.is_rounding for part in parts):
        error, df = reduce(
            combine_errors, [_error(to_scale(one.high) - to_scale(one.low), one) for one in parts]
        )
        half_width = quantile(1 - ALPHA / 2, df) * error
        low, high = value - half_width, value + half_width
    return PublishedEstimate(
        from_scale(value), from_scale(low), from_scale(high), parts[0].n or runs, error, df
    )


def _error(width: float, one: PrintedValue) -> tuple[float, float]:
    """Return the standard error of a value with an interval of this width, and its degrees of freedom."""
    df = one.n - 1.0 if one.n else math.inf
    return width / 2 / quantile((1 + (one.confidence or 0.0)) / 2, df), df


def _measured_estimate(
    published_metric: PublishedMetric, group: Group, base: Group | None = None
) -> Estimate | None:
    """Return the measured value in the form of the relation.

    It is not paired by seed, because a publication shares no seeds with the own runs.
    """
    kind, values = published_metric.kind, sample_measurement(group, published_metric.measured)
    resolution = group.metric.resolution if kind.is_percentage else 0.0
    if base is None:
        estimate = estimate_mean(values, resolution=resolution)
        return estimate and replace(estimate, bounds=(0.0, 100.0) if kind.is_percentage else (0.0, math.inf))
    base_values = sample_measurement(base, published_metric.measured)
    if kind.is_time and kind.lower_is_better:
        values, base_values = base_values, values
    return estimate_difference(
        values, base_values, log=not kind.is_percentage, resolution=resolution, paired_by=""
    )


def _differences(publication: Publication, match: PublicationMatch) -> Iterator[str]:
    """Yield the settings, hardware and software that differ from the publication."""
    yield from match.deviations.values()
    if not match.same_card:
        hardware = publication.hardware or "not stated"
        yield f"hardware {formatting.some(match.devices, 2)} (published {hardware})"
    runs = [run for group in match.arms.values() for run in group.records]
    torch = dict.fromkeys(formatting.short(str(v), 30) for run in runs if (v := run.environment.get("torch")))
    software = publication.software
    if torch and software and not all(version in software for version in torch):
        yield f"torch {formatting.some(list(torch), 2)} (published {software})"
