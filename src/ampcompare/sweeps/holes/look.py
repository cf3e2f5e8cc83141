"""A sweep looked at: how every point of it stands by its database, its job array, or W&B's server.

Database and array know at which point a run is. A run on the server is at the point whose values its config
has: a program may have recorded the words that it was given, or what it made of them (`1e-3`, which YAML
reads as a text), so that values are compared by what they read as.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.program.yaml_file import read_word
from ampcompare.records import RunRecord
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.records.tree import lookup
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.cluster.submit import split
from ampcompare.sweeps.definition import agreed, definition, seed_of
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.points import SEED
from ampcompare.sweeps.prepare import Prepared, prepare, prepared
from ampcompare.sweeps.queue import ELSEWHERE
from ampcompare.sweeps.run import Request, url_of
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.table import QUEUED, RUNNING, Row, read_sweep_of

BY_HAND = (129, 130, 143)  # exit codes of a run that somebody stopped; hyperband's, under W&B's agent, is 255
# The words for how a point stands, as they are counted; at the first two nothing is left to do.
WHOLE = ("finished", "stopped early")
STATES = (*WHOLE, "running", "failed", "crashed", "stopped", "refused", "missing")
OF_ROWS = {"stopped": "stopped early", "lost": "crashed", "interrupted": "stopped", ELSEWHERE: "running"}
ABSENT = "\0"  # which no value can be
DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands: the row of each point with the run that tells, and by that run's id what is known
    of `why` it is so. Of a search whose draws are not known (`is_drawn`) there are the runs that were begun,
    and `not_begun` counts those that are to be. `unasked`: why nobody knows which runs of an array wait.
    """

    ready: Prepared
    keys: Sequence[str]  # what is varied
    is_kept: bool  # in a database here
    rows: Sequence[Row]
    why: Mapping[str, str]
    is_drawn: bool
    not_begun: int
    unasked: str
    remarks: Sequence[str]

    @property
    def open(self) -> list[Row]:
        """The points at which something is left to do, or going on."""
        return [row for row in self.rows if word_of(row) not in WHOLE]

    @property
    def is_whole(self) -> bool:
        return not self.open and not self.not_begun

    @property
    def counted(self) -> str:
        """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
        counts = Counter(map(word_of, self.rows))
        counts["missing"] += self.not_begun
        said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "none"
        total = plural(len(self.rows) + self.not_begun, "point")
        return f"{self.ready.sweep.name}: {total}: {said}{'; whole' if self.is_whole else ''}"


def word_of(row: Row) -> str:
    """How a point stands."""
    if row.state == QUEUED:
        return "stopped" if row.starts else "missing"
    return OF_ROWS.get(row.state, row.state)


def look(source: str, words: Sequence[str], request: Request) -> Seen:
    """Every point of a sweep of a file, or of `wandb:ENTITY/PROJECT/SWEEP`, run with these words (a batch
    system's are none of its runs'). Writes and starts nothing. Raises UserError.
    """
    ready, records = _prepared(source, split(words)[1], request)
    of_records, why = [], {}
    for record in records:
        row, why[record.id] = _of_record(record, ready.sweep)
        of_records.append(row)
    if ready.sweep.on_server:  # W&B's agent alone stops runs early
        ready = replace(ready, sweep=replace(ready.sweep, hyperband=None))
    written, kept = read_sweep_of(url_of(ready, request), ready.sweep.name)
    sweep, of_array, jobs, unasked = _of_array(ready)
    why |= jobs
    if written:
        groups = [seeds for seeds, *_ in written["groups"]]
        sweep, _ = agreed(ready.sweep, ready.words, written["sweep"], groups, "its database")
    keys, remarks = _varied(sweep), []
    seed = seed_of(sweep, definition(sweep, ready.words))
    is_known = sweep.is_grid or (not sweep.learns and sweep.run_cap)
    # W&B's server draws by its own dice, and of a grid with a cap takes whichever it likes.
    is_known = is_known and not (sweep.on_server and (sweep.run_cap or not sweep.is_grid))
    total = sweep.total() or 0 if is_known else 0
    points = [replace(row_at(sweep, seed, {}, place), state=QUEUED, starts=0) for place in range(total)]
    found, strays = _placed(points, keys, of_records)
    # What the database has of others, or nobody has begun, the others tell.
    begun = [row for row in kept if row.state != ELSEWHERE and (row.state != QUEUED or row.starts)]
    if is_known:
        for row in [*found, *of_array, *begun]:
            if row.place < len(points) and _rank(row) >= _rank(points[row.place]):
                points[row.place] = row
        if strays:
            stray = f"of this sweep at none of its points ({strays[0].run_id})"
            remarks.append(f"{plural(len(strays), 'run')} {stray}")
    else:
        points = begun or strays
        if sweep.run_cap is None:
            remarks.append("a search without run_cap has no end, so that no point of it is missing")
    not_begun = 0 if is_known else max(0, (sweep.run_cap or 0) - len(points))
    seen = Seen(ready, keys, bool(written), points, why, not is_known, not_begun, unasked, remarks)
    if unasked and not seen.is_whole:
        remarks.append(f"{unasked}: some of them may run")
    return seen


def _rank(row: Row) -> tuple[bool, bool, bool]:
    """One that is done makes a point whole, whatever failed before; else one that goes on tells."""
    word = word_of(row)
    return word in WHOLE, word == RUNNING, word != "missing"


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
    read = sweep_of(Path(source), known)
    read = replace(read, name=name, entity=entity, project=project, on_server=True)
    return prepared(read, words), runs


def _of_array(ready: Prepared) -> tuple[Sweep, list[Row], dict[str, str], str]:
    """The sweep as its job array began, if there is one, the runs of that by its notes and by Slurm's queue,
    in which job they are, and why the queue could not be asked.
    """
    array, jobs, unasked = Array(ready.output.resolve()), {}, ""
    if not array.has_begun:
        return ready.sweep, [], {}, ""
    ready, kept = array.agreed(ready)
    if any(
        row.state == QUEUED for row in array.rows(ready, kept, {})
    ):  # else it may be far from Slurm by now
        try:
            jobs = array.in_queue()
        except UserError as problem:
            unasked = str(problem)
    why = {run_id: f"in the queue as job {ids[0]}" for run_id, ids in jobs.items()}
    return ready.sweep, array.rows(ready, kept, jobs), why, unasked


def _of_record(run: RunRecord, sweep: Sweep) -> tuple[Row, str]:
    """A run by its record, with all that is in its config, and why it ended so in the words of the report."""
    metric = sweep.metric.name if sweep.metric else None
    outcome, why = outcome_of(run, metric or metrics.EVAL_ACCURACY)
    state = "lost" if why == NO_EXIT else outcome.value
    if outcome is Outcome.STOPPED:
        by_hand = run.exit_code in BY_HAND or run.ended_as == "preempted"
        state = "stopped" if sweep.hyperband and not by_hand else "interrupted"
    value = None
    if metric is not None:
        values = run.values(metric)
        value = float(values[-1]) if len(values) else run.summary_number(metric)
    began = int(run.started_at.timestamp()) if run.started_at else 0
    return Row(began, run.id, run.config, state=state, value=value), why


def _placed(points: Sequence[Row], keys: Sequence[str], runs: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The runs at the points whose values they have, and those at none; the newest tells. What is done comes
    first, so that of points with the same values each gets one.
    """
    by: dict[Any, list[Row]] = {}
    for point in points:
        by.setdefault(_values_of(point.parameters, keys), []).append(point)
    at: dict[int, Row] = {}
    strays: list[Row] = []
    for run in sorted(runs, key=lambda run: (*(not is_so for is_so in _rank(run)), -run.place)):
        if there := by.get(_values_of(run.parameters, keys)):
            point = next((point for point in there if point.place not in at), there[0])
            at.setdefault(point.place, replace(point, run_id=run.run_id, state=run.state, value=run.value))
        elif run.state != "refused" or not points:
            strays.append(replace(run, place=len(strays)))
    return [*at.values()], strays


def _varied(sweep: Sweep) -> list[str]:
    """The keys that tell its points apart."""
    repeats = (SEED,) if sweep.added else ()
    return [p.key for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or p.path == repeats]


def _values_of(tree: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """What a config or a row's parameters have of these keys, to be compared by."""
    return tuple(_read(str(lookup(tree, key, ABSENT))) for key in keys)


@lru_cache(maxsize=100_000)
def _read(text: str) -> str:
    """A value by what it reads as; numbers are the same by their size, `none` and `null` are None."""
    with suppress(ValueError):
        return f"{float(text):.{DIGITS}g}"  # before YAML, to which 010 is 8
    try:
        value = read_word("", text)
    except UserError:
        return text
    if isinstance(value, list | tuple):
        return str([_read(str(part)) for part in value])
    if isinstance(value, Mapping):
        return str(sorted((str(name), _read(str(part))) for name, part in value.items()))
    return "none" if str(value).lower() in ("none", "null") else str(value)
