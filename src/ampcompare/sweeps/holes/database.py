"""What the database of a sweep knows of its runs, read and nothing written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect

from ampcompare.errors import UserError
from ampcompare.sweeps import definition
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.standing import Attempt, State
from ampcompare.sweeps.holes.target import DATABASE, Target
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.storage import Database, sqlite_path
from ampcompare.sweeps.table import SWEEPS, groups_of, read_definition, refuse_former, rows_of
from ampcompare.sweeps.worker import planned

STATES = {
    "finished": State.FINISHED,
    "stopped": State.EARLY,
    "failed": State.FAILED,
    "lost": State.CRASHED,
    "running": State.RUNNING,
}
ELSEWHERE = "elsewhere"  # of a run that somebody else had begun when the holes were filled
NEWEST = 1e12  # seconds: behind all that a clock says
INTERRUPTED = "it was interrupted; the sweep's command goes on with it"


@dataclass(frozen=True)
class Known:
    """The sweep as its database has it, with all seeds so far, and an attempt for each run that was begun."""

    sweep: Sweep
    attempts: tuple[Attempt, ...]


def read_database(target: Target) -> Known | None:
    """What the database knows; None where there is none, or it has no such sweep.

    Raises UserError where it cannot be read, and where it holds another sweep under this name.
    """
    if not _is_there(target):
        return None
    name, database = target.sweep.name, Database(target.url, None)
    try:
        with database.engine.connect() as connection:
            there = inspect(connection).has_table(SWEEPS.name)
            if not (there and (found := read_definition(connection, name))):
                refuse_former(connection, name, target.url)
                return None
            sweep = _agreed(target, found[0])
            attempts = tuple(a for row in rows_of(connection, name) if (a := _attempt(row)))
            return Known(sweep, attempts)
    finally:
        database.engine.dispose()


def _is_there(target: Target) -> bool:
    if target.has_own_database:
        return (target.folder / DATABASE).is_file()
    path = sqlite_path(target.url)
    return path is None or path.is_file()


def _agreed(target: Target, written: Mapping[str, Any]) -> Sweep:
    """The sweep as it began, with the seeds that were added since and those that the file has beyond."""
    ours = definition.definition(target.sweep, target.words)
    try:
        sweep, more = definition.agreed(target.sweep, written["sweep"], ours)
    except definition.Changed as changed:
        where = f"the sweep in {target.folder / DATABASE if target.has_own_database else 'the database'}"
        todo = "give it the file and the words that it was run with"
        raise UserError(f"{target.sweep.path}: {where} differs in {changed}; {todo}") from None
    added = tuple(group.seeds for group in groups_of(written) if group.seeds)
    known = [seed for group in added for seed in group]
    beyond = tuple(seed for seed in more if seed not in known)
    return dataclasses.replace(sweep, added=(*added, *([beyond] if beyond else [])))


def _attempt(row: Row) -> Attempt | None:
    """What a row says of its run; nothing of one of others, of which their record tells."""
    if row.state == ELSEWHERE:
        return None
    if row.state != "queued":
        state, why = STATES[row.state], "its worker went away" if row.state == "lost" else ""
    elif row.starts == 0:  # it failed, and its hole is being filled
        state, why = State.FAILED, "queued again"
    else:
        state, why = (State.CRASHED, "queued again") if row.attempt > 1 else (State.STOPPED, INTERRUPTED)
    began = NEWEST + row.place  # whatever was at its point before
    return Attempt(row.run_id, state, why, planned(row.parameters, row.plan), began, row.value, is_draw=True)


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
