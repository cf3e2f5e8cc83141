"""`--fill`: the holes of a sweep run here, as new runs of the same group.

The queue is the sweep's own database; where it had none (a job array, W&B's server) one is made under
output_dir, and hands out every point: what others have run, or are running, is written down as theirs when
its turn comes. So whatever holds for a sweep holds for its holes: two who fill at once share the work, and
what is interrupted or killed goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.place import as_typed
from ampcompare.records.tree import lookup
from ampcompare.report.words import plural
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.database import ELSEWHERE
from ampcompare.sweeps.holes.grid import GridPoint
from ampcompare.sweeps.holes.look import Seen, look
from ampcompare.sweeps.holes.note import note
from ampcompare.sweeps.holes.show import EXIT_HOLES, counted, in_words
from ampcompare.sweeps.holes.standing import Attempt, Standing, State
from ampcompare.sweeps.holes.target import Target, target_of
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.run import EXIT_FAILED_RUNS, Request, make_output, tell_how_to_go_on, work_through
from ampcompare.sweeps.worker import planned

ENDED = ("failed", "lost", "finished", "stopped", ELSEWHERE)  # of a database's runs, those that can be a hole


def fill_holes(target: Target, request: Request, name: str, words: Sequence[str], console: Console) -> int:
    """Run what is missing or failed; returns the exit code as `run_sweep` does, and 3 where nothing failed
    and something is left that cannot be run here, or not now. Raises UserError.
    """
    seen = look(target)
    print_line(console, one_line(counted(seen.sweep.name, seen.holes)))
    for remark in seen.remarks:
        print_line(console, one_line(remark))
    if seen.unasked:
        todo = "run it where squeue answers"
        gone = f"or, if none of its jobs is left, remove {Book(target.folder).place}/submitted-*.json"
        raise UserError(f"--fill: {seen.unasked}, and what runs would be run again; {todo}, {gone}")
    going_on = [s for s in seen.holes.standings if s.state is State.RUNNING]
    if going_on:
        are = "is" if len(going_on) == 1 else "are"
        print_line(console, f"{plural(len(going_on), 'point')} {are} running: left alone")
    # One of a worker of this sweep is taken over should that die: until it ends there may be something to do.
    watched = [s for s in going_on if s.attempt and s.attempt.run_id in seen.in_database]
    not_begun = 0 if _is_bound(seen) else seen.holes.not_begun
    if len(seen.holes.open) == len(going_on) and not watched and not not_begun:
        if seen.holes.not_begun:
            print_line(console, "what has not begun can be handed out only by what runs the sweep")
        return 0 if seen.holes.is_whole else EXIT_HOLES
    folder = make_output(target.folder)
    queue = FillQueue(seen, request.grace_seconds)
    note(queue.sweep, target.words, folder)
    queue.queue_holes()
    of_words = (target.given, target.words, target.here)
    if received := work_through(queue, folder, console, request, *of_words):
        tell_how_to_go_on(name, request, target.given, queue.url, console, "--fill")
        return 128 + received[0]
    after = look(target_of(name, words, request))
    print_line(console, one_line(counted(after.sweep.name, after.holes)))
    bad = [s for s in after.holes.open if s.state is not State.RUNNING]
    for standing in bad[:5]:
        reason = f": {standing.attempt.why}" if standing.attempt and standing.attempt.why else ""
        print_line(console, one_line(f"{standing.state.value}: {in_words(standing)}{reason}"))
    if target.on_server is not None:  # this disk has those runs only that filled holes
        print_line(console, one_line(f"compare them with: {as_typed('ampcompare', 'report', name)}"))
        status = 0
    else:
        status = report(console, queue.sweep, folder) if request.report else 0
    if bad:
        return EXIT_FAILED_RUNS
    return status if status or after.holes.is_whole else EXIT_HOLES


class FillQueue(Queue):
    """The queue of a sweep that has run before: what is done elsewhere is not done again."""

    def __init__(self, seen: Seen, grace_seconds: float) -> None:
        target = seen.target
        self.seen = seen
        super().__init__(
            _to_run(target), target.url, target.sweep.name, grace_seconds, target.words, _plan(target)
        )
        self._taken_places: set[int] = set()

    def claim(self) -> Row | None:
        """The next run at a hole, None when there is none; points of others are noted as theirs."""
        while (row := super().claim()) is not None:
            standing = self._standing(row)
            others = standing.attempt if standing else None
            if others is None or others.run_id == row.run_id or _is_hole(others):
                return row
            words = {State.FINISHED: "finished", State.EARLY: "stopped"}
            self.end(row, words.get(others.state, ELSEWHERE), others.value, others.run_id)
        return None

    def _standing(self, row: Row) -> Standing | None:
        """The point of a run as it stood when the filling began."""
        holes = self.seen.holes
        at = {standing.point.place: standing for standing in holes.standings}
        places = [point.place for point in self._points_of(row)]
        free = [place for place in places if place not in self._taken_places] or places
        if not free:
            return None
        self._taken_places.add(free[0])
        return at.get(free[0])

    def _points_of(self, row: Row) -> list[GridPoint]:
        grid = self.seen.holes.grid
        if grid.points is None:
            return []
        return [grid.points[n] for n in grid.candidates(planned(row.parameters, row.plan))[0]]

    def queue_holes(self) -> None:
        """Queue every hole that the database takes for settled once more, as a new run."""
        rows = self.rows()
        of_run = {row.run_id: row for row in rows}
        for standing in self.seen.holes.open:
            if standing.state is State.RUNNING:
                continue
            ids = [attempt.run_id for attempt in standing.attempts]
            mine = [of_run[run_id] for run_id in ids if run_id in of_run]
            if not mine:  # another's that is gone without a trace, as a job that was cancelled in its queue
                mine = [r for r in rows if r.state == ELSEWHERE and standing.point in self._points_of(r)]
            if settled := [row for row in mine if row.state in ENDED]:
                self.requeue(settled[:1])
            elif not mine and ids and _is_bound(self.seen) and standing.attempt:
                values = [_value(parameter, standing) for parameter in self.sweep.parameters]
                self.adopt(standing.attempt.run_id, nested(self.sweep.parameters, values))
        if _is_bound(self.seen):
            self.sweep = dataclasses.replace(self.sweep, run_cap=len(self.rows()))


def _is_bound(seen: Seen) -> bool:
    """Whether only what was begun is run, as what else there is to be is not known here."""
    is_open = not seen.sweep.is_grid and (seen.sweep.run_cap is None or not seen.is_known)
    return is_open or seen.target.is_capped_by_server


def _is_hole(attempt: Attempt) -> bool:
    return not (attempt.state.is_whole or attempt.state is State.RUNNING)


def _value(parameter: Any, standing: Standing) -> Any:
    if parameter.key in standing.point.values:
        return standing.point.values[parameter.key]
    recorded = lookup(standing.attempt.config, parameter.key) if standing.attempt else None
    return parameter.grid_value(0) if parameter.is_listed else recorded


def _to_run(target: Target) -> Sweep:
    """The sweep as it is run here: what only W&B's agent can do, stopping runs early, is left out."""
    return dataclasses.replace(target.sweep, hyperband=None) if target.on_server is not None else target.sweep


def _plan(target: Target) -> dict[str, Any] | None:
    return None if target.told is None else dict(target.told)
