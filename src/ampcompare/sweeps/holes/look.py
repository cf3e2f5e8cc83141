"""A sweep looked at: how every point of it stands by its database, its jobs, its records and W&B's server.

Who made a run knows at which point it is. Any other run is at the point whose values its config has: a
program may have recorded the words that it was given, or what it made of them (`1e-3`, which YAML reads as a
text), so that values are compared by what they read as.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.records.tree import lookup
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.report.words import plural
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.cluster.submit import split
from ampcompare.sweeps.definition import Changed, agreed, definition, seed_of
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.points import SEED
from ampcompare.sweeps.prepare import Prepared, prepare, prepared
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.run import Request, url_of
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.table import Row, read_sweep_of

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
DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones
_ABSENT = object()


@dataclass(frozen=True)
class Standing:
    """A run of a sweep, or a point as it stands by one. `row` is what a worker has, or would have, of it; of
    a run that nobody placed (`is_placed`) its parameters are all that is in its config.
    """

    row: Row
    state: str = "missing"
    why: str = ""
    is_placed: bool = False


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands. Of a search whose draws are not known (`is_drawn`) there are the runs that were
    begun, and `not_begun` counts those that are to be. `unasked`: why nobody knows which runs of an array
    wait.
    """

    ready: Prepared
    keys: Sequence[str]  # what is varied
    is_kept: bool  # in a database here
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
    def counted(self) -> str:
        """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
        counts = Counter(standing.state for standing in self.standings)
        counts["missing"] += self.not_begun
        said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "none"
        total = plural(len(self.standings) + self.not_begun, "point")
        return f"{self.ready.sweep.name}: {total}: {said}{'; whole' if self.is_whole else ''}"


def look(source: str, words: Sequence[str], request: Request) -> Seen:
    """Every point of a sweep of a file, or of `wandb:ENTITY/PROJECT/SWEEP`, run with these words (a batch
    system's are none of its runs'). Writes and starts nothing. Raises UserError.
    """
    ready, on_server = _prepared(source, split(words)[1], request)
    known, of_rows = _of_database(ready, url_of(ready, request))
    began, of_jobs, unasked = _of_array(ready)
    sweep = known or began or ready.sweep
    placed = {run.row.run_id: run for run in [*of_jobs, *of_rows]}
    found = []
    for record in sorted(_records(ready, on_server), key=_newest_first):
        run = _of_record(record, ready.sweep)
        if record.id in placed:
            placed[record.id] = _joined(placed[record.id], run)
        else:
            found.append(run)
    tried = [_with_last_words(run, ready.output) for run in [*placed.values(), *found]]

    is_known = sweep.is_grid or (sweep.method == "random" and sweep.run_cap and not sweep.on_server)
    keys = varied_in(sweep)
    remarks: list[str] = []
    if is_known and not (sweep.on_server and sweep.run_cap):  # W&B's server takes whichever it likes
        seed = seed_of(sweep, definition(sweep, ready.words))
        rows = [row_at(sweep, seed, {}, place) for place in range(sweep.total() or 0)]
        standings, strays = _standings(rows, keys, tried)
        not_begun = 0
        if strays:
            stray = f"of this sweep at none of its points ({strays[0].row.run_id})"
            remarks.append(f"{plural(len(strays), 'run')} {stray}")
    else:
        is_known, standings = False, tried
        not_begun = max(0, (sweep.run_cap or 0) - len(tried))
        if sweep.run_cap is None:
            remarks.append("a search without run_cap has no end, so that no point of it is missing")
    seen = Seen(ready, keys, known is not None, standings, not is_known, not_begun, unasked, remarks)
    if unasked and not seen.is_whole:
        remarks.append(f"{unasked}: some of them may run")
    return seen


def _prepared(source: str, words: Sequence[str], request: Request) -> tuple[Prepared, Sequence[RunRecord]]:
    """The sweep, and the runs that W&B's server has of it."""
    if not source.startswith(API_PREFIX):
        return prepare(source, words, request.name, request.control), ()
    if option := "--name" if request.name is not None else "--control" if request.control else "":
        raise UserError(f"{option}: is of a sweep without a server; leave it out")
    entity, project, name = parse_source(source)
    config, runs = read_server_sweep(source, brief=True)
    # The server knows more keys than a file may have.
    known = {key: value for key, value in config.items() if key in KEYS and value is not None}
    found = replace(
        sweep_of(Path(source), known),
        name=name,
        entity=entity,
        project=project,
        control=False,
        on_server=True,
    )
    return prepared(found, words), runs


def _of_database(ready: Prepared, url: str) -> tuple[Sweep | None, list[Standing]]:
    """The sweep as its database has it, with all seeds so far, and its runs; None where there is none.

    Raises UserError where it cannot be read, and where it holds another sweep under this name.
    """
    written, rows = read_sweep_of(url, ready.sweep.name)
    if written is None:
        return None, []
    groups = [seeds for seeds, *_ in written["groups"]]
    sweep = _agreed(ready, "the sweep in its database", written["sweep"], groups)
    # What others have begun, or nobody yet, its records tell.
    begun = [row for row in rows if row.state in OF_ROWS and (row.state != "queued" or row.starts)]
    return sweep, [Standing(row, *OF_ROWS[row.state], is_placed=True) for row in begun]


def _agreed(ready: Prepared, what: str, began: dict[str, Any], added: Sequence[Sequence[Any]]) -> Sweep:
    """The sweep as it began, with all seeds so far, those included that only the file has."""
    try:
        sweep, more = agreed(ready.sweep, began, definition(ready.sweep, ready.words), added)
    except Changed as changed:
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
    runs = array.rows(sweep, kept, ready.told)
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
            job = f"in the queue as job {queue[run.run_id][0]}"
            found.append(Standing(run, "running", job, is_placed=True))
        elif code is not None:
            told = ("failed", f"exit code {code}") if code else ("finished", "")
            found.append(Standing(run, *told, is_placed=True))
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


def _newest_first(run: RunRecord) -> float:
    return -run.started_at.timestamp() if run.started_at else 0.0


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
    return Standing(Row(0, run.id, run.config, value=value), state, why)


def _joined(known: Standing, record: Standing) -> Standing:
    """The record has the reason; who made the run knows whether it goes on, and the exit code."""
    is_told = record.state in {
        "finished": ("failed", "refused"),
        "failed": ("failed", "refused"),
        "stopped early": (),
    }.get(known.state, ("finished",))
    teller = record if is_told else known
    value = record.row.value if known.row.value is None else known.row.value
    return replace(known, state=teller.state, why=teller.why, row=replace(known.row, value=value))


def _with_last_words(run: Standing, folder: Path) -> Standing:
    """A failed run of which nothing else is known, with the last line that it printed."""
    if run.state != "failed" or (run.why and not run.why.startswith("exit code")):
        return run
    line = last_words(folder / "logs" / f"{run.row.run_id}.log")
    return replace(run, why=": ".join(filter(None, (run.why, line))))


def _standings(
    rows: Sequence[Row], keys: Sequence[str], runs: Sequence[Standing]
) -> tuple[list[Standing], list[Standing]]:
    """Every point by the runs that there are of it, and the runs at none: one that is done makes it whole,
    whatever failed before; else one that goes on; else the first of them tells.
    """
    by: dict[Any, list[int]] = {}
    for row in rows:
        by.setdefault(values_of(row.parameters, keys), []).append(row.place)
    at: dict[int, Standing] = {}
    strays = []
    # What is done first, so that of points with the same values each gets one.
    for run in sorted(runs, key=lambda run: (run.state not in WHOLE, run.state != "running")):
        is_there = run.is_placed and run.row.place < len(rows)  # else beyond a cap that was lowered
        places = [run.row.place] if is_there else find(rows, by, keys, run.row.parameters)
        if places:
            place = next((place for place in places if place not in at), places[0])
            own = replace(rows[place], run_id=run.row.run_id, value=run.row.value)
            at.setdefault(place, replace(run, row=own))
        elif run.state != "refused":
            strays.append(run)
    return [at.get(row.place, Standing(row)) for row in rows], strays


def varied_in(sweep: Sweep) -> list[str]:
    """The keys that tell its points apart."""
    repeats = (SEED,) if sweep.added else ()
    return [p.key for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or p.path == repeats]


def find(
    rows: Sequence[Row], by: Mapping[Any, list[int]], keys: Sequence[str], config: Mapping[str, Any]
) -> list[int]:
    """The places that a run with this config may be at: more than one where these have the same values."""
    place, arm = lookup(config, "plan.place"), lookup(config, "plan.arm")
    if found := by.get(values_of(config, keys)):
        of_arm = [number for number in found if rows[number].plan.get("arm") == arm] or found
        return [place] if place in of_arm else of_arm
    # What a run decides itself (null, auto) it may have recorded as something else.
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(rows):
        own = [lookup(rows[place].parameters, key) for key in keys]
        pairs = zip(own, values_of(config, keys), strict=True)
        if all(mine in (None, "auto") or its in (_ABSENT, read(mine)) for mine, its in pairs):
            return [place]
    return []


def values_of(tree: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    """What a config or a row's parameters have of these keys, to be compared by."""
    return tuple(read(lookup(tree, key, _ABSENT)) for key in keys)


def read(value: Any) -> Any:
    """A value by what it reads as: a text that says a number, a truth value, none or a list is that; numbers
    are the same by their size.
    """
    if isinstance(value, str) and value.strip()[:1] in ("[", "{", "("):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            value = ast.literal_eval(value.strip())
    if isinstance(value, list | tuple):
        return ("list", *map(read, value))
    if isinstance(value, Mapping):
        return ("tree", *sorted((str(key), str(read(inner))) for key, inner in value.items()))
    if value is _ABSENT:
        return value
    text = str(value).strip()
    with suppress(ValueError):
        return f"{float(text):.{DIGITS}g}"
    word = text.lower()
    return {"null": "none"}.get(word, word) if word in ("none", "null", "true", "false") else str(value)
