"""A sweep looked at: every point by what its database, its records, its jobs and W&B's server say."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from sqlalchemy import inspect

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.report.words import plural
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.cluster.array import Array, in_queue, rows
from ampcompare.sweeps.cluster.words import split
from ampcompare.sweeps.file import KEYS, Objective, Sweep, sweep_of
from ampcompare.sweeps.holes.points import Points, typed
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
class Standing:
    """A point as it stands: by the first of its runs, if there are any. `row` is that of a worker for it."""

    row: Row
    values: Mapping[str, Any]
    attempts: tuple[Attempt, ...] = ()

    @property
    def state(self) -> State:
        return self.attempts[0].state if self.attempts else State.MISSING

    @property
    def why(self) -> str:
        return self.attempts[0].why if self.attempts else ""


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands. `not_begun` counts the runs of a search that are to be and have no values yet;
    `unasked` is why nobody knows which runs of its array still wait or run.
    """

    ready: Prepared
    sweep: Sweep  # as it began, where that is known
    url: str  # of its database, which need not be there
    is_known: bool  # by the database
    points: Points
    standings: Sequence[Standing]
    not_begun: int
    remarks: Sequence[str]
    unasked: str

    @property
    def open(self) -> list[Standing]:
        """The points at which something is left to do, or going on."""
        return [standing for standing in self.standings if not standing.state.is_whole]

    @property
    def is_whole(self) -> bool:
        return not self.open and not self.not_begun

    @property
    def is_bound(self) -> bool:
        """Whether only what was begun can be run, as nobody here knows what else there is to be."""
        return self.points.rows is None and (self.sweep.run_cap is None or not self.is_known)

    @property
    def counted(self) -> str:
        """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
        counts = Counter(standing.state for standing in self.standings)
        counts[State.MISSING] += self.not_begun
        said = ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state]) or "none"
        total = plural(len(self.standings) + self.not_begun, "point")
        return f"{self.sweep.name}: {total}: {said}{'; whole' if self.is_whole else ''}"


def is_on_server(name: str) -> bool:
    """Whether a name is that of a sweep on W&B's server."""
    return name.startswith(API_PREFIX)


def look(source: str, words: Sequence[str], request: Request) -> Seen:
    """Read everything there is of the runs of a sweep: of a file, or `wandb:ENTITY/PROJECT/SWEEP`.

    `words` are those that it was run with; a batch system's are none of its runs'. Writes and starts nothing.
    Raises UserError.
    """
    check_storage(request.storage)
    ready, on_server = _prepared(source, split(words)[1], request)
    prunes, sweep = ready.sweep.hyperband is not None, ready.sweep
    if sweep.on_server:  # W&B's agent alone stops runs early
        sweep = dataclasses.replace(sweep, hyperband=None)
    ready, url = dataclasses.replace(ready, sweep=sweep), request.storage or sqlite_url(ready.output)
    known, in_database = _of_database(ready, url)
    began, of_jobs, unasked = _of_array(ready)
    sweep = known or began or sweep
    points = Points(sweep, ready.same, json.dumps([sweep.name, definition.definition(sweep, ready.words)]))
    told = {attempt.run_id: attempt for attempt in [*of_jobs, *in_database]}
    metric, attempts = sweep.metric.name if sweep.metric else None, []
    for run in _records(ready, on_server):
        attempts.append(_joined(told.pop(run.id, None), _attempt(run, prunes, metric)))
    attempts = [_with_last_words(attempt, ready.output) for attempt in [*attempts, *told.values()]]
    standings, strays = _standings(points, attempts)
    not_begun = max(0, (points.planned or 0) - len(standings))
    remarks = [f"left out, as they cannot run: {text}" for text in points.left_out]
    begun = [standing for standing in standings if standing.attempts]
    if sweep.metric and _is_reached(sweep.metric, attempts) and (not_begun or len(begun) < len(standings)):
        standings, not_begun = begun, 0
        remarks.append("metric.target is reached: what had not begun then is not needed")
    if points.rows is None and points.planned is None:
        remarks.append("a search without run_cap has no end, so that no point of it is missing")
    if strays:
        which = f"({strays[0].run_id})"
        remarks.append(f"{plural(len(strays), 'run')} of this sweep at none of its points {which}")
    if not_begun == 0 and all(standing.state.is_whole for standing in standings):
        unasked = ""
    remarks += [f"{unasked}: some of them may run"] if unasked else []
    return Seen(ready, sweep, url, known is not None, points, standings, not_begun, remarks, unasked)


def _prepared(source: str, words: Sequence[str], request: Request) -> tuple[Prepared, Sequence[RunRecord]]:
    """The sweep, and the runs that W&B's server has of it."""
    if not is_on_server(source):
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


def _is_reached(metric: Objective, attempts: Sequence[Attempt]) -> bool:
    """Whether a finished run has come to the target of the metric, where there is one."""
    if metric.target is None:
        return False
    values = [a.value for a in attempts if a.state is State.FINISHED and a.value is not None]
    return any(v >= metric.target if metric.maximize else v <= metric.target for v in values)


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


def _standings(points: Points, attempts: Sequence[Attempt]) -> tuple[list[Standing], list[Attempt]]:
    """Every point by the runs that there are of it, and the runs at none: one that is done makes it whole,
    whatever failed before; else one that goes on; else the newest tells.
    """
    # What is done first, so that of points with the same values each gets one.
    tried = sorted(attempts, key=lambda a: (not a.state.is_whole, a.state is not State.RUNNING, -a.began))
    if points.rows is None:
        return _drawn(points, tried), []
    at: list[list[Attempt]] = [[] for _ in points.rows]
    strays = []
    for attempt in tried:
        if numbers := points.find(attempt.config):
            number = min(numbers, key=lambda number: len(at[number]))
            at[attempt.place if attempt.place in numbers else number].append(attempt)
        elif attempt.state is not State.REFUSED:
            strays.append(attempt)
    rows_and_runs = zip(points.rows, at, strict=True)
    return [Standing(row, points.named(row.parameters), tuple(runs)) for row, runs in rows_and_runs], strays


def _drawn(points: Points, tried: Sequence[Attempt]) -> list[Standing]:
    """A search has the points that it has drawn: each set of values is one, and more where it was drawn more
    than once. What is whole or goes on was drawn by itself, and so was what a database has; of the others
    nobody knows which repeats which.
    """
    by_values: dict[Any, list[Attempt]] = {}
    for attempt in tried:
        by_values.setdefault(tuple(map(typed, points.values(attempt.config))), []).append(attempt)
    found: list[Standing] = []
    for runs in sorted(by_values.values(), key=lambda some: min(a.began for a in some)):
        settled = sum(a.state.is_whole or a.state is State.RUNNING for a in runs)
        count = max(1, settled, sum(a.place is not None for a in runs))
        values = points.named(runs[0].config)
        for some in [*([run] for run in runs[: count - 1]), runs[count - 1 :]]:
            places = [a.place for a in some if a.place is not None]
            row = Row(places[0] if places else len(found), parameters=some[0].config)
            found.append(Standing(row, values, tuple(some)))
    return found
