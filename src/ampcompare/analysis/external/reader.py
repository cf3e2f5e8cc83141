"""Read runs under one vocabulary: ours as they record themselves, others as the user describes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.declared_metrics import chosen_metric, declared_goal
from ampcompare.analysis.external.inferred_grouping import Grouping, group_external, group_own
from ampcompare.analysis.external.key_mapping import (
    EPOCH_KEYS,
    MEMORY,
    OWN_STEP,
    STEP_KEYS,
    counts_rows,
    parse_key_mappings,
    with_clock,
)
from ampcompare.analysis.external.missing_input import MissingInput, direction_question, metric_question
from ampcompare.analysis.external.row_kinds import apply_conditions, ask_about_kinds, parse_conditions
from ampcompare.analysis.grouping.compared_metric import (
    DEFAULT_METRIC,
    GOALS,
    MAXIMIZE,
    OWN,
    SAMPLES,
    ComparedMetric,
    Quantities,
    Unit,
    choose_metric,
    infer_goal,
    interleaved_placeholder,
    is_logged,
    parse_metric,
    placeholder_of,
    without_value,
)
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.config import task_spec
from ampcompare.data import sources
from ampcompare.errors import UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of
from ampcompare.runs.nested import as_text, lookup
from ampcompare.runtime.formatting import listed, plural, printable, short, some

OWN_KEYS = {metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN, metrics.ELAPSED, metrics.TRAIN_SECONDS}
OWN_KEYS |= {metrics.PEAK_MEMORY, metrics.ENVIRONMENT}
DEVICE = "device"  # `--ignore device`: the runs had one device, although no record says so
ONE_DEVICE = "one device (--ignore device)"


@dataclass
class RunReading:
    """The runs under our names, and what they are compared by.

    Attributes:
        runs: The runs. Those of other programs have our names beside their own.
        metric: The compared metric.
        grouping: What distinguishes the runs.
        quantities: The units of throughput and memory, and what counts steps.
        notes: How the runs were read.
        doubts: Doubts about how they were read.
        is_own: Whether this program trained all of the runs, so that its sweeps can add more.
        is_of_our_programs: Whether this program or its Recorder wrote the records.
    """

    runs: list[RunRecord]
    metric: ComparedMetric
    grouping: Grouping
    quantities: Quantities = OWN
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    is_own: bool = True
    is_of_our_programs: bool = True


def interpret_runs(runs: Sequence[RunRecord], options: AnalysisOptions) -> RunReading:
    """Read a set of runs.

    Raises:
        MissingInput: Runs of other programs lack information and the user did not give it.
        UserError: An option names something that no run has.
    """
    reading = _read_own(runs, options) if _are_own(runs) else _read_external(runs, options)
    _drop_placeholder(reading)
    return reading


def _read_own(runs: Sequence[RunRecord], options: AnalysisOptions) -> RunReading:
    if options.where:
        problem = "these runs are of AMP Compare or its Recorder, whose keys have one meaning; leave it out"
        raise UserError(f"--where {options.where[0]!r}: {problem}")
    is_own = not any(run.is_recorded for run in runs)
    mappings = _measures(options, runs)
    reading = RunReading(
        [_apply(run, mappings) for run in runs],
        _own_metric(runs, options),
        group_own(runs, options),
        is_own=is_own,
    )
    if all(map(_has_other_data, runs)):
        reading.quantities = Quantities(speed=SAMPLES)
    reading.quantities = _quantities(reading.quantities, mappings)
    reading.notes += [f"read {mapping.text}" for mapping in mappings] + reading.grouping.notes
    if reading.metric.goal and not reading.metric.is_accuracy:  # the direction of an accuracy is obvious
        reading.notes.append(f"{reading.metric.name}: {_way(reading.metric)} is better")
    reading.doubts += reading.grouping.doubts
    return reading


def _read_external(runs: Sequence[RunRecord], options: AnalysisOptions) -> RunReading:
    conditions = parse_conditions(options.where, runs)
    unfiltered, runs = runs, apply_conditions(runs, conditions)
    mappings = _measures(options, runs)
    questions: list[str] = []
    arguments: list[str] = []
    arms: list[str] = []
    grouping, metric = Grouping(), ComparedMetric()
    try:
        grouping = group_external(runs, options)
    except MissingInput as missing:
        questions, arguments, arms = [*missing.questions], [*missing.arguments], [*missing.arms]
    try:
        metric = _external_metric(runs, options)
    except MissingInput as missing:
        questions, arguments = [*questions, *missing.questions], [*arguments, *missing.arguments]
    if not questions:
        speeds = [one.key for one in mappings if one.role != MEMORY and not one.is_cumulative]
        questions, arguments = ask_about_kinds(unfiltered, [metric.key, *speeds], metric.key, conditions)
    if questions:
        raise MissingInput(questions, arguments, arms)
    steps = [_step_key(run, metric.key) for run in runs]
    mapped = [with_clock(run, step) for run, step in zip(runs, steps, strict=True)]
    mapped = [_apply(run, mappings) for run in _with_machines(mapped, DEVICE in options.ignore)]
    unit = _step_unit(mapped, steps)
    reading = RunReading(
        mapped,
        metric,
        grouping,
        _quantities(Quantities("", "", step=unit), mappings),
        is_own=False,
        is_of_our_programs=False,
    )
    choice = "best" if options.best else "last"
    parts = [f"the {choice} {printable(metric.key)} ({_way(metric)} is better) as the metric"]
    parts += [mapping.text for mapping in mappings]
    reading.notes += [f"read {listed(parts)}", *grouping.notes]
    if conditions:
        reading.notes.append(f"rows chosen by --where {listed(printable(one.text) for one in conditions)}")
    reading.doubts += grouping.doubts
    return reading


def _way(metric: ComparedMetric) -> str:
    return "lower" if metric.lower_is_better else "higher"


def _measures(options: AnalysisOptions, runs: Sequence[RunRecord]) -> list[Any]:
    roles = ("throughput", "time", MEMORY)
    return parse_key_mappings({role: getattr(options, role) for role in roles}, runs)


def _apply(run: RunRecord, mappings: Sequence[Any]) -> RunRecord:
    for mapping in mappings:
        run = mapping.apply(run)
    return run


def _quantities(quantities: Quantities, mappings: Sequence[Any]) -> Quantities:
    for mapping in mappings:
        if mapping.role == MEMORY:
            quantities = replace(quantities, memory=mapping.shown_unit)
        elif mapping.is_cumulative:
            counted = quantities.step if quantities.step in ("epoch", "row") else "step"
            quantities = replace(quantities, speed=f"{counted}s/s")
        else:
            quantities = replace(quantities, speed=mapping.shown_unit)
    return quantities


def _are_own(runs: Sequence[RunRecord]) -> bool:
    """Return whether this program recorded the runs.

    A run of ours names a backend, which other programs do as well. It also logs under our names, or records
    what it ran on. If all runs ended before that, the backend must be one of ours.
    """
    if not any(run.rows or OWN_KEYS & {*run.summary} for run in runs):
        return any(as_text(run.option(BACKEND)) in REGISTRY for run in runs)
    with_backend = [
        run for run in runs if isinstance(backend := run.option(BACKEND), str) and backend.strip()
    ]
    return any(OWN_KEYS & {*run.logged, *run.summary} for run in with_backend)


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
    columns = [(run.numbers(metrics.STEP), run.numbers(metrics.EPOCH)) for run in runs]
    if {*steps} <= {*EPOCH_KEYS} or all(
        np.array_equal(step, epoch, equal_nan=True) and np.isfinite(step).any() for step, epoch in columns
    ):
        return "epoch"
    is_row = {*steps} == {OWN_STEP} and any(map(counts_rows, runs))
    return "row" if is_row else "step"


def _external_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> ComparedMetric:
    """Return the metric that the user names or the format declares.

    Raises:
        MissingInput: There is no such metric, or its direction is unknown.
        UserError: No run has the named metric.
    """
    if options.metric is not None:
        key, goal, unit = parse_metric(options.metric, runs)
        declared = declared_goal(key, runs)
        _check_direction(options.metric, key, goal, declared)
        goal = goal or declared
        if not goal and is_logged(key, runs):
            raise direction_question(key, options.metric, runs)
    elif (chosen := chosen_metric(runs)) is not None:
        key, goal, unit = chosen.key, chosen.goal, chosen.unit
    else:
        question, arguments = metric_question(runs)
        raise MissingInput([question], arguments)
    if unit is None and not any(key in run.units for run in runs):
        unit = Unit.PLAIN
    return choose_metric(key, options.margin, runs, unit=unit, goal=goal or MAXIMIZE)


def _own_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> ComparedMetric:
    """Return the metric that the user names, else that of the runs' sweep, else that of their task.

    Raises:
        MissingInput: The direction of a recorded metric is unknown.
        UserError: No run has the named metric, or the runs have different tasks.
    """
    goal, unit = "", None
    objective = runs[0].objective if len({run.objective for run in runs}) == 1 else None
    if options.metric is not None:
        key, goal, unit = parse_metric(options.metric, runs)
    elif objective is not None and is_logged(objective[0], runs) and is_quality(objective[0]):
        key, goal = objective
    else:
        # Groups without the metric are reported later.
        key = _of_their_task(runs) or _only_score(runs) or DEFAULT_METRIC
    display_name, declared = _declared_in_task(key, runs)
    # Our training records the direction of each score. Key names of users' loops tell nothing.
    is_named = any(run.is_recorded for run in runs) and metrics.find(key) is None
    declared = declared or (declared_goal(key, runs) if is_named else "")
    if options.metric is not None:
        own = metrics.find(key)
        _check_direction(options.metric, key, goal, GOALS.get(own.better, "") if own else declared)
    goal = goal or declared
    if not goal and (is_named or infer_goal(key) is None) and is_logged(key, runs):
        raise direction_question(key, options.metric or key, runs)
    if unit is None and is_named and not any(key in run.units for run in runs):
        unit = Unit.PLAIN
    is_asked = options.metric is not None
    metric = choose_metric(key, options.margin, runs, unit=unit, goal=goal, is_asked=is_asked)
    return replace(metric, display_name=display_name)


def _check_direction(text: str, key: str, goal: str, declared: str) -> None:
    """Refuse a direction that the runs, or our own metrics, declare otherwise.

    Args:
        text: The option as the user wrote it.
        key: The key in it.
        goal: The direction in it, "" without one.
        declared: The declared direction, "" if none is declared.

    Raises:
        UserError: The two differ.
    """
    if goal and declared and goal != declared:
        asked, right = ("max", "min") if goal == MAXIMIZE else ("min", "max")
        better = "higher" if declared == MAXIMIZE else "lower"
        raise UserError(
            f"--metric {text!r}: {printable(key)} is declared as a metric of which {better} is better, "
            f"so :{asked} contradicts it; write --metric {key}:{right} or leave :{asked} out"
        )


def is_quality(key: str) -> bool:
    """Return whether a sweep's metric is one of quality, and not our speed, memory or energy."""
    return metrics.find(key) is None or key.startswith((metrics.EVAL_PREFIX, "train/"))


def _of_their_task(runs: Sequence[RunRecord]) -> str | None:
    """Return the key by which our runs are compared, as they recorded it; None if none is recorded.

    Older records have no key. For them it is the accuracy, if they have one.

    Raises:
        UserError: The runs record different keys, so they are not one comparison.
    """
    runs_by_key: dict[str, list[str]] = {}
    for run in runs:
        recorded, loss = lookup(run.environment, f"{metrics.TASK}.metric"), run.option("task.loss")
        key = DEFAULT_METRIC if is_logged(DEFAULT_METRIC, [run]) and not run.is_recorded else None
        if isinstance(recorded, str) and recorded:
            key = recorded
        elif isinstance(loss, str) and loss:  # the record ends before its environment
            key = task_spec.compared_key(loss, run.option("task.metrics"), run.option("task.metric"))
        if key is not None:
            runs_by_key.setdefault(key, []).append(printable(run.name))
    if len(runs_by_key) > 1:
        listing = some(
            [
                f"{printable(key)} ({plural(len(names), 'run')}: {some(names, 2)})"
                for key, names in runs_by_key.items()
            ]
        )
        action = "choose one of them with --metric, or make one report for each task"
        raise UserError(f"the runs have different metrics: {listing}; {action}")
    return next(iter(runs_by_key), None)


def _declared_in_task(key: str, runs: Sequence[RunRecord]) -> tuple[str, str]:
    """Return the display name and the goal that runs record for a metric; "" for what they do not record."""
    path = f"{metrics.TASK}.metrics.{key}"
    for environment in () if metrics.find(key) else (run.environment for run in runs):
        if lookup(environment, path):
            display_name, better = (
                as_text(lookup(environment, f"{path}.{name}", "")) for name in ("words", "better")
            )
            return short(printable(display_name)).strip(), GOALS.get(better, "")
    return "", ""


def _only_score(runs: Sequence[RunRecord]) -> str:
    """Return the only score that loops under our recorder evaluate besides the loss.

    Returns:
        The key; "" for our own training, and if nothing is evaluated.

    Raises:
        MissingInput: There are several scores.
    """
    if not any(run.is_recorded for run in runs):
        return ""
    keys = sorted({key for run in runs for key in run.logged if key.startswith(metrics.EVAL_PREFIX)})
    with_values = [key for key in keys if is_logged(key, runs)]
    scores = [key for key in with_values if key != metrics.EVAL_LOSS] or with_values
    if len(scores) > 1:
        question, arguments = metric_question(runs, scores)
        raise MissingInput([f"{question}; Recorder(metric=KEY, better=...) records it"], arguments)
    return scores[0] if scores else ""


def _with_machines(runs: list[RunRecord], is_one_device: bool) -> list[RunRecord]:
    """Return the runs with the machine that W&B's client recorded.

    Runs without a device get a name for it if the user says that all runs had the same device.
    """
    completed = []
    for run in runs:
        facts = run.machine.facts
        if is_one_device and not facts.get("device_name"):
            facts = facts | {"device_name": ONE_DEVICE}
        completed.append(replace(run, summary={metrics.ENVIRONMENT: facts, **run.summary}) if facts else run)
    return completed


def _drop_placeholder(reading: RunReading) -> None:
    """Remove the values of the metric that mean "no evaluation" (0, -1, NaN), and say so."""
    key, runs = reading.metric.key, reading.runs
    candidates = (value for run in runs for value in (*run.values(key), run.summary_number(key)))
    values = [float(value) for value in candidates if value is not None and np.isfinite(value)]
    placeholder = placeholder_of(reading.metric.scale, values)
    if placeholder is not None:
        reading.runs = [without_value(run, key, placeholder) for run in runs]
        reading.doubts.append(
            f"{printable(key)} is {placeholder:g} in {plural(values.count(placeholder), 'row')}, which is no "
            "percentage. The report treats it as a row without an evaluation."
        )
    if not reading.is_of_our_programs:
        _drop_interleaved(reading)


def _drop_interleaved(reading: RunReading) -> None:
    """Remove placeholders that stand between results, run by run."""
    key = reading.metric.key
    counts: dict[str, int] = {}
    cleaned = []
    for run in reading.runs:
        _, values = run.logged_numbers(key)
        placeholder = interleaved_placeholder(values)
        if placeholder is None:
            cleaned.append(run)
            continue
        new = without_value(run, key, placeholder)
        cleaned.append(new)
        name = "NaN" if placeholder != placeholder else f"{placeholder:g}"
        counts[name] = counts.get(name, 0) + len(values) - len(new.logged_numbers(key)[1])
    reading.runs = cleaned
    for name, count in counts.items():
        reading.doubts.append(
            f"{printable(key)} is {name} in {plural(count, 'row')}, between other values. The report treats "
            "such a row as one without an evaluation."
        )
