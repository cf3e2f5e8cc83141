"""How a set of runs is read: by what was asked for, else by guess, and what was guessed is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report.foreign import names
from ampcompare.report.foreign.logged import Logged, guess_evaluated, guess_metric, has_number, whose
from ampcompare.report.foreign.settings import Told, beside_ours, guess_baseline, meant_baseline, tell_apart
from ampcompare.report.foreign.taken import are_ours, take
from ampcompare.report.runs.metric import (
    DEFAULT_METRIC,
    ComparedMetric,
    Unit,
    as_unit,
    choose_metric,
    in_another_unit,
    says_direction,
    split_goal,
)
from ampcompare.report.runs.named import named_metric, told_of
from ampcompare.report.runs.quantities import Quantities
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.words import listed, printable, short, some

BASELINE = "none"  # of our own runs
MOST_KEYS = 12
Picked = tuple[str, str]  # what was taken by guess, and the option that takes another


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
    unit: str | None = None
    goal: str | None = None


@dataclass(frozen=True)
class Reading:
    """The figures of the runs, what they are compared by, and what has to be said of how they were read."""

    runs: list[RunRecord]
    settings: list[dict[str, str]] | None
    seeds: list[Any] | None
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
    unit = as_unit(wanted.unit)
    is_foreign = not any(are_ours(runs))
    taken = take(runs, wanted.throughput, wanted.memory)
    said, doubts = list(taken.said), list(taken.cautions)
    picked: list[Picked] = []
    key, goal = _metric(runs, wanted, is_foreign, picked, doubts)
    called, own_goal = told_of(key, runs)
    options: dict[str, Any] = {"unit": unit, "goal": goal or own_goal, "is_asked": wanted.metric is not None}
    metric = choose_metric(key, wanted.margin, runs, planned_margin, **options)
    metric = replace(metric, words=called)
    if is_foreign or picked:
        said += _how_read(metric, wanted, picked)
        if not metric.goal and says_direction(key) is None:
            doubts.append(
                f"Whether more or less {metric.name} is better is not known: more is taken as better. "
                "--goal minimize turns it round."
            )
    read_runs = list(taken.runs)
    if unit is None and (small := in_another_unit(metric, runs)):
        doubts.append(_UNITS.format(key=printable(key), runs=whose(small)))
        unread = {run.id for run in small}
        read_runs = [_without(f, key) if f.id in unread else f for f in read_runs]
    if not is_foreign:
        keys = tuple(wanted.group_by or (BACKEND,))
        aside, left_out = beside_ours(runs, [*keys, *wanted.ignore])
        lines, doubts = [*_in_a_line([*picked, *taken.picked]), *said], [*doubts, *left_out]
        baseline = wanted.baseline or _of_fp32(runs)
        return Reading(read_runs, None, None, aside, metric, taken.quantities, keys, baseline, tuple(lines), tuple(doubts))
    told = tell_apart(runs, wanted.group_by, wanted.ignore)
    baseline = _baseline(told, wanted, picked)
    lines = [*_in_a_line([*picked, *taken.picked]), *said]
    doubts += [*told.left_out, *([])]
    return Reading(read_runs, [dict(o) for o in told.settings], list(told.seeds), frozenset(), metric, taken.quantities, told.keys, baseline, tuple(lines), tuple(doubts))


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """The baseline of our runs and of recorded loops, whose word for fp32 is their own."""
    values = [str(run.option(BACKEND)) for run in runs]
    meant = (str(run.option(BACKEND)) for run in runs if run.option("recorder.backend") == BASELINE)
    return BASELINE if BASELINE in values else next(meant, BASELINE)


def _without(run: RunRecord, key: str) -> RunRecord:
    return replace(run, logged={n: c for n, c in run.logged.items() if n != key}, summary={n: v for n, v in run.summary.items() if n != key})


_UNITS = (
    "{key} is in percent in some runs and lies in 0 to 1 in {runs}: whether these are fractions is not "
    "known, and nothing is said of theirs. --unit says how all are logged."
)
_TIME = "Training time is the time since the run began: start, evaluations and checkpoints are in it."


def _metric(
    runs: Sequence[RunRecord], wanted: Wanted, is_foreign: bool, picked: list[Picked], doubts: list[str]
) -> tuple[str, str]:
    """The key and the goal that was given; adds what was taken by guess, or why nothing was."""
    if wanted.metric is not None:
        return split_goal(wanted.metric, wanted.goal, runs)
    if (objective := _objective(runs)) is not None:
        return objective[0], wanted.goal or objective[1]
    if not is_foreign and (named := named_metric(runs)) is not None:
        return split_goal(named, wanted.goal, runs)
    logged = Logged(runs)
    key = guess_metric(logged) if is_foreign else _evaluated(logged, doubts)
    if key is None and (not is_foreign or not logged.keys):
        return DEFAULT_METRIC, wanted.goal or ""  # what is not there is said of the groups
    if key is None:
        what = "which key says how good a run is cannot be told"
        raise UserError(f"--metric: {what}; name one of those logged: {logged.named()}")
    picked.append((f"{key} as the metric", "--metric"))
    return split_goal(key, wanted.goal, runs)


def _evaluated(logged: Logged, doubts: list[str]) -> str | None:
    """What the evaluations of loops under the recorder give, which name no metric; None where they log an
    accuracy, even if it is NaN, and where no name tells, which is said.
    """
    if not any(run.option("recorder") is not None for run in logged.runs):
        return None  # our own loop names its metric
    if any(DEFAULT_METRIC in run.logged for run in logged.runs):
        return None
    key, known = guess_evaluated(logged)
    if key is None and known:
        which = some([short(printable(name)) for name in known], MOST_KEYS)
        doubts.append(
            f"Which of {which} says how good a run is cannot be told from the names: --metric KEY takes one."
        )
    return key


def _objective(runs: Sequence[RunRecord]) -> tuple[str, str] | None:
    """The metric of the one sweep that all runs are of, where any of them has it and it is one of quality:
    speed, memory and energy have a place of their own here.
    """
    found = {run.objective for run in runs}
    objective = found.pop() if len(found) == 1 else None
    if objective is None or not any(has_number(run, objective[0]) for run in runs):
        return None
    return objective if names.is_quality(objective[0]) else None


def _how_read(metric: ComparedMetric, wanted: Wanted, picked: list[Picked]) -> list[str]:
    """How the values of the metric are read, where that is by guess: beside what was picked, or alone."""
    words = {Unit.FRACTION: "a fraction, 0 to 1", Unit.PERCENT: "in percent, 0 to 100"}
    if metric.scale is Unit.PLAIN or wanted.unit is not None:
        return []
    if wanted.metric is None and picked:
        picked[0] = (f"{picked[0][0]} ({words[metric.scale]})", f"{picked[0][1]}, --unit")
        return []
    return [f"read {metric.key} as {words[metric.scale]}, by its name and values: --unit for another"]


def _baseline(told: Told, wanted: Wanted, picked: list[Picked]) -> str:
    """The value that the others are compared with."""
    values = {settings.get(told.keys[0]) for settings in told.settings}
    if told.is_guess and told.keys == (BACKEND,) and len(values) == 1:  # there is nothing to compare
        return wanted.baseline or BASELINE
    if told.is_guess:
        picked.insert(0, (f"{told.keys[0]} as what is compared", "--group-by"))
    if wanted.baseline is not None:
        return meant_baseline(wanted.baseline, told)
    baseline = guess_baseline(told)
    picked.insert(1 if told.is_guess else 0, (f"{baseline} as the baseline", "--baseline"))
    return baseline


def _in_a_line(picked: Sequence[Picked]) -> list[str]:
    """`took val_acc as the metric and gpu_mem as the memory: --metric, --memory for another`."""
    if not picked:
        return []
    whole = listed([printable(what) for what, _ in picked])
    return [f"took {whole}: {', '.join(option for _, option in picked)} for another"]
