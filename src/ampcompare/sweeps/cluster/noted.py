"""The runs of a job array by what its jobs have noted and by Slurm's queue: some programs leave no record of
their own, and a run that waits has none yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps import definition
from ampcompare.sweeps.cluster.array import planned_run
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.cluster.queue import tasks_in_queue
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.standing import Attempt, State
from ampcompare.sweeps.worker import planned


@dataclass(frozen=True)
class Noted:
    """The runs of an array that came to their end, or that wait or run. `unasked`: why nobody knows which of
    those that were submitted do.
    """

    attempts: tuple[Attempt, ...] = ()
    unasked: str = ""


def noted_runs(sweep: Sweep, words: tuple[str, ...], told: Mapping[str, Any] | None, folder: Path) -> Noted:
    """What is known of the array of this sweep in `folder`; nothing where there was no array.

    Raises UserError where its notes cannot be read, and where it is one of another sweep.
    """
    book = Book(folder)
    kept = book.sweep()
    if kept is None or not book.has_begun():  # a submission that was refused binds nobody
        return Noted()
    try:
        began, _ = definition.agreed(sweep, kept["definition"], definition.definition(sweep, words))
    except definition.Changed as changed:
        todo = "give it the file and the words that it was run with"
        raise UserError(f"{sweep.path}: the job array in {folder} differs in {changed}; {todo}") from None
    whole = dataclasses.replace(began, added=tuple(map(tuple, kept["added"])))
    queue, unasked = _queue(book)
    found = []
    for index in range(whole.total() or 0):
        run = planned_run(whole, kept["definition"], told, index, kept["salt"])
        code = book.of_run(run.run_id).get("exit_code")
        if code is not None:
            state, why = (State.FAILED, f"exit code {code}") if code else (State.FINISHED, "")
        elif run.run_id in queue:
            state, why = State.RUNNING, f"in the queue as job {queue[run.run_id]}"
        elif book.is_held(run.run_id):
            state, why = State.RUNNING, "a job of the array sees it through"
        else:
            continue
        config = planned(run.parameters, run.plan)
        found.append(Attempt(run.run_id, state, why, config, is_draw=not whole.is_grid))
    return Noted(tuple(found), unasked)


def _queue(book: Book) -> tuple[dict[str, str], str]:
    """The runs in the queue with their jobs, and why it could not be asked. Nobody asks where all have ended:
    the folder may have come to a machine without Slurm since.
    """
    if all(book.ended(run) is not None for one in book.submitted() for run in one.runs):
        return {}, ""
    try:
        return tasks_in_queue(book), ""
    except UserError as problem:
        return {}, str(problem)
