"""`ampcompare sweep ... --missing` and `--fill`: the holes of a sweep listed, and run here as new runs.

The queue of a filling is the sweep's own database; where it had none (a job array, W&B's server) one is made
under output_dir, and every point is written into it, what others have run or are running as theirs. From
there on it is a sweep like any other: two who fill at once share the work, and what is interrupted or killed
goes on. Of a search, whose draws nobody else knows, there is only what its own database holds.
"""

import dataclasses
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.records.tree import lookup
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.holes.look import Seen, look, word_of
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.queue import ELSEWHERE, ENDED, Queue
from ampcompare.sweeps.run import Request, command_again, make_output, queue_of, run_to_report
from ampcompare.sweeps.table import RUNNING, Row

EXIT_HOLES = 3
MOST_ROWS = 200
WIDE = 400  # columns where no terminal says how many: no line is folded that a program may read
STYLES = {"failed": "red", "crashed": "red", "refused": "red", "running": "yellow"}
WHY = {"crashed": "its worker went away", "stopped": "queued again: the sweep's command goes on with it"}
AS_KEPT = {RUNNING: ELSEWHERE, "interrupted": "failed", "refused": "failed"}  # of what others ran


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
        return _fill(seen, request, source, words, console)
    if (_to_run(seen) or seen.not_begun) and (seen.is_kept or not seen.is_drawn):
        again = command_again(source, request, seen.ready, "--fill")
        print_line(console, one_line(f"to fill them: {again}"))
    return 0 if seen.is_whole else EXIT_HOLES


def _to_run(seen: Seen) -> list[Row]:
    return [row for row in seen.open if word_of(row) != "running"]


def _fill(seen: Seen, request: Request, source: str, words: Sequence[str], console: Console) -> int:
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
    status = run_to_report(_queue_of(seen, request), source, console, request, ready, "--fill")
    if status >= 128:
        return status
    after = look(source, words, request)
    print_line(console, one_line(after.counted))
    return status or (0 if after.is_whole else EXIT_HOLES)


def _queue_of(seen: Seen, request: Request) -> Queue:
    """The sweep's queue with every point in it that is known, and its holes queued once more."""
    queue, told = queue_of(seen.ready, request), seen.ready.told
    if not seen.is_drawn:
        queue.adopt(
            dataclasses.replace(
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
        queue.sweep = dataclasses.replace(queue.sweep, run_cap=len(there))
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
