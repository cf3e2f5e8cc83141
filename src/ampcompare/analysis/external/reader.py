"""Read a set of runs under one vocabulary: ours as they record themselves, others as the user names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.declarations import chosen_metric, declared_goal
from ampcompare.analysis.external.grouping import Grouping, group_external, group_own
from ampcompare.analysis.external.key_mapping import (
    EPOCH_KEYS,
    MEMORY,
    OWN_STEP,
    STEP_KEYS,
    counts_rows,
    parse_key_mappings,
    with_clock,
)
from ampcompare.analysis.external.questions import MissingInput, metric_question, suggested_way
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
    is_logged,
    parse_metric,
    placeholder_of,
    without_value,
)
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND
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
ONE_DEVICE = "one device, as you say"


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """What the user names, as for `analyse_runs`; None is left to the runs, or asked for."""

    baseline: str | None = None
    metric: str | None = None
    best: bool = False
    margin: float | None = None
    group_by: Sequence[str] | None = None
    split_by: Sequence[str] = ()
    seed: str | None = None
    ignore: Sequence[str] = ()
    throughput: str | None = None
    time: str | None = None
    memory: str | None = None


@dataclass
class RunReading:
    """The runs under our names, what they are compared by, and what has to be said of that.

    Attributes:
        runs: The runs; those of other programs with our names beside their own.
        metric: The compared metric.
        grouping: What tells the runs apart.
        quantities: The units of speed and memory, and what counts steps.
        notes: How the runs were read.
        doubts: Reasons not to trust that.
        is_own: Whether this program trained all of the runs, so that its sweeps can add more.
    """

    runs: list[RunRecord]
    metric: ComparedMetric
    grouping: Grouping
    quantities: Quantities = OWN
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    is_own: bool = True


def interpret_runs(runs: Sequence[RunRecord], options: ReadingOptions) -> RunReading:
    """Read a set of runs.

    Raises:
        MissingInput: What other programs' runs do not say and the user does not name, with candidates.
        UserError: An option names what no run has.
    """
    reading = _read_own(runs, options) if _are_own(runs) else _read_external(runs, options)
    _drop_placeholder(reading)
    return reading


def _read_own(runs: Sequence[RunRecord], options: ReadingOptions) -> RunReading:
    is_ours = not any(run.is_recorded for run in runs)
    measures = _measures(options, runs)
    reading = RunReading(
        [_apply(run, measures) for run in runs],
        _own_metric(runs, options),
        group_own(runs, options.group_by, options.baseline, options.split_by, options.seed, options.ignore),
        is_own=is_ours,
    )
    if all(map(_has_other_data, runs)):
        reading.quantities = Quantities(speed=SAMPLES)
    reading.quantities = _quantities(reading.quantities, measures)
    reading.notes += [f"read {one.text}" for one in measures] + reading.grouping.notes
    if reading.metric.goal and not reading.metric.is_accuracy:  # of which everybody knows
        reading.notes.append(f"of {reading.metric.name} {_way(reading.metric)} is better")
    reading.doubts += reading.grouping.doubts
    return reading


def _read_external(runs: Sequence[RunRecord], options: ReadingOptions) -> RunReading:
    measures = _measures(options, runs)
    questions: list[str] = []
    arguments: list[str] = []
    arms: list[str] = []
    grouping, metric = Grouping(), ComparedMetric()
    try:
        grouping = group_external(
            runs, options.group_by, options.baseline, options.split_by, options.seed, options.ignore
        )
    except MissingInput as missing:
        questions, arguments, arms = [*missing.questions], [*missing.arguments], [*missing.arms]
    try:
        metric = _external_metric(runs, options)
    except MissingInput as missing:
        questions, arguments = [*questions, *missing.questions], [*arguments, *missing.arguments]
    if questions:
        raise MissingInput(questions, arguments, arms)
    steps = [_step_key(run, metric.key) for run in runs]
    mapped = [with_clock(run, step) for run, step in zip(runs, steps, strict=True)]
    mapped = [_apply(run, measures) for run in _with_machines(mapped, DEVICE in options.ignore)]
    unit = _step_unit(runs, steps)
    reading = RunReading(
        mapped, metric, grouping, _quantities(Quantities("", "", step=unit), measures), is_own=False
    )
    of = "best" if options.best else "last"
    told = [f"the {of} {printable(metric.key)} ({_way(metric)} is better) as the metric"]
    told += [one.text for one in measures]
    reading.notes += [f"read {listed(told)}", *grouping.notes]
    reading.doubts += grouping.doubts
    return reading


def _way(metric: ComparedMetric) -> str:
    return "lower" if metric.lower_is_better else "higher"


def _measures(options: ReadingOptions, runs: Sequence[RunRecord]) -> list[Any]:
    roles = ("throughput", "time", MEMORY)
    return parse_key_mappings({role: getattr(options, role) for role in roles}, runs)


def _apply(run: RunRecord, measures: Sequence[Any]) -> RunRecord:
    for measure in measures:
        run = measure.apply(run)
    return run


def _quantities(quantities: Quantities, measures: Sequence[Any]) -> Quantities:
    for measure in measures:
        name = "memory" if measure.role == MEMORY else "speed"
        quantities = replace(quantities, **{name: measure.shown_unit})
    return quantities


def _are_own(runs: Sequence[RunRecord]) -> bool:
    """Whether this program recorded them: a run names a backend, which others do as well, and logs under our
    names or says what it ran on; or, where all ended before that, it is a backend of ours.
    """
    if not any(run.rows or OWN_KEYS & {*run.summary} for run in runs):
        return any(as_text(run.option(BACKEND)) in REGISTRY for run in runs)
    named = [run for run in runs if isinstance(backend := run.option(BACKEND), str) and backend.strip()]
    return any(OWN_KEYS & {*run.logged, *run.summary} for run in named)


def _has_other_data(run: RunRecord) -> bool:
    """Whether the data are none that we know: samples, that need not be images."""
    source = run.option("data.source")
    named = isinstance(source, str) and bool(source)
    return source not in sources.SOURCES if named else run.is_recorded


def _step_key(run: RunRecord, metric: str) -> str:
    """Return what counts the steps of a run: what `define_metric` declares of the metric, its steps under the
    formats' own names, else W&B's own count.
    """
    declared = definition_of(metric, run.definitions).step
    if declared and len(run.values(declared)):
        return declared
    return next((key for key in STEP_KEYS if len(run.values(key)) > 1), OWN_STEP)


def _step_unit(runs: Sequence[RunRecord], steps: Sequence[str]) -> str:
    """Return what a step is called in the charts."""
    if {*steps} <= {*EPOCH_KEYS}:
        return "epoch"
    is_row = {*steps} == {OWN_STEP} and any(map(counts_rows, runs))
    return "row" if is_row else "step"


def _external_metric(runs: Sequence[RunRecord], options: ReadingOptions) -> ComparedMetric:
    """Return the metric that the user names or the format declares. Raises MissingInput, UserError."""
    if options.metric is not None:
        key, goal, unit = parse_metric(options.metric, runs)
        goal = goal or declared_goal(key, runs)
        if not goal and is_logged(key, runs):
            way = suggested_way(key, runs)
            question = f"which way {printable(key)} is better: --metric {key}:max or {key}:min"
            raise MissingInput([question], ["--metric", f"{options.metric}:{way}"])
    elif (declared := chosen_metric(runs)) is not None:
        key, goal, unit = declared.key, declared.goal, declared.unit
    else:
        question, arguments = metric_question(runs)
        raise MissingInput([question], arguments)
    if unit is None and not any(key in run.units for run in runs):
        unit = Unit.PLAIN
    return choose_metric(key, options.margin, runs, unit=unit, goal=goal or MAXIMIZE)


def _own_metric(runs: Sequence[RunRecord], options: ReadingOptions) -> ComparedMetric:
    """Return the metric that the user names, else that of the runs' sweep, else that of their task."""
    goal, unit = "", None
    swept = runs[0].objective if len({run.objective for run in runs}) == 1 else None
    if options.metric is not None:
        key, goal, unit = parse_metric(options.metric, runs)
    elif swept is not None and is_logged(swept[0], runs) and is_quality(swept[0]):
        key, goal = swept
    else:
        # What is not there is said of the groups.
        key = _of_their_task(runs) or _only_score(runs) or DEFAULT_METRIC
    display_name, declared = _declared_in_task(key, runs)
    # Our training records which way a score is better. The names that a loop gives its values say nothing.
    is_named = any(run.is_recorded for run in runs) and metrics.find(key) is None
    goal = goal or declared or (declared_goal(key, runs) if is_named else "")
    if not goal and (is_named or infer_goal(key) is None) and is_logged(key, runs):
        question = f"which way {printable(key)} is better: --metric {key}:max or {key}:min"
        raise MissingInput([question], ["--metric", f"{options.metric or key}:{suggested_way(key, runs)}"])
    if unit is None and is_named and not any(key in run.units for run in runs):
        unit = Unit.PLAIN
    is_asked = options.metric is not None
    metric = choose_metric(key, options.margin, runs, unit=unit, goal=goal, is_asked=is_asked)
    return replace(metric, display_name=display_name)


def is_quality(key: str) -> bool:
    """Whether a sweep's metric is one of quality: our speed, memory and energy have a place of their own."""
    return metrics.find(key) is None or key.startswith((metrics.EVAL_PREFIX, "train/"))


def _of_their_task(runs: Sequence[RunRecord]) -> str | None:
    """The one key by which our runs are compared, as each recorded it, an older one's accuracy if it has one;
    None where none names any. Raises UserError where they name different ones: they are no one comparison.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        recorded, loss = lookup(run.environment, f"{metrics.TASK}.metric"), run.option("task.loss")
        key = DEFAULT_METRIC if is_logged(DEFAULT_METRIC, [run]) and not run.is_recorded else None
        if isinstance(recorded, str) and recorded:
            key = recorded
        elif isinstance(loss, str) and loss:  # a record that breaks off before it says more
            key = task_spec.compared_key(loss, run.option("task.metrics"), run.option("task.metric"))
        if key is not None:
            found.setdefault(key, []).append(printable(run.name))
    if len(found) > 1:
        each = some([f"{printable(key)} ({plural(len(n), 'run')}: {some(n, 2)})" for key, n in found.items()])
        todo = "name one of them with --metric, or give the report the runs of one task"
        raise UserError(f"the runs are scored by different metrics and are no one comparison: {each}; {todo}")
    return next(iter(found), None)


def _declared_in_task(key: str, runs: Sequence[RunRecord]) -> tuple[str, str]:
    """What the runs call a metric that is not ours, and its goal; nothing where they do not say."""
    place = f"{metrics.TASK}.metrics.{key}"
    for environment in () if metrics.find(key) else (run.environment for run in runs):
        if lookup(environment, place):
            words, better = (
                as_text(lookup(environment, f"{place}.{name}", "")) for name in ("words", "better")
            )
            return short(printable(words)).strip(), GOALS.get(better, "")
    return "", ""


def _only_score(runs: Sequence[RunRecord]) -> str:
    """Return the only score that loops under our recorder evaluate beside the loss, "" for our own training
    and where they evaluate nothing. Raises MissingInput where there are several: no name picks one of them.
    """
    if not any(run.is_recorded for run in runs):
        return ""
    keys = sorted({key for run in runs for key in run.logged if key.startswith(metrics.EVAL_PREFIX)})
    known = [key for key in keys if is_logged(key, runs)]
    scores = [key for key in known if key != metrics.EVAL_LOSS] or known
    if len(scores) > 1:
        question, arguments = metric_question(runs, scores)
        raise MissingInput([f"{question}; Recorder(metric=KEY, better=...) records it"], arguments)
    return scores[0] if scores else ""


def _with_machines(runs: list[RunRecord], is_one_device: bool) -> list[RunRecord]:
    """Return the runs with a record of the machine that W&B saw; those without a device, of which the user
    says that it was one, with a name for it.
    """
    found = []
    for run in runs:
        facts = run.machine.facts
        if is_one_device and not facts.get("device_name"):
            facts = facts | {"device_name": ONE_DEVICE}
        found.append(replace(run, summary={metrics.ENVIRONMENT: facts, **run.summary}) if facts else run)
    return found


def _drop_placeholder(reading: RunReading) -> None:
    """Take away the value of the metric that stands for no evaluation (-1), and say so."""
    key, runs = reading.metric.key, reading.runs
    every = (value for run in runs for value in (*run.values(key), run.summary_number(key)))
    values = [float(value) for value in every if value is not None and np.isfinite(value)]
    placeholder = placeholder_of(reading.metric.scale, values)
    if placeholder is not None:
        reading.runs = [without_value(run, key, placeholder) for run in runs]
        reading.doubts.append(
            f"{printable(key)} is {placeholder:g} in {plural(values.count(placeholder), 'row')}, which is no "
            "percentage: it is taken for a row without an evaluation, and left out."
        )
