"""How a set of runs is read: by what was asked for, else by guess, and what was guessed is said.

Everything behind this reads one vocabulary (`ampcompare.metrics`): a column `samples_per_sec` of somebody's
runs becomes `throughput/images_per_second` beside it, with its unit told. What is not there stays away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.records.sources import ARM
from ampcompare.records.tree import as_text
from ampcompare.report.foreign import names
from ampcompare.report.foreign.figures import OWN_STEP, step_key, take_figures, with_machines
from ampcompare.report.foreign.reading import MOST_NAMES, Logged, Reading
from ampcompare.report.foreign.settings import set_aside, tell_apart
from ampcompare.report.runs.metric import (
    DEFAULT_METRIC,
    Unit,
    choose_metric,
    in_another_unit,
    parse_metric,
    says_direction,
)
from ampcompare.report.runs.named import named_metric, told_of
from ampcompare.report.runs.quantities import own_quantities
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.words import printable, short, some

BASELINE = "none"  # of our own runs
OURS = {metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN, metrics.ELAPSED, metrics.TRAIN_SECONDS}
OURS |= {metrics.PEAK_MEMORY, metrics.ENVIRONMENT}
READ_AS = {Unit.FRACTION: " (a fraction, 0 to 1)", Unit.PERCENT: " (in percent, 0 to 100)", Unit.PLAIN: ""}


@dataclass(frozen=True)
class Wanted:
    """What was asked for; None leaves it to the runs."""

    baseline: str | None = None
    metric: str | None = None
    margin: float | None = None
    group_by: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    throughput: str | None = None
    memory: str | None = None


def read(runs: Sequence[RunRecord], wanted: Wanted, planned_margin: float | None = None) -> Reading:
    """Read a set of runs. Our own are read as they say of themselves. Raises UserError for what no run has,
    and where what is meant cannot be told.
    """
    reading = Reading(list(runs), not _are_ours(runs), Logged(runs), own_quantities(runs))
    _take_metric(reading, wanted, planned_margin)
    if reading.is_foreign:
        reading.runs = with_machines(list(map(_with_clock, reading.runs)))
    take_figures(reading, wanted.throughput, wanted.memory)
    if reading.is_foreign:
        counted = {step_key(run) for run in runs}
        if counted <= {*names.EPOCHS} or counted == {OWN_STEP}:
            reading.quantities = replace(reading.quantities, step="row" if OWN_STEP in counted else "epoch")
        tell_apart(reading, wanted.group_by, wanted.ignore, wanted.baseline)
    else:
        set_aside(reading, wanted.group_by, wanted.ignore)
        own = runs[0].option(ARM) if reading.keys == (ARM,) else _of_fp32(runs)
        reading.baseline = wanted.baseline or own
    return reading


def _are_ours(runs: Sequence[RunRecord]) -> bool:
    """Whether this program recorded them: a run names a backend, which others do as well, and logs under our
    names or says what it ran on; or, where all ended before that, it is a backend of ours.
    """
    if not any(run.rows or OURS & {*run.summary} for run in runs):
        return any(as_text(run.option(BACKEND)) in REGISTRY for run in runs)
    return any(_backend_of(run) and OURS & {*run.logged, *run.summary} for run in runs)


def _backend_of(run: RunRecord) -> str:
    return named.strip() if isinstance(named := run.option(BACKEND), str) else ""


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """The baseline of our runs and of recorded loops, whose word for fp32 is their own."""
    values = [str(run.option(BACKEND)) for run in runs]
    meant = (str(run.option(BACKEND)) for run in runs if run.option("recorder.backend") == BASELINE)
    return BASELINE if BASELINE in values else next(meant, BASELINE)


def _take_metric(reading: Reading, wanted: Wanted, planned_margin: float | None) -> None:
    """The metric that was asked for, else that of the runs' sweep, of our runs' task, or a guess."""
    runs, goal, unit, guessed = reading.logged.runs, "", None, ""
    swept = runs[0].objective if len({run.objective for run in runs}) == 1 else None
    if wanted.metric is not None:
        key, goal, unit = parse_metric(wanted.metric, runs)
    elif swept is not None and reading.logged.has(swept[0]) and names.is_quality(swept[0]):
        key, goal = swept
    elif not reading.is_foreign and (named := named_metric(runs)) is not None:
        key = named
    else:
        guessed = _guess_metric(reading)
        key = guessed or DEFAULT_METRIC  # what is not there is said of the groups
    called, own_goal = told_of(key, runs)
    goal, is_asked = goal or own_goal, wanted.metric is not None
    metric = choose_metric(key, wanted.margin, runs, planned_margin, unit=unit, goal=goal, is_asked=is_asked)
    reading.metric, shown = replace(metric, words=called), printable(key)
    if guessed:
        reading.picked.append((f"{key} as the metric{READ_AS[metric.scale]}", "--metric"))
    if (reading.is_foreign or guessed) and not goal and says_direction(key) is None:
        reading.doubts.append(
            f"Whether more or less {reading.metric.name} is better is not known: more is taken as better. "
            f"--metric {shown}:min turns it round."
        )
    if unit is None and (small := in_another_unit(metric, runs)):
        reading.doubts.append(
            f"{shown} is in percent in some runs and lies in 0 to 1 in "
            f"{some([printable(run.name) for run in small])}: whether these are fractions is not known, and "
            f"nothing is said of theirs. --metric {shown}:percent says how all are logged."
        )
        unread = {run.id for run in small}
        reading.runs = [_without(run, key) if run.id in unread else run for run in reading.runs]


def _without(run: RunRecord, key: str) -> RunRecord:
    logged, summary = ({k: v for k, v in of.items() if k != key} for of in (run.logged, run.summary))
    return replace(run, logged=logged, summary=summary)


def _guess_metric(reading: Reading) -> str:
    """The key that says how good a run became: by which Hugging Face's trainer picks its best model, else by
    its name. Of loops under our recorder, which name none, one of what they evaluate.
    """
    logged, keys = reading.logged, [*reading.logged.keys]
    if not reading.is_foreign:
        is_recorded = any(run.option("recorder") is not None for run in logged.runs)
        if not is_recorded or DEFAULT_METRIC in logged.keys:
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
    reading.doubts.append(
        f"Which of {which} says how good a run is cannot be told from the names: --metric KEY takes one."
    )
    return ""


def _with_clock(run: RunRecord) -> RunRecord:
    """The run with our names for its step, epoch, loss and clock, where it has these under others."""
    found = {
        metrics.STEP: step_key(run),
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
        return stamps - stamps[np.isfinite(stamps)][0] if np.isfinite(stamps).any() else None
    with np.errstate(all="ignore"):
        runtime[rows] = np.cumsum(np.maximum(np.diff(runtime[rows], prepend=0.0), 0.0))
    return runtime
