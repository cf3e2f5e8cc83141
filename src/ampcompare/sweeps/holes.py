"""`ampcompare sweep ... --missing` and `--fill`: how every point of a sweep stands, by its database, its job
array or W&B's server; its holes listed, and run here as new runs.

Database and array know at which point a run is. A run on the server is at the point whose values its config
has: a program may have recorded the words that it was given, or what it made of them (`1e-3`, which YAML
reads as a text), so that values are compared by what they read as.

The queue of a filling is the sweep's own database; where it had none (a job array, W&B's server) one is made
under output_dir, and every point is written into it, what others have run or are running as theirs. From
there on it is a sweep like any other: two who fill at once share the work, and what is interrupted or killed
goes on. Of a search, whose draws nobody else knows, there is only what its own database holds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare import metrics
from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.yaml_file import read_word
from ampcompare.records import RunRecord
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.records.tree import lookup
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.cluster.submit import split
from ampcompare.sweeps.definition import agreed, definition, seed_of
from ampcompare.sweeps.prepare import Prepared, Request, prepare, prepared
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.queue import ELSEWHERE, ENDED, Queue
from ampcompare.sweeps.run import make_output, queue_of, run_to_report
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.sweep import SEED, Sweep
from ampcompare.sweeps.sweep_file import KEYS, sweep_of
from ampcompare.sweeps.table import QUEUED, RUNNING, Row, read_sweep_of

EXIT_HOLES = 3
MOST_ROWS = 200
WIDE = 400  # columns where no terminal says how many: no line is folded that a program may read
STYLES = {"failed": "red", "crashed": "red", "refused": "red", "running": "yellow"}
WHY = {"crashed": "its worker went away", "stopped": "queued again: the sweep's command goes on with it"}
AS_KEPT = {RUNNING: ELSEWHERE, "interrupted": "failed", "refused": "failed"}  # of what others ran
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
    ready, of_server, why = _prepared(source, split(words)[1], request)
    written, kept = read_sweep_of(ready.url, ready.sweep.name)
    sweep, of_array, jobs, unasked = _of_array(ready)
    why |= jobs
    if written:
        groups = [seeds for seeds, *_ in written["groups"]]
        sweep, _ = agreed(ready.sweep, ready.words, written["sweep"], groups, "its database")
    # What the database has of others, or nobody has begun, the others tell.
    begun = [row for row in kept if row.state != ELSEWHERE and (row.state != QUEUED or row.starts)]
    keys, remarks, total = _varied(sweep), [], sweep.total()
    # W&B's server draws by its own dice, and of a grid with a cap takes whichever it likes.
    is_theirs = sweep.on_server and (sweep.run_cap is not None or not sweep.is_grid)
    is_drawn = total is None or sweep.learns or is_theirs
    points: list[Row] = []
    if total is not None and not is_drawn:
        seed = seed_of(sweep, definition(sweep, ready.words))
        points = [replace(row_at(sweep, seed, {}, place), state=QUEUED, starts=0) for place in range(total)]
    found, strays = _placed(points, keys, of_server)
    if is_drawn:
        points = begun or strays
        if sweep.run_cap is None:
            remarks.append("a search without run_cap has no end, so that no point of it is missing")
    else:
        for row in [*found, *of_array, *begun]:
            if row.place < len(points) and _rank(row) >= _rank(points[row.place]):
                points[row.place] = row
        if strays:
            stray = f"of this sweep at none of its points ({strays[0].run_id})"
            remarks.append(f"{plural(len(strays), 'run')} {stray}")
    not_begun = max(0, (sweep.run_cap or 0) - len(points)) if is_drawn else 0
    seen = Seen(ready, keys, bool(written), points, why, is_drawn, not_begun, unasked, remarks)
    if unasked and not seen.is_whole:
        remarks.append(f"{unasked}: some of them may run")
    return seen


def _rank(row: Row) -> tuple[bool, bool, bool]:
    """One that is done makes a point whole, whatever failed before; else one that goes on tells."""
    word = word_of(row)
    return word in WHOLE, word == RUNNING, word != "missing"


def _prepared(
    source: str, words: Sequence[str], request: Request
) -> tuple[Prepared, list[Row], dict[str, str]]:
    """The sweep, the runs that W&B's server has of it, and by their ids why they are as they are."""
    if not source.startswith(API_PREFIX):
        return prepare(source, words, request), [], {}
    if option := "--name" if request.name is not None else "--control" if request.control else "":
        raise UserError(f"{option}: is of a sweep without a server; leave it out")
    entity, project, name = parse_source(source)
    config, records = read_server_sweep(source, brief=True)
    # The server knows more keys than a file may have.
    known = {key: value for key, value in config.items() if key in KEYS and value is not None}
    read = sweep_of(Path(source), known)
    rows, why = [], {}
    for record in records:
        row, why[record.id] = _of_record(record, read)
        rows.append(row)
    # W&B's agent alone stops runs early.
    read = replace(read, name=name, entity=entity, project=project, on_server=True, hyperband=None)
    return replace(prepared(read, words), file=source, request=request), rows, why


def _of_array(ready: Prepared) -> tuple[Sweep, list[Row], dict[str, str], str]:
    """The sweep as its job array began, if there is one, the runs of that by its notes and by Slurm's queue,
    in which job they are, and why the queue could not be asked.
    """
    array, jobs, unasked = Array(ready.output.resolve()), {}, ""
    if not array.has_begun:
        return ready.sweep, [], {}, ""
    ready, kept = array.agreed(ready)
    rows = array.rows(ready, kept, {})
    if any(row.state == QUEUED for row in rows):  # else it may be far from Slurm by now
        try:
            jobs = array.in_queue()
        except UserError as problem:
            unasked = str(problem)
    why = {run_id: f"in the queue as job {ids[0]}" for run_id, ids in jobs.items()}
    rows = [replace(row, state=RUNNING, starts=1) if row.run_id in jobs else row for row in rows]
    return ready.sweep, rows, why, unasked


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


def see_holes(
    source: str, words: Sequence[str], console: Console, request: Request, *, fill: bool, missing: bool
) -> int:
    """List the points of the sweep that are missing, failed or still running, or run them.

    Returns the exit code: 0 where the sweep is whole, 3 where it is not; of `fill` as `run_sweep` does, and 3
    where nothing failed and something is left that cannot be run here, or not now. Raises UserError for bad
    input; `missing` writes and starts nothing.
    """
    if fill and missing:
        raise UserError("--missing --fill: one lists the holes, the other runs them; leave one out")
    if request.until_decided:
        raise UserError("--until-decided: adds seeds, and this looks at those there are; leave it out")
    seen = look(source, words, request)
    if missing and seen.open:
        _print_table(seen, console)
    for line in (seen.counted, *seen.remarks):
        print_line(console, one_line(line))
    if fill:
        return _fill(seen, console)
    if (_to_run(seen) or seen.not_begun) and (seen.is_kept or not seen.is_drawn):
        print_line(console, one_line(f"to fill them: {seen.ready.again('--fill')}"))
    return 0 if seen.is_whole else EXIT_HOLES


def _to_run(seen: Seen) -> list[Row]:
    return [row for row in seen.open if word_of(row) != "running"]


def _fill(seen: Seen, console: Console) -> int:
    ready, to_run = seen.ready, _to_run(seen)
    if seen.unasked and not seen.is_whole:
        todo = "run it where squeue answers"
        gone = f"or, if none of its jobs is left, remove {Array(ready.output).place}/ampcompare-*.json"
        raise UserError(f"--fill: {seen.unasked}, and what runs would be run again; {todo}, {gone}")
    if going_on := len(seen.open) - len(to_run):
        are = "is" if going_on == 1 else "are"
        print_line(console, f"{plural(going_on, 'point')} {are} running: left alone")
    if not to_run and not seen.not_begun:
        return 0 if seen.is_whole else EXIT_HOLES
    if seen.is_drawn and not seen.is_kept:
        todo = "go on with what runs it, such as wandb agent"
        raise UserError(f"--fill: of a search only what is in its own database can be run again; {todo}")
    make_output(ready.output)
    status = run_to_report(_queue_of(seen), ready, console, "--fill")
    if status >= 128:
        return status
    after = look(ready.file, ready.given, ready.request)
    print_line(console, one_line(after.counted))
    return status or (0 if after.is_whole else EXIT_HOLES)


def _queue_of(seen: Seen) -> Queue:
    """The sweep's queue with every point in it that is known, and its holes queued once more."""
    queue, told = queue_of(seen.ready), seen.ready.told
    if not seen.is_drawn:
        queue.adopt(
            replace(
                row,
                plan={} if told is None else {**told, "place": row.place, **row.plan},
                state=AS_KEPT.get(row.state, row.state),
            )
            for row in seen.rows
        )
    there = {row.place: row for row in queue.rows()}
    for row in _to_run(seen):
        mine = there.get(row.place)
        # Another that fills may have queued it since: then it is another run. One that left no trace is gone,
        # as a job that was cancelled in the queue.
        if mine and mine.state in (*ENDED, ELSEWHERE) and row.run_id in ("", mine.run_id):
            queue.requeue([mine])
    if seen.is_drawn and queue.sweep.run_cap is None:  # else it would draw without end
        queue.sweep = replace(queue.sweep, run_cap=len(there))
    return queue


def _print_table(seen: Seen, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for head in ("state", "point", "run", "why", "log"):
        table.add_column(head, overflow="fold")
    for row in seen.open[:MOST_ROWS]:
        word, arm, why = word_of(row), row.plan.get("arm"), seen.why.get(row.run_id)
        values = " ".join(f"{key}={lookup(row.parameters, key)}" for key in seen.keys)
        log = seen.ready.output / "logs" / f"{row.run_id}.log"
        why = why or (last_words(log) if word == "failed" else WHY.get(word, ""))
        cells = [f"{values} (control, {arm})" if arm else values, row.run_id, why]
        cells.append(str(log) if row.run_id and log.is_file() else "")
        table.add_row(Text(word, style=STYLES.get(word, "")), *(Text(one_line(cell)) for cell in cells))
    wide = console if console.is_terminal else Console(file=console.file, width=WIDE, highlight=False)
    wide.print(table)
    if len(seen.open) > MOST_ROWS:
        print_line(console, f"and {len(seen.open) - MOST_ROWS:,} more")
