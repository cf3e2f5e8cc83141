"""How a set of runs is read: by what was asked for, else by guess, and what was guessed is said.

Everything behind this reads one vocabulary (`ampcompare.metrics`): a column `samples_per_sec` of somebody's
runs becomes `throughput/images_per_second` beside it, with its unit told. What is not there stays away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.records.sources import ARM
from ampcompare.report.foreign import names, settings
from ampcompare.report.foreign.taking import MOST_NAMES, Logged, Taking
from ampcompare.report.foreign.unlogged import steps_of, take_energy, take_pace, take_samples
from ampcompare.report.runs.metric import (
    DEFAULT_METRIC,
    ComparedMetric,
    Unit,
    choose_metric,
    in_another_unit,
    is_logged,
    nearest_key,
    parse_metric,
    says_direction,
)
from ampcompare.report.runs.named import named_metric, told_of
from ampcompare.report.runs.quantities import Quantities, own_quantities
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.words import listed, printable, short, some

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


@dataclass(frozen=True)
class Reading:
    """The runs under our names, what they are compared by, and what has to be said of how they were read.

    `settings` and `seeds` tell other programs' runs apart, None of our own, whose options say that; `aside`
    are settings beside these that tell nothing.
    """

    runs: list[RunRecord]
    settings: list[dict[str, str]] | None
    seeds: list[str | None] | None
    aside: frozenset[str]
    metric: ComparedMetric
    quantities: Quantities
    keys: tuple[str, ...]
    baseline: str
    said: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def read(runs: Sequence[RunRecord], wanted: Wanted, planned_margin: float | None = None) -> Reading:
    """Read a set of runs. Our own are read as they say of themselves. Raises UserError for what no run has,
    and where what is meant cannot be told.
    """
    theirs = [n for n, is_own in enumerate(are_ours(runs)) if not is_own]
    taking = Taking(list(runs), theirs, Logged(runs), own_quantities(runs))
    metric = _metric(taking, runs, wanted, planned_margin)
    for n in theirs:
        taking.runs[n] = _with_clock(taking.runs[n])
    _add_facts(taking)
    speed, memory = (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN), (metrics.PEAK_MEMORY,) * 2
    if (unit := _take(taking, "throughput", wanted.throughput, names.speed_of, speed)) is not None:
        taking.quantities = replace(taking.quantities, speed=unit)
    else:
        take_pace(taking)
    if (unit := _take(taking, "memory", wanted.memory, names.memory_of, memory)) is not None:
        taking.quantities = replace(taking.quantities, memory=unit)
    else:
        take_samples(taking)
    take_energy(taking)
    if taking.is_foreign:
        if len(kinds := {steps_of(run)[1] for run in runs}) == 1 and kinds != {"step"}:
            taking.quantities = replace(taking.quantities, step=kinds.pop())
        told, aside = settings.tell_apart(runs, wanted.group_by, wanted.ignore), frozenset[str]()
        baseline = _baseline(told, wanted, taking.picked)
    else:
        told, aside = settings.of_ours(runs, wanted.group_by, wanted.ignore)
        baseline = wanted.baseline or (runs[0].option(ARM) if told.keys == (ARM,) else _of_fp32(runs))
    took, options = listed([printable(what) for what, _ in taking.picked]), [by for _, by in taking.picked]
    return Reading(
        taking.runs,
        told.settings,
        told.seeds,
        aside,
        metric,
        taking.quantities,
        told.keys,
        baseline,
        (*([f"took {took}: {', '.join(options)} for another"] * bool(took)), *taking.said, *told.said),
        (*taking.cautions, *told.cautions),
    )


def are_ours(runs: Sequence[RunRecord]) -> list[bool]:
    """Whether each run was recorded by this program: it names a backend, and logs under our names or says
    what it ran on. One that ended too early for that has the name of a backend of ours, which others use as
    well: it counts only beside runs of ours, or where no run has a row.
    """
    named = [isinstance(own := run.option(BACKEND), str) and bool(own.strip()) for run in runs]
    said = [
        is_named and bool(OURS & {*run.logged, *run.summary})
        for run, is_named in zip(runs, named, strict=True)
    ]
    if not any(said) and any(run.rows for run in runs):
        return said
    every = zip(runs, named, said, strict=True)
    return [
        known or (is_named and not run.rows and run.option(BACKEND) in REGISTRY)
        for run, is_named, known in every
    ]


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """The baseline of our runs and of recorded loops, whose word for fp32 is their own."""
    values = [str(run.option(BACKEND)) for run in runs]
    meant = (str(run.option(BACKEND)) for run in runs if run.option("recorder.backend") == BASELINE)
    return BASELINE if BASELINE in values else next(meant, BASELINE)


def _baseline(told: settings.Told, wanted: Wanted, picked: list[tuple[str, str]]) -> str:
    """The value that the others are compared with."""
    if told.is_guess and told.keys == (BACKEND,) and len(told.values) == 1:  # there is nothing to compare
        return wanted.baseline or BASELINE
    compared = [(f"{told.keys[0]} as what is compared", "--group-by")] if told.is_guess else []
    if wanted.baseline is not None:
        picked[:0] = compared
        return settings.meant_baseline(wanted.baseline, told)
    baseline = settings.guess_baseline(told)
    picked[:0] = [*compared, (f"{baseline} as the baseline", "--baseline")]
    return baseline


def _metric(
    taking: Taking, runs: Sequence[RunRecord], wanted: Wanted, planned_margin: float | None
) -> ComparedMetric:
    """The metric that was asked for, else that of the runs' sweep, of our runs' task, or a guess."""
    goal, unit, guessed = "", None, ""
    objectives = {run.objective for run in runs}
    swept = objectives.pop() if len(objectives) == 1 else None
    if wanted.metric is not None:
        key, goal, unit = parse_metric(wanted.metric, runs)
    elif swept is not None and taking.logged.has(swept[0]) and names.is_quality(swept[0]):
        key, goal = swept
    elif not taking.is_foreign and (named := named_metric(runs)) is not None:
        key = named
    else:
        guessed = _guess_metric(taking)
        key = guessed or DEFAULT_METRIC  # what is not there is said of the groups
    called, own_goal = told_of(key, runs)
    goal, is_asked = goal or own_goal, wanted.metric is not None
    metric = choose_metric(key, wanted.margin, runs, planned_margin, unit=unit, goal=goal, is_asked=is_asked)
    metric, shown = replace(metric, words=called), printable(key)
    if guessed:
        taking.picked.append((f"{key} as the metric{READ_AS[metric.scale]}", "--metric"))
    if (taking.is_foreign or guessed) and not goal and says_direction(key) is None:
        taking.cautions.append(
            f"Whether more or less {metric.name} is better is not known: more is taken as better. "
            f"--metric {shown}:min turns it round."
        )
    if unit is None and (small := in_another_unit(metric, runs)):
        whose = some([printable(run.name) for run in small])
        taking.cautions.append(
            f"{shown} is in percent in some runs and lies in 0 to 1 in {whose}: whether these are "
            f"fractions is not known, and nothing is said of theirs. --metric {shown}:percent says how all "
            "are logged."
        )
        unread = {run.id for run in small}
        taking.runs = [_without(run, key) if run.id in unread else run for run in taking.runs]
    return metric


def _without(run: RunRecord, key: str) -> RunRecord:
    logged, summary = ({k: v for k, v in of.items() if k != key} for of in (run.logged, run.summary))
    return replace(run, logged=logged, summary=summary)


def _guess_metric(taking: Taking) -> str:
    """The key that most likely says how good a run became: what its trainer picks the best model by, else by
    the name. Of loops under our recorder, which name none, one of what they evaluate, if it is no accuracy.
    """
    logged, runs = taking.logged, taking.logged.runs
    keys = [*logged.keys]
    if not taking.is_foreign:
        if all(run.option("recorder") is None for run in runs) or any(
            DEFAULT_METRIC in run.logged for run in runs
        ):
            return ""
        keys = [key for key in keys if key.startswith(metrics.EVAL) and logged.has(key)]
    by_trainer = Counter(key for run in runs if (key := _best_by(run)))
    if by_trainer:
        return by_trainer.most_common(1)[0][0]
    if taking.is_foreign and logged.has(DEFAULT_METRIC):
        return DEFAULT_METRIC
    key = logged.best({key: rank for key in keys if (rank := names.quality_rank(key))})
    if key is not None or not keys:
        return key or ""
    if taking.is_foreign:
        what = "which key says how good a run is cannot be told"
        raise UserError(f"--metric: {what}; name one of those logged: {logged.named()}")
    if len(keys) == 1:
        return keys[0]
    which = some([short(printable(name)) for name in sorted(keys)], MOST_NAMES)
    taking.cautions.append(
        f"Which of {which} says how good a run is cannot be told from the names: --metric KEY takes one."
    )
    return ""


def _best_by(run: RunRecord) -> str | None:
    """`metric_for_best_model` of Hugging Face's Trainer."""
    said = run.option("metric_for_best_model")
    bare = said.removeprefix("eval_") if isinstance(said, str) else ""
    return next((k for k in (said, f"eval/{bare}", f"eval_{bare}") if bare and is_logged(k, [run])), None)


def _with_clock(run: RunRecord) -> RunRecord:
    """The run with our names for its step, epoch, loss and clock, where it has these under others."""
    pairs = [
        (metrics.STEP, (key for key in names.STEPS if len(run.values(key)))),
        (metrics.EPOCH, (key for key in names.EPOCHS if key in run.logged)),
        (metrics.LOSS, (key for key in names.LOSSES if key in run.logged)),
    ]
    added = {ours: run.logged[key] for ours, found in pairs if (key := next(found, None))}
    if (clock := _clock(run)) is not None:
        clocks = {metrics.ELAPSED: clock, metrics.TRAIN_SECONDS: clock}
        run = run.adding({ours: values for ours, values in clocks.items() if ours not in run.logged})
    return replace(run, logged=added | run.logged)


def _clock(run: RunRecord) -> np.ndarray | None:
    """Seconds that the run was at work, of each row. W&B's `_runtime` begins anew where a run is resumed
    offline: the parts are added up, without what lies between them.
    """
    runtime, stamps = run.numbers("_runtime"), run.numbers("_timestamp")
    rows = np.flatnonzero(np.isfinite(runtime))
    if not len(rows):
        return stamps - stamps[np.isfinite(stamps)][0] if np.isfinite(stamps).any() else None
    known, gone = runtime[rows], np.diff(runtime[rows])
    # Rows that W&B wrote in another order than they came fall by less than a second.
    gone = np.where(gone < -1.0, np.maximum(known[1:], 0.0), np.maximum(gone, 0.0))
    found = np.full(run.rows, np.nan)
    found[rows] = known[0] + np.concatenate([[0.0], np.cumsum(gone)])
    return found


def _add_facts(taking: Taking) -> None:
    """Let each run record the machine that W&B saw. Where some have none, and the others had one device, none
    has: a run that died too early to say it would be set apart from its fellows.
    """
    runs = taking.runs
    lacking = [n for n in taking.theirs if not isinstance(runs[n].summary.get(metrics.ENVIRONMENT), dict)]
    facts = {n: found for n in lacking if (found := runs[n].machine.facts)}
    if len(facts) == len(lacking) or len({found.get("device_name") for found in facts.values()}) > 1:
        for n, found in facts.items():
            runs[n] = replace(runs[n], summary=runs[n].summary | {metrics.ENVIRONMENT: found})


def _take(
    taking: Taking,
    what: str,
    asked: str | None,
    pattern_of: Callable[[str], names.Pattern | None],
    ours: tuple[str, str],
) -> str | None:
    """Put the key that was asked for, or most likely is meant, under our name, in rows or, where none has
    any, in the summary; of our own runs only what was asked for. Returns its unit, None where there is none.

    Raises UserError for a key that no run has as a number.
    """
    logged = taking.logged
    if asked is not None and not logged.has(asked):
        near = nearest_key(asked, [*logged.keys])
        said = f"no run has it as a number; {near and near + ' '}logged: {logged.named()}"
        raise UserError(f"--{what} {asked!r}: {said}")
    if asked is None and any(map(logged.has, ours)):
        return getattr(taking.quantities, "speed" if what == "throughput" else "memory")
    found = {key: found for key in logged.keys if (found := pattern_of(key)) and found.rank is not None}
    key = asked or (logged.best({key: one.rank for key, one in found.items()}) if taking.theirs else None)
    if key is None:
        return None
    read_as = pattern_of(key) or names.Pattern("")
    for n in taking.theirs if asked is None else range(len(taking.runs)):
        taking.runs[n] = _renamed(taking.runs[n], key, ours, read_as.apply)
    if asked is None:
        taking.picked.append((f"{key}{read_as.how} as the {what}", f"--{what}"))
    else:
        taking.said.append(f"read {printable(key)}{read_as.how} as the {what}")
    if re.search(r"(?:^|/)train_\w+_per_second$", key):
        taking.cautions.append(
            f"{key} is Hugging Face's: of the whole time of a training, evaluations and checkpoints in it."
        )
    return read_as.unit or (names.last_part(key) if what == "throughput" else "")


def _renamed(run: RunRecord, key: str, ours: tuple[str, str], change: Callable[[Any], Any]) -> RunRecord:
    values, told = run.numbers(key), run.summary_number(key)
    summary = {k: v for k, v in run.summary.items() if k not in ours}
    logged = {k: c for k, c in run.logged.items() if k != ours[0] or told is not None}
    with np.errstate(all="ignore"):
        if np.isfinite(values).any():
            return replace(run.adding({ours[0]: change(values)}), summary=summary)
        summary |= {} if told is None else {ours[1]: float(change(np.float64(told)))}
    return replace(run, summary=summary, logged=logged)
