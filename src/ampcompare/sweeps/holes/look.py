"""A sweep looked at: how every point of it stands by its database, its jobs, its records and W&B's server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.report.words import plural
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.cluster.array import Array, rows
from ampcompare.sweeps.cluster.submit import split
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.holes.points import Points
from ampcompare.sweeps.prepare import Prepared, prepare, prepared
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.run import Request
from ampcompare.sweeps.storage import Database, sqlite_path, sqlite_url
from ampcompare.sweeps.table import R, Row, find_definition, rows_of

BY_HAND = (129, 130, 143)  # exit codes of a run that somebody stopped; hyperband's, under W&B's agent, is 255


# The words for how a point stands, as they are counted; at the first two nothing is left to do.
WHOLE = ("finished", "stopped early")
STATES = (*WHOLE, "running", "failed", "crashed", "stopped", "refused", "missing")
OF_ROWS = {
    "finished": ("finished", ""),
    "stopped": ("stopped early", ""),
    "failed": ("failed", ""),
    "lost": ("crashed", "its worker went away"),
    "running": ("running", ""),
    "queued": ("stopped", "queued again; the sweep's command goes on with it"),
}


@dataclass(frozen=True)
class Standing:
    """A run of a sweep, or a point as it stands by one. `row` is what a worker has, or would have, of it; of
    a run that no queue knows its parameters are all that is in its config.
    """

    row: Row
    state: str = "missing"
    why: str = ""
    began: float = 0.0  # seconds since 1970
    is_placed: bool = False  # a queue says at which point it is
    is_queued: bool = False  # that of the sweep's database


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands. Of `is_drawn` nobody knows the points before they are run; `not_begun` counts
    those that are to be and have no values yet. `unasked`: why nobody knows which runs of an array wait.
    """

    ready: Prepared
    sweep: Sweep  # as it began where that is known, with all seeds so far
    keys: Sequence[str]  # what is varied
    is_known: bool  # by its database
    standings: Sequence[Standing]
    is_drawn: bool
    not_begun: int
    unasked: str
    remarks: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[Standing]:
        """The points at which something is left to do, or going on."""
        return [standing for standing in self.standings if standing.state not in WHOLE]

    @property
    def is_whole(self) -> bool:
        return not self.open and not self.not_begun

    @property
    def is_bound(self) -> bool:
        """Whether only what was begun can be run, as nobody here knows what else there is to be."""
        return self.is_drawn and (self.sweep.on_server or self.sweep.run_cap is None or not self.is_known)

    @property
    def can_begin(self) -> bool:
        """Whether runs that have no values yet can be begun here."""
        return bool(self.not_begun) and not self.is_bound

    @property
    def counted(self) -> str:
        """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
        counts = Counter(standing.state for standing in self.standings)
        counts["missing"] += self.not_begun
        said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "none"
        total = plural(len(self.standings) + self.not_begun, "point")
        return f"{self.sweep.name}: {total}: {said}{'; whole' if self.is_whole else ''}"


def look(source: str, words: Sequence[str], request: Request) -> Seen:
    """Every point of a sweep of a file, or of `wandb:ENTITY/PROJECT/SWEEP`, run with these words (a batch
    system's are none of its runs'). Writes and starts nothing. Raises UserError.
    """
    ready, on_server = _prepared(source, split(words)[1], request)
    there = ready.sweep
    if there.on_server:  # W&B's agent alone stops runs early
        ready = replace(ready, sweep=replace(there, hyperband=None))
    url = sqlite_url(ready.output) if request.storage is None else request.storage
    known, told = _of_database(ready, url)
    began, of_jobs, unasked = _of_array(ready)
    runs = {run.row.run_id: run for run in [*of_jobs, *told]}
    for record in _records(ready, on_server):
        runs[record.id] = _joined(runs.get(record.id), _of_record(record, there))
    tried = [_with_last_words(run, ready.output) for run in runs.values()]

    sweep = known or began or ready.sweep
    metric, same = sweep.metric, ready.same
    began_as = json.dumps([sweep.name, definition.definition(sweep, ready.words)])
    points = Points(sweep, same, began_as)
    standings, strays = _standings(points, tried)
    not_begun = max(0, (sweep.run_cap or 0) - len(standings)) if points.rows is None else 0
    remarks = [f"left out, as they cannot run: {text}" for text in (same.refusals if sweep.cells else ())]
    begun = [standing for standing in standings if standing.state != "missing"]
    values = [run.row.value for run in tried if run.state == "finished" and run.row.value is not None]
    is_less = not_begun or len(begun) < len(standings)
    if is_less and metric and any(map(metric.is_reached, values)):
        standings, not_begun = begun, 0
        remarks.append("metric.target is reached: what had not begun then is not needed")
    if points.rows is None and sweep.run_cap is None:
        remarks.append("a search without run_cap has no end, so that no point of it is missing")
    if strays:
        stray = f"of this sweep at none of its points ({strays[0].row.run_id})"
        remarks.append(f"{plural(len(strays), 'run')} {stray}")
    is_drawn = points.rows is None
    seen = Seen(
        ready, sweep, points.keys, known is not None, standings, is_drawn, not_begun, unasked, remarks
    )
    if unasked and not seen.is_whole:
        remarks.append(f"{unasked}: some of them may run")
    return seen


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
    server: dict[str, Any] = {
        "name": name,
        "entity": entity,
        "project": project,
        "control": False,
        "on_server": True,
    }
    return prepared(replace(sweep_of(Path(source), known), **server), words), runs


def _of_database(ready: Prepared, url: str) -> tuple[Sweep | None, list[Standing]]:
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
            there = rows_of(connection, R.sweep == name)
    finally:
        database.engine.dispose()
    groups = [seeds for seeds, *_ in written["groups"]]
    sweep = _agreed(ready, f"the sweep in {path or 'the database'}", written["sweep"], groups)
    # What others have begun, or nobody yet, its records tell.
    begun = [row for row in there if row.state in OF_ROWS and (row.state != "queued" or row.starts)]
    return sweep, [
        Standing(row, *OF_ROWS[row.state], 1e12 + row.place, is_placed=True, is_queued=True) for row in begun
    ]


def _agreed(ready: Prepared, what: str, began: dict[str, Any], added: Sequence[Sequence[Any]]) -> Sweep:
    """The sweep as it began, with all seeds so far, those included that only the file has."""
    ours = definition.definition(ready.sweep, ready.words)
    try:
        sweep, more = definition.agreed(ready.sweep, began, ours, added)
    except definition.Changed as changed:
        todo = "give it the file and the words that it was run with"
        raise UserError(f"{ready.sweep.path}: {what} differs in {changed}; {todo}") from None
    return replace(sweep, added=(*sweep.added, *([more] if more else [])))


def _of_array(ready: Prepared) -> tuple[Sweep | None, list[Standing], str]:
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
        state, why = ("failed", f"exit code {code}") if code else ("finished", "")
        if run.run_id in queue:
            state, why = "running", f"in the queue as job {queue[run.run_id][0]}"
        if run.run_id in queue or code is not None:
            found.append(Standing(run, state, why, is_placed=True))
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


def _of_record(run: RunRecord, sweep: Sweep) -> Standing:
    """A run by its record, its outcome in the words of the report."""
    metric = sweep.metric.name if sweep.metric else None
    outcome, why = outcome_of(run, metric or metrics.EVAL_ACCURACY)
    state = "crashed" if why == NO_EXIT else outcome.value
    by_hand = run.exit_code in BY_HAND or run.ended_as == "preempted"
    if outcome is Outcome.STOPPED and sweep.hyperband and not by_hand:
        state = "stopped early"
    value = None
    if metric is not None:
        values = run.values(metric)
        value = float(values[-1]) if len(values) else run.summary_number(metric)
    began = run.started_at.timestamp() if run.started_at else 0.0
    return Standing(Row(0, run.id, run.config, value=value), state, why, began)


def _joined(known: Standing | None, record: Standing) -> Standing:
    """The record has the reason; who made the run knows whether it goes on, and the exit code."""
    if known is None:
        return record
    is_told = {
        "finished": record.state in ("failed", "refused"),
        "failed": record.state in ("failed", "refused"),
        "stopped early": False,
    }.get(known.state, record.state in ("finished", "running"))
    value = record.row.value if known.row.value is None else known.row.value
    teller = record if is_told else known
    return replace(known, state=teller.state, why=teller.why, row=replace(known.row, value=value))


def _with_last_words(run: Standing, folder: Path) -> Standing:
    """A failed run of which nothing else is known, with the last line that it printed."""
    if run.state != "failed" or (run.why and not run.why.startswith("exit code")):
        return run
    line = last_words(folder / "logs" / f"{run.row.run_id}.log")
    return replace(run, why=": ".join(filter(None, (run.why, line))))


def _standings(points: Points, runs: Sequence[Standing]) -> tuple[list[Standing], list[Standing]]:
    """Every point by the runs that there are of it, and the runs at none: one that is done makes it whole,
    whatever failed before; else one that goes on; else the newest tells.
    """
    # What is done first, so that of points with the same values each gets one.
    tried = sorted(runs, key=lambda a: (a.state not in WHOLE, a.state != "running", -a.began))
    if points.rows is None:
        return _drawn(points, tried), []
    at: dict[int, Standing] = {}
    strays = []
    for run in tried:
        is_there = run.is_placed and run.row.place < len(points.rows)  # else beyond a cap that was lowered
        numbers = [run.row.place] if is_there else points.find(run.row.parameters)
        if numbers:
            number = next((number for number in numbers if number not in at), numbers[0])
            own = replace(points.rows[number], run_id=run.row.run_id, value=run.row.value)
            at.setdefault(number, replace(run, row=own))
        elif run.state != "refused":
            strays.append(run)
    return [at.get(row.place, Standing(row)) for row in points.rows], strays


def _drawn(points: Points, tried: Sequence[Standing]) -> list[Standing]:
    """A search has the points that it has drawn: what is whole, goes on or is in its database was drawn by
    itself; any other run repeats one of the same values, or is the newest at a point of its own.
    """
    taken, seen = {run.row.place for run in tried if run.is_placed}, set()
    free = (place for place in count() if place not in taken)
    found = []
    for run in sorted(tried, key=lambda run: not run.is_placed):
        values = points.read(run.row.parameters)
        if run.is_placed or run.state in WHOLE or run.state == "running" or values not in seen:
            place = run.row.place if run.is_placed else next(free)
            found.append(replace(run, row=replace(run.row, place=place)))
        seen.add(values)
    return found
