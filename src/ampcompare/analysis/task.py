"""What is compared: the runs under one vocabulary, and every question about them answered once.

Runs of ours are read as they record themselves, those of other programs as the user describes them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.inferred_grouping import Grouping, group_external, group_own
from ampcompare.analysis.external.key_mapping import (
    MEMORY,
    THROUGHPUT,
    TIME,
    TIME_UNITS,
    UNITS,
    KeyMapping,
    apply_mappings,
    counts_rows,
    describe_growth,
    parse_key_mapping,
    with_clock,
)
from ampcompare.analysis.external.metric_choice import choose_external_metric, choose_own_metric
from ampcompare.analysis.external.row_kinds import apply_conditions, ask_about_kinds, parse_condition
from ampcompare.analysis.grouping.compared_metric import (
    OWN,
    SAMPLES,
    ComparedMetric,
    Quantities,
)
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND
from ampcompare.analysis.grouping.logged_keys import finite_values, is_logged
from ampcompare.analysis.grouping.unevaluated_values import (
    interleaved_placeholder,
    negative_placeholder,
    without_value,
)
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.analysis.sweep_plan import Plan, read_plan
from ampcompare.data import sources
from ampcompare.errors import UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.nested import as_text
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP, STEP_KEYS
from ampcompare.runtime.formatting import listed, plural, printable

OWN_KEYS = {
    metrics.THROUGHPUT,
    metrics.THROUGHPUT_MEDIAN,
    metrics.ELAPSED,
    metrics.TRAIN_SECONDS,
    metrics.PEAK_MEMORY,
    metrics.ENVIRONMENT,
}
DEVICE = "device"  # `--ignore device`: the runs had one device, although no record says so
ONE_DEVICE = "one device (--ignore device)"


@dataclass
class Task:
    """The runs under our names, and what they are compared by.

    Attributes:
        runs: The runs. Those of other programs have our names beside their own.
        metric: The compared quality, with margin and target.
        grouping: What distinguishes the runs.
        plan: The plan of the runs, for this metric.
        quantities: The units of throughput and memory, and what counts steps.
        notes: How the runs were read.
        doubts: Doubts about how they were read.
        is_own: Whether this program trained all of the runs, so that its sweeps can add more.
        is_of_our_programs: Whether this program or its Recorder wrote the records.
    """

    runs: list[RunRecord]
    metric: ComparedMetric
    grouping: Grouping
    plan: Plan = Plan()
    quantities: Quantities = OWN
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    is_own: bool = True
    is_of_our_programs: bool = True


def resolve_task(runs: Sequence[RunRecord], options: AnalysisOptions) -> Task:
    """Return what is compared, from the options, the plan of the runs and what their records declare.

    Raises:
        MissingInput: Runs of other programs lack information and the user did not give it.
        UserError: An option names something that no run has.
    """
    task = _read_own(runs, options) if _are_own(runs) else _read_external(runs, options)
    _drop_placeholders(task)
    metric = task.metric
    task.plan = read_plan(runs).for_metric(metric, _planned_metric(runs, options) or metric)
    margin = metric.margin
    if options.margin is None and task.plan.margin is not None:
        margin = task.plan.margin
    target = options.target
    if target is not None and metric.is_percentage and not 0 < metric.as_shown(target) <= 100:
        raise UserError(
            f"--target {target:g}: expected a value of {metric.name} between 0% and 100%, such as 0.93 or 93"
        )
    target = task.plan.target if target is None else target
    shown = None if target is None else metric.as_shown(target)
    task.metric = replace(metric, margin=margin, target=shown, is_best=options.best)
    return task


def _planned_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> ComparedMetric | None:
    """Return the metric that these runs are compared by if the user names none.

    Returns:
        The metric, in the unit in which it is then shown. None if the user names none, or has to.
    """
    if options.metric is None:
        return None
    unnamed = replace(options, metric=None, margin=None)
    choose = choose_own_metric if _are_own(runs) else choose_external_metric
    try:
        planned = choose(runs, unnamed)
    except UserError:
        return None
    return planned if is_logged(planned.key, runs) else None


def _read_own(runs: Sequence[RunRecord], options: AnalysisOptions) -> Task:
    if options.where:
        raise UserError(
            f"--where {options.where[0]!r}: these runs are of AMP Compare or its Recorder, whose keys have "
            "one meaning; leave it out"
        )
    mappings = _measures(runs, options)
    metric = choose_own_metric(runs, options)
    grouping = group_own(runs, options)
    units = Quantities(speed=SAMPLES) if all(map(_has_other_data, runs)) else OWN
    notes = [f"read {mapping.text}" for mapping in mappings]
    if metric.goal and not metric.is_accuracy:  # the direction of an accuracy is obvious
        notes.append(f"{metric.name}: {metric.better} is better")
    return Task(
        apply_mappings(runs, mappings),
        metric,
        grouping,
        quantities=_quantities(units, mappings),
        notes=notes,
        doubts=grouping.doubts,
        is_own=not any(run.is_recorded for run in runs),
    )


def _read_external(runs: Sequence[RunRecord], options: AnalysisOptions) -> Task:
    conditions = [parse_condition(text, runs) for text in options.where]
    chosen = apply_conditions(runs, conditions)
    grouping, metric, mappings = _answers(chosen, options)
    speeds = [one.key for one in mappings if one.role != MEMORY and not one.is_cumulative]
    questions, arguments = ask_about_kinds(runs, [metric.key, *speeds], metric.key, conditions)
    if questions:
        raise MissingInput(questions, arguments)

    steps = [_step_key(run, metric.key) for run in chosen]
    clocked = [with_clock(run, step) for run, step in zip(chosen, steps, strict=True)]
    mapped = apply_mappings(_with_machines(clocked, DEVICE in options.ignore), mappings)
    units = Quantities("", "", step=_step_unit(mapped, steps))

    choice = "best" if options.best else "last"
    parts = [f"the {choice} {printable(metric.key)} ({metric.better} is better) as the metric"]
    parts += [mapping.text for mapping in mappings]
    notes = [f"read {listed(parts)}"]
    if conditions:
        notes.append(f"rows chosen by --where {listed(printable(one.text) for one in conditions)}")
    return Task(
        mapped,
        metric,
        grouping,
        quantities=_quantities(units, mappings),
        notes=notes,
        doubts=[*grouping.doubts, *(line for one in mappings for line in describe_growth(one, chosen))],
        is_own=False,
        is_of_our_programs=False,
    )


def _answers(
    runs: Sequence[RunRecord], options: AnalysisOptions
) -> tuple[Grouping, ComparedMetric, list[KeyMapping]]:
    """Return what distinguishes the runs, what they are compared by, and the named measures.

    Raises:
        MissingInput: The user has to name some of them: all questions are asked at once.
    """
    answers: list[Any] = []
    questions: list[str] = []
    arguments: list[str] = []
    arms: list[str] = []
    for answer in (group_external, choose_external_metric, _measures):
        try:
            answers.append(answer(runs, options))
        except MissingInput as missing:
            questions += missing.questions
            arguments += missing.arguments
            arms += missing.arms
    if questions:
        raise MissingInput(questions, arguments, arms)
    grouping, metric, mappings = answers
    return grouping, metric, mappings


def _measures(runs: Sequence[RunRecord], options: AnalysisOptions) -> list[KeyMapping]:
    if options.throughput and options.time:
        raise UserError("--time: cannot be combined with --throughput; use one of the two")
    named = {THROUGHPUT: options.throughput, TIME: options.time, MEMORY: options.memory}
    return [parse_key_mapping(role, text, runs) for role, text in named.items() if text]


def _quantities(quantities: Quantities, mappings: Sequence[KeyMapping]) -> Quantities:
    """Return the units, with those of the keys that the user named."""
    for mapping in mappings:
        if mapping.role == MEMORY:
            quantities = replace(quantities, memory=mapping.shown_unit)
        elif mapping.is_cumulative:
            counted = quantities.step if quantities.step in ("epoch", "row") else "step"
            time = "s per epoch" if counted == "epoch" else ""  # an epoch takes longer than a second
            quantities = replace(quantities, speed=f"{counted}s/s", time=time)
        elif mapping.role == TIME:
            quantities = replace(
                quantities,
                speed=mapping.shown_unit,
                time=f"{TIME_UNITS[mapping.unit]} ({printable(mapping.key)})",
                times_per_second=1 / UNITS[TIME][mapping.unit],
            )
        else:
            quantities = replace(quantities, speed=mapping.shown_unit)
    return quantities


def _are_own(runs: Sequence[RunRecord]) -> bool:
    """Return whether this program recorded the runs.

    A run of ours names a backend, which other programs do as well. It also logs under our names, or records
    what it ran on. If all runs ended before that, the backend must be one of ours.
    """
    if not any(run.rows or OWN_KEYS & run.summary.keys() for run in runs):
        return any(as_text(run.option(BACKEND)) in REGISTRY for run in runs)
    named = [run for run in runs if isinstance(backend := run.option(BACKEND), str) and backend.strip()]
    return any(OWN_KEYS & {*run.logged, *run.summary} for run in named)


def _has_other_data(run: RunRecord) -> bool:
    """Return whether the data set is unknown to us, so that its samples need not be images."""
    source = run.option("data.source")
    is_named = isinstance(source, str) and bool(source)
    return source not in sources.SOURCES if is_named else run.is_recorded


def _step_key(run: RunRecord, metric: str) -> str:
    """Return the key that counts the steps of a run.

    It is the step that `define_metric` declares for the metric, else the step by the formats' own names, else
    W&B's own step.
    """
    declared = definition_of(metric, run.definitions).step
    if declared and len(run.values(declared)):
        return declared
    return next((key for key in STEP_KEYS if len(run.values(key)) > 1), OWN_STEP)


def _step_unit(runs: Sequence[RunRecord], steps: Sequence[str]) -> str:
    """Return what a step is called in the charts. A table without a step counts epochs."""
    pairs = [(run.numbers(metrics.STEP), run.numbers(metrics.EPOCH)) for run in runs]
    are_epochs = [
        np.isfinite(step).any() and np.array_equal(step, own, equal_nan=True) for step, own in pairs
    ]
    if {*steps} <= {*EPOCH_KEYS} or all(are_epochs):
        return "epoch"
    return "row" if {*steps} == {OWN_STEP} and any(map(counts_rows, runs)) else "step"


def _with_machines(runs: Sequence[RunRecord], is_one_device: bool) -> list[RunRecord]:
    """Return the runs with the machine that W&B's client recorded.

    If the user says that all runs had the same device, runs without one get the device of the others, or a
    name for it.
    """
    machines = [run.machine.facts for run in runs]
    recorded = [facts for facts in machines if facts.get("device_name")]
    device = {"device_name": ONE_DEVICE}
    if len({facts["device_name"] for facts in recorded}) == 1:
        device = {key: recorded[0][key] for key in ("device_name", "device_type") if key in recorded[0]}
    if is_one_device:
        machines = [facts if facts.get("device_name") else facts | device for facts in machines]
    return [
        replace(run, summary={metrics.ENVIRONMENT: facts, **run.summary}) if facts else run
        for run, facts in zip(runs, machines, strict=True)
    ]


def _drop_placeholders(task: Task) -> None:
    """Remove the values of the metric that mean "no evaluation" (0, -1, NaN), and say so."""
    key = task.metric.key
    recorded = finite_values(key, task.runs)
    placeholder = negative_placeholder(recorded) if task.metric.is_percentage else None
    if placeholder is not None:
        task.runs = [without_value(run, key, placeholder) for run in task.runs]
        rows = plural(recorded.count(placeholder), "row")
        task.doubts.append(
            f"{printable(key)} is {placeholder:g} in {rows}, which is no percentage. The report treats it as "
            "a row without an evaluation."
        )
    if task.is_of_our_programs:
        return
    counts: Counter[str] = Counter()
    for index, run in enumerate(task.runs):
        _, values = run.logged_numbers(key)
        placeholder = interleaved_placeholder(values)
        if placeholder is not None:
            task.runs[index] = without_value(run, key, placeholder)
            _, kept = task.runs[index].logged_numbers(key)
            counts["NaN" if math.isnan(placeholder) else f"{placeholder:g}"] += len(values) - len(kept)
    for name, count in counts.items():
        task.doubts.append(
            f"{printable(key)} is {name} in {plural(count, 'row')}, between other values. The report treats "
            "such a row as one without an evaluation."
        )
