"""What the database of a sweep knows of its runs, read and nothing written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from ampcompare.errors import UserError
from ampcompare.sweeps import attempts, definition
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.standing import Attempt, State
from ampcompare.sweeps.holes.target import DATABASE, Target
from ampcompare.sweeps.ledger import Ledger
from ampcompare.sweeps.storage import SweepStorage, as_user_error, holds_studies, open_storage, sqlite_path
from ampcompare.sweeps.worker import planned

STATES = {
    "finished": State.FINISHED,
    "stopped": State.EARLY,
    "failed": State.FAILED,
    "lost": State.CRASHED,
    "interrupted": State.STOPPED,
    "running": State.RUNNING,
    "waiting": State.MISSING,
}
ELSEWHERE = "elsewhere"  # of a run that somebody else had begun when the holes were filled
# Of a run that was queued again, by what became of it before; else it failed, and its hole is being filled.
QUEUED_AGAIN = {"interrupted": State.STOPPED, "lost": State.CRASHED, ELSEWHERE: State.MISSING}
SAID = {
    "lost": "its worker went away",
    "interrupted": "it was interrupted; the sweep's command goes on with it",
    "waiting": "queued again",
}


@dataclass(frozen=True)
class Known:
    """The sweep as its database has it, with all seeds so far, and an attempt for each run that was begun."""

    sweep: Sweep
    attempts: tuple[Attempt, ...]


def read_database(target: Target, grace_seconds: float) -> Known | None:
    """What the database knows; None where there is none, or it has no such sweep.

    Raises UserError where it cannot be read, and where it holds another sweep under this name.
    """
    if not _is_there(target):
        return None
    with as_user_error(target.url):
        if not holds_studies(target.url):  # Optuna would make its tables there
            return None
        storage = open_storage(target.url, 1.0, grace_seconds)
        try:
            return _known(target, storage)
        finally:
            storage.engine.dispose()


def _known(target: Target, storage: SweepStorage) -> Known | None:
    try:
        study = optuna.load_study(study_name=target.sweep.name, storage=storage)
    except KeyError:  # it has others
        return None
    written = study.user_attrs
    if definition.KEY not in written:
        return None
    sweep = _agreed(target, written)
    stale = set(storage._get_stale_trial_ids(study._study_id))
    trials = study.get_trials(deepcopy=False)
    dropped = {"surplus", "beyond"}
    counted = [t for t in trials if not dropped & t.user_attrs.keys()]
    by_run = {attempts.run_of(t).get("id") or t.number: t for t in counted}  # of one run the last try
    draws = {attempts.run_of(t).get("id") for t in counted if attempts.is_first(t)}
    before = {t.number: attempts.state_of(t) for t in trials}
    found = [_attempt(t, t._trial_id in stale, before) for t in by_run.values()]
    return Known(sweep, tuple(dataclasses.replace(a, is_draw=a.run_id in draws) for a in found if a))


def _is_there(target: Target) -> bool:
    if target.has_own_database:
        return (target.folder / DATABASE).is_file()
    with as_user_error(target.url):
        path = sqlite_path(target.url)
    return path is None or path.is_file()


def _agreed(target: Target, written: dict[str, Any]) -> Sweep:
    """The sweep as it began, with the seeds that were added since and those that the file has beyond."""
    theirs = json.loads(written[definition.KEY])
    ours = definition.definition(target.sweep, target.words)
    try:
        sweep, more = definition.agreed(target.sweep, theirs, ours)
    except definition.Changed as changed:
        where = f"the sweep in {target.folder / DATABASE if target.has_own_database else 'the database'}"
        todo = "give it the file and the words that it was run with"
        raise UserError(f"{target.sweep.path}: {where} differs in {changed}; {todo}") from None
    ledger = cast(Ledger, SimpleNamespace(read=lambda: written))
    added = tuple(group.seeds for group in definition.groups(ledger) if group.seeds)
    known = [seed for group in added for seed in group]
    beyond = tuple(seed for seed in more if seed not in known)
    return dataclasses.replace(sweep, added=(*added, *([Added(beyond).seeds] if beyond else [])))


def _attempt(trial: FrozenTrial, is_stale: bool, before: Mapping[int, str]) -> Attempt | None:
    """What a trial says of its run. `before` has the state of every trial by its number."""
    run, word = attempts.run_of(trial), attempts.state_of(trial)
    # Its worker has not decided yet, or died before it did; of a run of others' their record tells.
    if "parameters" not in run or word == ELSEWHERE:
        return None
    state, why = STATES.get(word, State.RUNNING), SAID.get(word, "")
    if word == "running" and is_stale:
        state, why = State.CRASHED, "its worker gives no sign of life"
    if word == "waiting" and (repeated := trial.user_attrs.get("repeats")) is not None:
        state = QUEUED_AGAIN.get(before.get(repeated, ""), State.FAILED)
    began = math.inf if trial.state == TrialState.WAITING else _seconds(trial)
    config = planned(run["parameters"], run.get("plan", {}))
    return Attempt(run.get("id", ""), state, why, config, began, trial.value if trial.values else None)


def _seconds(trial: FrozenTrial) -> float:
    return trial.datetime_start.timestamp() if trial.datetime_start else 0.0


def joined(known: Sequence[Attempt], recorded: Sequence[Attempt]) -> list[Attempt]:
    """Every run once, of what the database and the records say of it."""
    records = {attempt.run_id: attempt for attempt in recorded}
    found = [_joined(attempt, records.pop(attempt.run_id, None)) for attempt in known]
    return [*found, *records.values()]


def _joined(known: Attempt, record: Attempt | None) -> Attempt:
    """The record has the reason; the database knows whether a worker is at it, and the exit code."""
    if record is None:
        return known
    value = record.value if known.value is None else known.value
    told = dataclasses.replace(record, config=known.config, value=value, is_draw=known.is_draw)
    is_told = record.state in (State.FAILED, State.REFUSED)
    if known.state is State.EARLY or (known.state is State.FINISHED and not is_told):
        return dataclasses.replace(told, state=known.state, why="")
    if known.state is State.FINISHED:
        return told
    if record.state is State.FINISHED and known.state is not State.FAILED:
        return told  # it had ended before its worker could say so
    if known.state is State.FAILED:
        return told if is_told else dataclasses.replace(told, state=State.FAILED, why=known.why)
    if record.state is State.RUNNING:
        return dataclasses.replace(told, why=known.why if known.state is State.RUNNING else "")
    why = known.why if known.state is State.RUNNING else known.why or record.why
    return dataclasses.replace(told, state=known.state, why=why, began=known.began)
