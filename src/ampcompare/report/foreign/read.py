"""How a set of runs is read: by what was asked for, else by ordered patterns of names, and what was taken is
said; where neither tells, one line lists what was logged.

Everything behind this reads one vocabulary (`ampcompare.metrics`): a column `samples_per_sec` of somebody's
runs becomes `throughput/images_per_second` beside it, with its unit told. What is not there stays away.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.config import task
from ampcompare.data import sources
from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, lookup
from ampcompare.report.foreign import names
from ampcompare.report.foreign.apart import tell_apart
from ampcompare.report.foreign.reading import MOST_NAMES, Asked, Logged, Reading
from ampcompare.report.foreign.speed_memory import OWN_STEP, counts_rows, step_key, take_figures
from ampcompare.report.runs.metric import (
    DEFAULT_METRIC,
    GOALS,
    SAMPLES,
    Quantities,
    Unit,
    choose_metric,
    is_logged,
    parse_metric,
    placeholder_of,
    says_direction,
    without_value,
)
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.words import plural, printable, short, some

OURS = {metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN, metrics.ELAPSED, metrics.TRAIN_SECONDS}
OURS |= {metrics.PEAK_MEMORY, metrics.ENVIRONMENT}
READ_AS = {Unit.FRACTION: " (a fraction, 0 to 1)", Unit.PERCENT: " (in percent, 0 to 100)", Unit.PLAIN: ""}


def read(runs: Sequence[RunRecord], asked: Asked) -> Reading:
    """Read a set of runs by what was asked for; our own are read as they say of themselves. Raises UserError
    for what no run has, and where what is meant cannot be told.
    """
    reading = Reading(list(runs), asked, not _are_ours(runs), Logged(runs))
    if all(map(_is_from_elsewhere, runs)):
        reading.quantities = Quantities(speed=SAMPLES)
    _take_metric(reading)
    if reading.is_foreign:
        reading.runs = _with_machines([_with_clock(run, reading.metric.key) for run in reading.runs])
    take_figures(reading)
    counted = {step_key(run, reading.metric.key) for run in runs} if reading.is_foreign else set()
    if counted == {OWN_STEP}:
        unit = "row" if any(map(counts_rows, runs)) else "step"
        reading.quantities = replace(reading.quantities, step=unit)
    elif counted and counted <= {*names.EPOCHS}:
        reading.quantities = replace(reading.quantities, step="epoch")
    tell_apart(reading)
    return reading


def _are_ours(runs: Sequence[RunRecord]) -> bool:
    """Whether this program recorded them: a run names a backend, which others do as well, and logs under our
    names or says what it ran on; or, where all ended before that, it is a backend of ours.
    """
    if not any(run.rows or OURS & {*run.summary} for run in runs):
        return any(as_text(run.option(BACKEND)) in REGISTRY for run in runs)
    named = [run for run in runs if isinstance(backend := run.option(BACKEND), str) and backend.strip()]
    return any(OURS & {*run.logged, *run.summary} for run in named)


def _is_from_elsewhere(run: RunRecord) -> bool:
    """Whether the data are none that we know: samples, that need not be images."""
    source = run.option("data.source")
    named = isinstance(source, str) and bool(source)
    return source not in sources.SOURCES if named else run.is_recorded


def _take_metric(reading: Reading) -> None:
    """The metric that was asked for, else that of the runs' sweep, of our runs' task, or one by its name."""
    runs, asked, goal, unit, guessed = reading.logged.runs, reading.asked.metric, "", None, ""
    swept = runs[0].objective if len({run.objective for run in runs}) == 1 else None
    if asked is not None:
        key, goal, unit = parse_metric(asked, runs)
    elif swept is not None and reading.logged.has(swept[0]) and names.is_quality(swept[0]):
        key, goal = swept
    elif not reading.is_foreign and (named := _of_their_task(runs)) is not None:
        key = named
    else:
        guessed = _guess_metric(reading)
        key = guessed or DEFAULT_METRIC  # what is not there is said of the groups
    called, own_goal = _told_of(key, runs)
    goal = goal or own_goal
    metric = choose_metric(key, reading.asked.margin, runs, unit=unit, goal=goal, is_asked=asked is not None)
    reading.metric = replace(metric, words=called)
    _drop_placeholder(reading)
    if guessed:
        reading.picked.append((f"{key} as the metric{READ_AS[metric.scale]}", "--metric"))
    if (reading.is_foreign or guessed) and not goal and says_direction(key) is None:
        reading.doubts.append(
            f"Whether more or less {reading.metric.name} is better is not known: more is taken as better. "
            f"--metric {printable(key)}:min turns it round."
        )


def _drop_placeholder(reading: Reading) -> None:
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


def _of_their_task(runs: Sequence[RunRecord]) -> str | None:
    """The one key by which our runs are compared, as each recorded it, an older one's accuracy if it has one;
    None where none names any. Raises UserError where they name different ones: they are no one comparison.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        said, loss = lookup(run.environment, f"{metrics.TASK}.metric"), run.option("task.loss")
        key = DEFAULT_METRIC if is_logged(DEFAULT_METRIC, [run]) else None
        if isinstance(said, str) and said:
            key = said
        elif isinstance(loss, str) and loss:  # a record that breaks off before it says more
            key = task.compared_key(loss, run.option("task.metrics"), run.option("task.metric"))
        if key is not None:
            found.setdefault(key, []).append(printable(run.name))
    if len(found) > 1:
        each = some([f"{printable(key)} ({plural(len(n), 'run')}: {some(n, 2)})" for key, n in found.items()])
        todo = "name one of them with --metric, or give the report the runs of one task"
        raise UserError(f"the runs are scored by different metrics and are no one comparison: {each}; {todo}")
    return next(iter(found), None)


def _told_of(key: str, runs: Sequence[RunRecord]) -> tuple[str, str]:
    """What the runs call a metric that is not ours, and its goal; nothing where they do not say."""
    place = f"{metrics.TASK}.metrics.{key}"
    for environment in () if metrics.find(key) else (run.environment for run in runs):
        if lookup(environment, place):
            words, better = (
                as_text(lookup(environment, f"{place}.{name}", "")) for name in ("words", "better")
            )
            return short(printable(words)).strip(), GOALS.get(better, "")
    return "", ""


def _guess_metric(reading: Reading) -> str:
    """The key that says how good a run became: by which Hugging Face's trainer picks its best model, else by
    its name. Of loops under our recorder, which name none, one of what they evaluate.
    """
    logged, keys = reading.logged, [*reading.logged.keys]
    if not reading.is_foreign:
        if not any(run.is_recorded for run in logged.runs) or DEFAULT_METRIC in keys:
            return ""
        keys = [key for key in keys if key.startswith(metrics.EVAL) and logged.has(key)]
    for named in dict.fromkeys(as_text(run.option("metric_for_best_model")) for run in logged.runs):
        bare = named.removeprefix("eval_")
        if found := [key for key in (f"eval/{bare}", f"eval_{bare}", bare) if logged.has(key)]:
            return found[0]
    if logged.has(DEFAULT_METRIC):
        return DEFAULT_METRIC
    key = logged.best({key: rank for key in keys if (rank := names.quality_rank(key))})
    if key or not keys:
        return key or ""
    if reading.is_foreign:
        what = "which key says how good a run is cannot be told"
        raise UserError(f"--metric: {what}; name one of those logged: {logged.named()}")
    if len(keys) == 1:
        return keys[0]
    which = some([short(printable(name)) for name in sorted(keys)], MOST_NAMES)
    reading.doubts.append(f"Which of {which} says how good a run is cannot be told: --metric KEY takes one.")
    return ""


def _with_machines(runs: list[RunRecord]) -> list[RunRecord]:
    """The runs with a record of the machine that W&B saw. Where some have none, and the others had one
    device, none has: a run that died too early to say it would be set apart from its fellows.
    """
    facts = [run.machine.facts for run in runs]
    if not all(facts) and len({found.get("device_name") for found in facts if found}) < 2:
        return runs
    return [
        replace(run, summary={metrics.ENVIRONMENT: found, **run.summary}) if found else run
        for run, found in zip(runs, facts, strict=True)
    ]


def _with_clock(run: RunRecord, metric: str) -> RunRecord:
    """The run with our names for its step, epoch, loss and clock, where it has these under others."""
    found = {
        metrics.STEP: step_key(run, metric),
        metrics.EPOCH: next((key for key in names.EPOCHS if key in run.logged), ""),
        metrics.LOSS: next((key for key in names.LOSSES if key in run.logged), ""),
    }
    if (clock := _clock(run)) is not None:
        clocks = {metrics.ELAPSED: clock, metrics.TRAIN_SECONDS: clock}
        run = run.adding({ours: values for ours, values in clocks.items() if ours not in run.logged})
    added = {ours: run.logged[key] for ours, key in found.items() if key in run.logged}
    return replace(run, logged=added | run.logged)


def _clock(run: RunRecord) -> np.ndarray | None:
    """Seconds that the run was at work, of each row. W&B's `_runtime` begins anew where a run is resumed
    offline: what it gained from row to row is added up. Rows that came in another order gain nothing.
    """
    runtime, stamps = run.numbers("_runtime"), run.numbers("_timestamp")
    rows = np.flatnonzero(np.isfinite(runtime))
    if not len(rows):
        return stamps - np.nanmin(stamps) if np.isfinite(stamps).any() else None
    with np.errstate(all="ignore"):
        runtime[rows] = np.cumsum(np.maximum(np.diff(runtime[rows], prepend=0.0), 0.0))
    return runtime
