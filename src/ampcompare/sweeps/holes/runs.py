"""The runs of a sweep, by what its database, its jobs, its records and W&B's server say of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.cluster.array import Array, rows
from ampcompare.sweeps.cluster.words import split
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.prepare import Prepared, prepare, prepared
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.run import Request
from ampcompare.sweeps.storage import Database, check_storage, sqlite_path, sqlite_url
from ampcompare.sweeps.table import R, find_definition, rows_of
from ampcompare.sweeps.worker import planned

BY_HAND = (129, 130, 143)  # exit codes of a run that somebody stopped; hyperband's, under W&B's agent, is 255


class State(Enum):
    """The word for how a point of a sweep stands."""

    FINISHED = "finished"
    EARLY = "stopped early"
    RUNNING = "running"
    FAILED = "failed"
    CRASHED = "crashed"
    STOPPED = "stopped"
    REFUSED = "refused"
    MISSING = "missing"

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do at the point."""
        return self in (State.FINISHED, State.EARLY)


OF_ROWS = {
    "finished": (State.FINISHED, ""),
    "stopped": (State.EARLY, ""),
    "failed": (State.FAILED, ""),
    "lost": (State.CRASHED, "its worker went away"),
    "running": (State.RUNNING, ""),
    "queued": (State.STOPPED, "queued again; the sweep's command goes on with it"),
}


@dataclass(frozen=True)
class Attempt:
    """One run of a sweep. `place` is where the sweep's database has it, if it does; else its config tells."""

    run_id: str
    state: State
    why: str = ""
    config: Any = field(default_factory=dict, repr=False)
    began: float = 0.0  # seconds since 1970
    value: float | None = None  # the last of the sweep's metric
    place: int | None = None


@dataclass(frozen=True)
class Runs:
    """A sweep, and all that is known of its runs. `unasked`: why nobody knows which of an array's wait."""

    ready: Prepared
    sweep: Sweep  # as it began where that is known, with all seeds so far
    is_known: bool  # by the database
    attempts: Sequence[Attempt]
    unasked: str


def runs_of(source: str, words: Sequence[str], request: Request) -> Runs:
    """What there is of a sweep of a file, or of `wandb:ENTITY/PROJECT/SWEEP`, run with these words (a batch
    system's are none of its runs'). Writes and starts nothing. Raises UserError.
    """
    check_storage(request.storage)
    ready, on_server = _prepared(source, split(words)[1], request)
    there = ready.sweep
    if there.on_server:  # W&B's agent alone stops runs early
        ready = dataclasses.replace(ready, sweep=dataclasses.replace(there, hyperband=None))
    known, told = _of_database(ready, request.storage or sqlite_url(ready.output))
    began, of_jobs, unasked = _of_array(ready)
    by_id = {attempt.run_id: attempt for attempt in [*of_jobs, *told]}
    found = [_joined(by_id.pop(run.id, None), _attempt(run, there)) for run in _records(ready, on_server)]
    attempts = [_with_last_words(attempt, ready.output) for attempt in [*found, *by_id.values()]]
    return Runs(ready, known or began or ready.sweep, known is not None, attempts, unasked)


def _prepared(source: str, words: Sequence[str], request: Request) -> tuple[Prepared, Sequence[RunRecord]]:
    """The sweep, and the runs that W&B's server has of it."""
    if not source.startswith(API_PREFIX):
        return prepare(source, words, request.name, request.control), ()
    for option, value in {"--name": request.name, "--control": request.control}.items():
        if value is not None:
            raise UserError(f"{option} {value}: is of a sweep without a server; leave it out")
    entity, project, name = parse_source(source)
    config, runs = read_server_sweep(source, brief=True)
    # The server knows more keys than a file may have.
    known = {key: value for key, value in config.items() if key in KEYS and value is not None}
    server = {"name": name, "entity": entity, "project": project, "control": False, "on_server": True}
    return prepared(dataclasses.replace(sweep_of(Path(source), known), **server), words), runs


def _of_database(ready: Prepared, url: str) -> tuple[Sweep | None, list[Attempt]]:
    """The sweep as its database has it, with all seeds so far, and its runs; None where there is none.

    Raises UserError where it cannot be read, and where it holds another sweep under this name.
    """
    path, name = sqlite_path(url), ready.sweep.name
    if path is not None and not path.is_file():
        return None, []
    database = Database(url, None)
    try:
        with database.engine.connect() as connection:
            if (written := find_definition(connection, name, url)) is None:
                return None, []
            there = rows_of(connection, R.sweep == name, R.place >= 0)
    finally:
        database.engine.dispose()
    groups = [seeds for seeds, *_ in written["groups"]]
    sweep = _agreed(ready, f"the sweep in {path or 'the database'}", written["sweep"], groups)
    begun = [row for row in there if row.state in OF_ROWS and (row.state != "queued" or row.starts)]
    # What others have begun, or nobody yet, its records tell.
    return sweep, [
        Attempt(row.run_id, *OF_ROWS[row.state], planned(row), 1e12 + row.place, row.value, row.place)
        for row in begun
    ]


def _agreed(ready: Prepared, what: str, began: dict[str, Any], added: Sequence[Sequence[Any]]) -> Sweep:
    """The sweep as it began, with all seeds so far, those included that only the file has."""
    ours = definition.definition(ready.sweep, ready.words)
    try:
        sweep, more = definition.agreed(ready.sweep, began, ours, added)
    except definition.Changed as changed:
        todo = "give it the file and the words that it was run with"
        raise UserError(f"{ready.sweep.path}: {what} differs in {changed}; {todo}") from None
    return dataclasses.replace(sweep, added=(*sweep.added, *([more] if more else [])))


def _of_array(ready: Prepared) -> tuple[Sweep | None, list[Attempt], str]:
    """The runs of a job array by its notes and by Slurm's queue: some programs leave no record, and a run
    that waits has none. With the sweep as it began, and why the queue could not be asked.
    """
    array, unasked = Array(ready.output.resolve()), ""
    if not array.has_begun:
        return None, [], ""
    kept = array.kept()
    sweep = _agreed(ready, f"the job array in {ready.output}", kept["definition"], kept["added"])
    runs = rows(sweep, kept, ready.told)
    ended, queue = {run.run_id: array.ended(run.run_id) for run in runs}, {}
    if None in ended.values():  # else the folder may have come to a machine without Slurm since
        try:
            queue = array.in_queue()
        except UserError as problem:
            unasked = str(problem)
    found = []
    for run in runs:
        code = ended[run.run_id]
        if run.run_id in queue:
            why = f"in the queue as job {queue[run.run_id][0]}"
            found.append(Attempt(run.run_id, State.RUNNING, why, planned(run)))
        elif code is not None:
            state, why = (State.FAILED, f"exit code {code}") if code else (State.FINISHED, "")
            found.append(Attempt(run.run_id, state, why, planned(run)))
    return sweep, found, unasked


def _records(ready: Prepared, on_server: Sequence[RunRecord]) -> Iterator[RunRecord]:
    """The runs of the sweep that left a record, here or on the server."""
    yield from on_server
    known, folder, name = {run.id for run in on_server}, ready.output, ready.sweep.name
    own = folder / "wandb" / f"sweep-{name}"  # where the parameters of its runs are, as W&B's agent has it
    for run in load_runs([folder / "wandb"]) if has_records(folder) else ():
        is_own = name in (run.sweep_id, run.group) or (own / f"config-{run.id}.yaml").is_file()
        if is_own and run.id not in known:
            yield run


def _attempt(run: RunRecord, sweep: Sweep) -> Attempt:
    """A run as an attempt at a point, its outcome in the words of the report."""
    metric = sweep.metric.name if sweep.metric else None
    outcome, why = outcome_of(run, metric or metrics.EVAL_ACCURACY)
    state = State.CRASHED if why == NO_EXIT else State(outcome.value)
    by_hand = run.exit_code in BY_HAND or run.ended_as == "preempted"
    if outcome is Outcome.STOPPED and sweep.hyperband and not by_hand:
        state = State.EARLY
    values = run.values(metric) if metric else ()
    value = float(values[-1]) if len(values) else run.summary_number(metric) if metric else None
    began = run.started_at.timestamp() if run.started_at else 0.0
    return Attempt(run.id, state, why, run.config, began, value)


def _joined(known: Attempt | None, record: Attempt) -> Attempt:
    """The record has the reason; who made the run knows whether it goes on, and the exit code."""
    if known is None:
        return record
    value = record.value if known.value is None else known.value
    is_told = {
        State.FINISHED: record.state in (State.FAILED, State.REFUSED),
        State.FAILED: record.state in (State.FAILED, State.REFUSED),
        State.EARLY: False,
    }.get(known.state, record.state in (State.FINISHED, State.RUNNING))
    state, why = (record.state, record.why) if is_told else (known.state, known.why)
    return dataclasses.replace(known, state=state, why=why, value=value)


def _with_last_words(attempt: Attempt, folder: Path) -> Attempt:
    """A failed run of which nothing else is known, with the last line that it printed."""
    if attempt.state is not State.FAILED or (attempt.why and not attempt.why.startswith("exit code")):
        return attempt
    line = last_words(folder / "logs" / f"{attempt.run_id}.log")
    return dataclasses.replace(attempt, why=": ".join(filter(None, (attempt.why, line))))
