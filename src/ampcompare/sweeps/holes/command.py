"""`ampcompare sweep ... --missing` and `--fill`: the holes of a sweep listed, and run here as new runs.

The queue of a filling is the sweep's own database; where it had none (a job array, W&B's server) one is made
under output_dir, and every point is written into it, what others have run or are running as theirs. From
there on it is a sweep like any other: two who fill at once share the work, and what is interrupted or killed
goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.place import as_typed
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.holes.look import Seen, Standing, look
from ampcompare.sweeps.holes.runs import State
from ampcompare.sweeps.queue import ELSEWHERE, ENDED, Queue
from ampcompare.sweeps.run import (
    EXIT_FAILED_RUNS,
    Request,
    command_again,
    make_output,
    queue_of,
    tell_how_to_go_on,
    work_through,
)
from ampcompare.sweeps.table import Row

EXIT_HOLES = 3
MOST_ROWS = 200
WIDE = 400  # columns where no terminal says how many: no line is folded that a program may read
STYLES = {State.FAILED: "red", State.CRASHED: "red", State.REFUSED: "red", State.RUNNING: "yellow"}
ROW_STATES = {State.FINISHED: "finished", State.EARLY: "stopped", State.RUNNING: ELSEWHERE}


def see_holes(
    source: str, words: Sequence[str], console: Console, *, fill: bool, missing: bool, **asked: Any
) -> int:
    """List the points of the sweep that are missing, failed or still running, or run them.

    Returns the exit code: 0 where the sweep is whole, 3 where it is not; of `fill` as `run_sweep` does, and 3
    where nothing failed and something is left that cannot be run here, or not now. Raises UserError for bad
    input; `missing` writes and starts nothing.
    """
    if fill and missing:
        raise UserError("--missing --fill: one lists the holes, the other runs them; leave one out")
    request = Request(**asked)
    if request.until_decided:
        raise UserError("--until-decided: adds seeds, and this looks at those there are; leave it out")
    seen = look(source, words, request)
    if missing and seen.open:
        _print_table(seen, console)
    for line in (seen.counted, *seen.remarks):
        print_line(console, one_line(line))
    if fill:
        return _fill(seen, request, source, words, console)
    if seen.can_begin or any(standing.state is not State.RUNNING for standing in seen.open):
        again = command_again(source, request, seen.runs.ready, "--fill")
        print_line(console, one_line(f"to fill them: {again}"))
    return 0 if seen.is_whole else EXIT_HOLES


def _fill(seen: Seen, request: Request, source: str, words: Sequence[str], console: Console) -> int:
    ready = seen.runs.ready
    if seen.runs.unasked and not seen.is_whole:
        todo = "run it where squeue answers"
        gone = f"or, if none of its jobs is left, remove {Array(ready.output).place}/ampcompare-*.json"
        raise UserError(f"--fill: {seen.runs.unasked}, and what runs would be run again; {todo}, {gone}")
    going_on = [s for s in seen.open if s.state is State.RUNNING]
    if going_on:
        are = "is" if len(going_on) == 1 else "are"
        print_line(console, f"{plural(len(going_on), 'point')} {are} running: left alone")
    # One of a worker of this sweep is taken over should that die: until it ends there may be something to do.
    is_watched = any(s.attempts[0].place is not None for s in going_on)
    if not (len(seen.open) > len(going_on) or is_watched or seen.can_begin):
        if seen.not_begun:
            print_line(console, "what has not begun can be handed out only by what runs the sweep")
        return 0 if seen.is_whole else EXIT_HOLES
    folder = make_output(ready.output)
    queue = _queue_of(seen, request)
    if received := work_through(queue, folder, console, request, ready):
        tell_how_to_go_on(source, request, ready, console, "--fill")
        return 128 + received[0]
    after = look(source, words, request)
    print_line(console, one_line(after.counted))
    bad = [s for s in after.open if s.state is not State.RUNNING]
    if bad:
        _print_table(after, console)
    status = 0
    if ready.sweep.on_server:  # this disk has those runs only that filled holes
        print_line(console, one_line(f"compare them with: {as_typed('ampcompare', 'report', source)}"))
    elif request.report:
        from ampcompare.sweeps.answer import report

        status = report(console, queue.sweep, folder)
    if bad:
        return EXIT_FAILED_RUNS
    return status if status or after.is_whole else EXIT_HOLES


def _queue_of(seen: Seen, request: Request) -> Queue:
    """The sweep's queue with every point in it that is known, and its holes queued once more."""
    ready = seen.runs.ready
    queue = queue_of(ready, request)
    if not (seen.is_drawn and seen.runs.is_known) or ready.sweep.on_server:
        queue.adopt(_rows_of(seen, ready.told))
    there = queue.rows()
    of_run, of_place = {row.run_id: row for row in there}, {row.place: row for row in there}
    for standing in seen.open:
        # Another that fills may have queued it since: then none of these runs is in there.
        mine = [of_run[a.run_id] for a in standing.attempts if a.run_id in of_run]
        row = of_place.get(standing.row.place)
        if not mine and row and row.state == ELSEWHERE and row.parameters == standing.row.parameters:
            mine = [row]  # gone without a trace, as a job that was cancelled in the queue
        if standing.state is not State.RUNNING and mine and mine[0].state in (*ENDED, ELSEWHERE):
            queue.requeue(mine[:1])
    if seen.is_bound:
        queue.sweep = dataclasses.replace(queue.sweep, run_cap=len(there))
    return queue


def _rows_of(seen: Seen, told: dict[str, Any] | None) -> Iterator[Row]:
    """A row for each point: what was run as it stands, what was not as a queued one."""
    for standing in seen.standings:
        row = standing.row
        if seen.is_drawn:  # what a run has recorded, of which the sweep gave it some
            of_sweep, values = seen.runs.sweep.parameters, standing.values
            given = [values[p.key] if p.key in values else p.grid_value(0) for p in of_sweep]
            row = dataclasses.replace(row, parameters=nested(of_sweep, given))
        plan = {} if told is None else {**told, "place": row.place, **row.plan}
        if not standing.attempts:
            yield dataclasses.replace(row, plan=plan, state="queued", starts=0)
        for first in standing.attempts[:1]:
            state, run_id = ROW_STATES.get(first.state, "failed"), first.run_id
            yield dataclasses.replace(row, plan=plan, run_id=run_id, state=state, value=first.value)


def _print_table(seen: Seen, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for head in ("state", "point", "run", "why", "log"):
        table.add_column(head, overflow="fold")
    for standing in seen.open[:MOST_ROWS]:
        run_id = standing.attempts[0].run_id if standing.attempts else ""
        log = seen.runs.ready.output / "logs" / f"{run_id}.log"
        cells = [_in_words(standing), run_id, standing.why, str(log) if run_id and log.is_file() else ""]
        state = Text(standing.state.value, style=STYLES.get(standing.state, ""))
        table.add_row(state, *(Text(one_line(cell)) for cell in cells))
    wide = console if console.is_terminal else Console(file=console.file, width=WIDE, highlight=False)
    wide.print(table)
    if len(seen.open) > MOST_ROWS:
        print_line(console, f"and {len(seen.open) - MOST_ROWS:,} more")


def _in_words(standing: Standing) -> str:
    """The varied values of a point: `backend=none seed=2`, and which run of the control it is."""
    values = " ".join(f"{key}={value}" for key, value in standing.values.items())
    arm = standing.row.plan.get("arm")
    return f"{values} (control, {arm})" if arm else values
