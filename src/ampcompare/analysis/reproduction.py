"""Assess whether one's own runs reproduce a publication.

Runs are assigned to the arms of the publication. Values are compared as ratios to the baseline; accuracies as
differences in points, and the baseline's accuracy as it is. Each value has one level, as in the report: 95%
over all values of the publication (Bonferroni). At this level a value is not reproduced if it lies outside
the prediction interval of the measured runs, and reproduced if the whole confidence interval of the
difference lies within the margin.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import PEAK
from ampcompare.analysis.grouping.run_table import ON_CPU
from ampcompare.analysis.publication_match import PublicationMatch, match_runs
from ampcompare.analysis.statistics.equivalence import PublishedEstimate, is_different, is_equivalent
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS, estimate_difference, estimate_mean
from ampcompare.analysis.statistics.multiplicity import joint_level
from ampcompare.analysis.sweep_plan import RULE
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.publications.publication import MeasurementKind, Publication, PublishedMetric
from ampcompare.runtime import formatting

REPRODUCED, REFUTED = "reproduced", "not reproduced"
OPEN = "inconclusive"
ELSEWHERE = "other hardware"
POINTS = 0.5  # margin of accuracies in points, beyond their rounding
MEASURED_ON = "measured on"
RESIDENT = "on a CPU, memory is the resident memory of the process"
BY_MACHINE = (MEASURED_ON, RESIDENT)  # reasons that concern the machine
# The headline names a number of verdicts so.
COUNTED = {
    REPRODUCED: REPRODUCED,
    REFUTED: REFUTED,
    ELSEWHERE: "on other hardware",
    OPEN: OPEN,
}


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
        arm: Name of the arm in the publication.
        relation: How the values are related to the baseline.
        printed: The text as it was printed.
        published: The published value. None if it cannot be related to the baseline.
        measured: The measured value. None if it is not recorded.
        verdict: REPRODUCED, REFUTED, OPEN or ELSEWHERE.
        why: The reason of the verdict.
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

    def __post_init__(self) -> None:
        self.sentence = f"{self.relation.label} of {display_name(self.arm)}: {self.verdict}"
        if self.why:
            self.sentence = f"{self.sentence}, {self.why}"
        self.between = ""
        if self.published is not None:
            low = self.relation.show(self.published.low)
            high = self.relation.show(self.published.high)
            self.between = f" ({low} to {high})" if low != high else ""


def assess_values(
    rows: Sequence[AssessedValue], within: float, points: float, rule: int = RULE
) -> list[AssessedValue]:
    """Return the rows with their verdicts; a row that has a reason keeps it.

    All values without such a reason are one family.

    Args:
        rows: The values without verdicts. One that cannot be tested has its reason.
        within: Margin of ratios, as a fraction.
        points: Margin of accuracies, in percentage points.
        rule: Version of the rule that decides (`sweep_plan`). Version 1 tested equivalence at 5% for each
            value.
    """
    count = sum(not row.why for row in rows)
    return [_assess(row, count, within, points, rule) for row in rows]


def _assess(row: AssessedValue, count: int, within: float, points: float, rule: int) -> AssessedValue:
    """Return one value with its verdict; `count` is the size of the family."""
    measured = row.measured
    published = row.published
    if measured is None or published is None or row.why:
        return row
    show = row.relation.show
    level = joint_level(count)
    equivalence_level = 1 - 2 * ALPHA if rule == 1 else level
    margin = math.log1p(within) if measured.log else points
    interval = formatting.between(measured.low, measured.high, show)
    values = f"measured {show(measured.value)}{interval}, published {show(published.value)}{row.between}"
    if is_equivalent(measured, published, margin, equivalence_level):
        in_points = "1 point" if points == 1 else f"{points:g} points"
        tolerance = f"{within * 100:g}%" if measured.log else in_points
        return replace(row, verdict=REPRODUCED, why=f"{values}; equal within {tolerance}")
    if is_different(measured, published, level):
        deviation = measured.value - published.value
        unit = " points"
        if measured.log:
            deviation = (measured.value / published.value - 1) * 100
            unit = "%"
        size = formatting.number(abs(deviation), 2)
        side = "above" if deviation > 0 else "below"
        return replace(row, verdict=REFUTED, why=f"{values}; {size}{unit} {side} the published value")
    return replace(row, why=values)


@dataclass
class ReproductionResult:
    """A publication, the runs of its arms, and a verdict on each of its values.

    Attributes:
        match: The runs of its arms.
        rows: The values with their verdicts.
        differences: Differences in settings, hardware and software.
        refuted: One sentence for each value that is not reproduced, with the differences.
        note: The note of the publication's file.
        headline: The verdicts in one line.
    """

    publication: Publication
    match: PublicationMatch
    rows: tuple[AssessedValue, ...]
    differences: tuple[str, ...]

    def __post_init__(self) -> None:
        self.note = self.publication.note.rstrip(".")
        tail = ""
        if self.differences:
            tail = f" Differences from the publication: {formatting.listed(self.differences)}."
        self.refuted = tuple(f"{row.sentence}.{tail}" for row in self.rows if row.verdict == REFUTED)
        self.is_refuted = bool(self.refuted)

        name = f"{self.publication.name} {self.match.scaled}".rstrip()
        counts = Counter(row.verdict for row in self.rows)
        texts = [f"{counts[verdict]} {words}" for verdict, words in COUNTED.items() if counts[verdict]]
        values = formatting.plural(len(self.rows), "published value")
        self.headline = f"{name}: the publication has charts only and no values to compare"
        if texts:
            self.headline = f"{name}: {formatting.listed(texts)} (of {values})"


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
    kind = published_metric.kind
    for arm, printed in published_metric.values.items():
        is_baseline = arm == publication.baseline
        if is_baseline and not kind.is_percentage and len(published_metric.values) > 1:
            continue
        base = None if is_baseline else published_metric.values.get(publication.baseline)
        published = None
        if kind.is_percentage or base is not None:
            published = _published_estimate(published_metric, printed, base, publication.runs)
        arms = [arm] if base is None else [arm, publication.baseline]
        groups = [match.arms[name] for name in arms if name in match.arms]
        measured = None
        if published is not None and len(groups) == len(arms):
            measured = _measured_estimate(published_metric, *groups)
        reason = _unfit(published_metric, arms, base, published, measured, match)
        yield AssessedValue(
            published_metric,
            arm,
            relation=_relation(published_metric, base),
            printed=_printed_text(published_metric, printed, base),
            published=published,
            measured=measured,
            verdict=ELSEWHERE if reason.startswith(BY_MACHINE) else OPEN,
            why=reason,
        )


def _relation(published_metric: PublishedMetric, base: PrintedValue | None) -> Relation:
    kind = published_metric.kind
    if not kind.is_percentage:
        label = f"speed-up in {kind.label}" if kind.is_time else kind.label
        return Relation(label, formatting.ratio, is_ratio=True)
    if base is None:
        return Relation(kind.label, formatting.in_percent)
    # All have the decimals that accuracies are shown with.
    return Relation(f"difference in {kind.label}", partial(formatting.signed_fixed, decimals=2))


def _printed_text(published_metric: PublishedMetric, printed: PrintedValue, base: PrintedValue | None) -> str:
    """Return the values as they were printed: `0.24 against 0.31 s`."""
    texts = [one.text for one in (printed, base) if one is not None]
    unit = "" if published_metric.unit == "fraction" else f" {published_metric.unit}"
    return f"{' against '.join(texts)}{unit}"


def _unfit(
    published_metric: PublishedMetric,
    arms: Sequence[str],
    base: PrintedValue | None,
    published: PublishedEstimate | None,
    measured: Estimate | None,
    match: PublicationMatch,
) -> str:
    """Return why the measured value is no evidence about the published one, "" if it is."""
    missing = [display_name(arm) for arm in arms if arm not in match.arms]
    if missing:
        return f"no run of {formatting.listed(missing)}"
    if published is None:
        if base is None:
            return "the publication has no value of the baseline"
        return "the published interval includes 0, so no ratio can be formed"
    kind = published_metric.kind
    if measured is None:
        return f"{kind.label} is not recorded"
    if match.scaled:
        return match.scaled
    return _unfit_runs(kind, [match.arms[arm] for arm in arms], measured, match)


def _unfit_runs(
    kind: MeasurementKind, groups: Sequence[Group], measured: Estimate, match: PublicationMatch
) -> str:
    """Return why runs in full size are no evidence about a published value, "" if they are."""
    if any(group.is_unfinished for group in groups):
        return "no run of this arm has finished"
    lengths = [text for key, text in match.deviations.items() if key in ("epochs", "max_steps")]
    if kind.is_percentage and lengths:
        return f"different training length: {formatting.listed(lengths)}"
    if not match.same_card and kind.is_time:
        return f"{MEASURED_ON} {formatting.some(match.devices, 2)}, so times are not compared"
    if not match.same_card and kind.column == PEAK and any(group.rows[ON_CPU].any() for group in groups):
        return RESIDENT
    if measured.has_interval:
        return ""
    unit = "processes" if any(group.counts_processes(kind.column) for group in groups) else "runs"
    return f"a comparison needs at least {MIN_RUNS} {unit} per arm (n = {measured.n})"


def _published_estimate(
    published_metric: PublishedMetric, printed: PrintedValue, base: PrintedValue | None, runs: int
) -> PublishedEstimate | None:
    """Return the published value relative to the baseline; None for a ratio of intervals that include 0.

    It ranges over all values that round to the printed digits.
    """
    kind = published_metric.kind
    parts = [printed] if base is None else [printed, base]
    is_ratio = base is not None and not kind.is_percentage
    if is_ratio and min(one.low for one in parts) <= 0:
        return None
    to_scale: Callable[[float], float] = math.log if is_ratio else float
    from_scale: Callable[[float], float] = math.exp if is_ratio else float

    value, low, high = map(to_scale, (printed.value, printed.low, printed.high))
    if base is not None:
        value -= to_scale(base.value)
        low -= to_scale(base.high)
        high -= to_scale(base.low)
        if kind.is_duration:  # the speed-up is the inverse of the ratio of times
            value, low, high = -value, -high, -low
    return PublishedEstimate(from_scale(value), from_scale(low), from_scale(high), runs)


def _measured_estimate(
    published_metric: PublishedMetric, group: Group, base: Group | None = None
) -> Estimate | None:
    """Return the measured value in the form of the relation.

    It is not paired by seed, because a publication shares no seeds with the own runs.
    """
    kind = published_metric.kind
    factor = 100 if kind.is_percentage else 1
    values = factor * group.sample(kind.column)
    resolution = group.metric.resolution if kind.is_percentage else 0.0
    if base is None:
        estimate = estimate_mean(values, resolution=resolution)
        largest = 100.0 if kind.is_percentage else math.inf
        return estimate and replace(estimate, bounds=(0.0, largest))
    base_values = factor * base.sample(kind.column)
    if kind.is_duration:
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
    recorded = [run.environment.get("torch") for group in match.arms.values() for run in group.records]
    versions = list(dict.fromkeys(formatting.short(str(version), 30) for version in recorded if version))
    software = publication.software
    if versions and software and not all(version in software for version in versions):
        yield f"torch {formatting.some(versions, 2)} (published {software})"
