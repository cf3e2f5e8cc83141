"""The runs of a sweep, by what its database, its jobs, its records and W&B's server say of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from sqlalchemy import inspect

from ampcompare import metrics
from ampcompare.config.load import split_override
from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.cluster.array import Array, in_queue, rows
from ampcompare.sweeps.cluster.words import split
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.prepare import Prepared, check_name, prepare, prepared
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.run import Request
from ampcompare.sweeps.storage import Database, check_storage, sqlite_path, sqlite_url
from ampcompare.sweeps.table import SWEEPS, groups_of, read_definition, refuse_former, rows_of
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
    given: Mapping[str, str]  # words of the command line
    url: str  # of its database, which need not be there
    is_known: bool  # by the database
    attempts: Sequence[Attempt]
    unasked: str


def runs_of(source: str, words: Sequence[str], request: Request) -> Runs:
    """What there is of a sweep of a file, or of `wandb:ENTITY/PROJECT/SWEEP`, run with these words (a batch
    system's are none of its runs'). Writes and starts nothing. Raises UserError.
    """
    check_storage(request.storage)
    words = split(words)[1]
    ready, on_server = _prepared(source, words, request)
    prunes, sweep = ready.sweep.hyperband is not None, ready.sweep
    if sweep.on_server:  # W&B's agent alone stops runs early
        sweep = dataclasses.replace(sweep, hyperband=None)
    ready, url = dataclasses.replace(ready, sweep=sweep), request.storage or sqlite_url(ready.output)
    known, in_database = _of_database(ready, url)
    began, of_jobs, unasked = _of_array(ready)
    told = {attempt.run_id: attempt for attempt in [*of_jobs, *in_database]}
    metric, found = sweep.metric.name if sweep.metric else None, []
    for run in _records(ready, on_server):
        found.append(_joined(told.pop(run.id, None), _attempt(run, prunes, metric)))
    found = [_with_last_words(attempt, ready.output) for attempt in [*found, *told.values()]]
    given = dict(split_override(word) for word in words)
    return Runs(ready, known or began or sweep, given, url, known is not None, found, unasked)


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
    sweep = dataclasses.replace(sweep_of(Path(source), known), name=name, entity=entity, project=project)
    check_name(sweep.name)
    return prepared(dataclasses.replace(sweep, control=False, on_server=True), words), runs


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
            there = inspect(connection).has_table(SWEEPS.name)
            if not (there and (found := read_definition(connection, name))):
                refuse_former(connection, name, url)
                return None, []
            written, rows_there = found[0], rows_of(connection, name)
    finally:
        database.engine.dispose()
    ours = definition.definition(ready.sweep, ready.words)
    try:
        sweep, more = definition.agreed(ready.sweep, written["sweep"], ours)
    except definition.Changed as changed:
        raise _differs(ready, f"the sweep in {path or 'the database'}", changed) from None
    added = [group.seeds for group in groups_of(written) if group.seeds]
    beyond = tuple(seed for seed in more if not any(seed in seeds for seeds in added))
    sweep = dataclasses.replace(sweep, added=(*added, *([beyond] if beyond else [])))
    return sweep, [attempt for row in rows_there if (attempt := _of_row(row))]


def _differs(ready: Prepared, what: str, changed: UserError) -> UserError:
    todo = "give it the file and the words that it was run with"
    return UserError(f"{ready.sweep.path}: {what} differs in {changed}; {todo}")


def _of_row(row: Row) -> Attempt | None:
    """What a row says of its run; nothing of one that others have begun, or nobody yet."""
    state, why = {
        "finished": (State.FINISHED, ""),
        "stopped": (State.EARLY, ""),
        "failed": (State.FAILED, ""),
        "lost": (State.CRASHED, "its worker went away"),
        "running": (State.RUNNING, ""),
        "queued": (State.STOPPED, "queued again; the sweep's command goes on with it"),
    }.get(row.state, (None, ""))
    if state is None or (row.state == "queued" and not row.starts):
        return None
    config = planned(row.parameters, row.plan)
    return Attempt(row.run_id, state, why, config, 1e12 + row.place, row.value, row.place)


def _of_array(ready: Prepared) -> tuple[Sweep | None, list[Attempt], str]:
    """The runs of a job array by its notes and by Slurm's queue: some programs leave no record, and a run
    that waits has none. With the sweep as it began, and why the queue could not be asked.
    """
    array, unasked = Array(ready.output.resolve()), ""
    if not array.has_begun:
        return None, [], ""
    try:
        sweep, kept = array.agreed(ready.sweep, ready.words)
    except definition.Changed as changed:
        raise _differs(ready, f"the job array in {ready.output}", changed) from None
    runs = rows(sweep, kept, ready.told)
    ended, queue = {run.run_id: array.ended(run.run_id) for run in runs}, {}
    if None in ended.values():  # else the folder may have come to a machine without Slurm since
        try:
            queue = in_queue(array)
        except UserError as problem:
            unasked = str(problem)
    found = []
    for run in runs:
        code, config = ended[run.run_id], planned(run.parameters, run.plan)
        if run.run_id in queue:
            why = f"in the queue as job {queue[run.run_id][0]}"
            found.append(Attempt(run.run_id, State.RUNNING, why, config))
        elif code is not None:
            state, why = (State.FAILED, f"exit code {code}") if code else (State.FINISHED, "")
            found.append(Attempt(run.run_id, state, why, config))
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


def _attempt(run: RunRecord, prunes: bool, metric: str | None) -> Attempt:
    """A run as an attempt at a point, its outcome in the words of the report."""
    outcome, why = outcome_of(run, metric or metrics.EVAL_ACCURACY)
    state = State.CRASHED if why == NO_EXIT else State(outcome.value)
    by_hand = run.exit_code in BY_HAND or run.ended_as == "preempted"
    if outcome is Outcome.STOPPED and prunes and not by_hand:
        state = State.EARLY
    value = None
    if metric is not None:
        values = run.values(metric)
        value = float(values[-1]) if len(values) else run.summary_number(metric)
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
