"""How runs of a job array ended, as its jobs have noted it: some programs leave no record of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcompare.report.runs.holes import Attempt, State
from ampcompare.sweeps import definition
from ampcompare.sweeps.cluster.array import planned_run
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.worker import planned


def noted_ends(
    sweep: Sweep, words: tuple[str, ...], told: Mapping[str, Any] | None, folder: Path
) -> list[Attempt]:
    """The runs of an array of this sweep in `folder` that came to their end; none where there was no array.

    Raises UserError where its notes cannot be read.
    """
    book = Book(folder)
    kept = book.sweep()
    if kept is None:
        return []
    try:
        began, _ = definition.agreed(sweep, kept["definition"], definition.definition(sweep, words))
    except definition.Changed:  # an array of something else; its records are told apart by what they say
        return []
    whole = dataclasses.replace(began, added=tuple(map(tuple, kept["added"])))
    found = []
    for index in range(whole.total() or 0):
        run = planned_run(whole, kept["definition"], told, index)
        code = book.of_run(run.run_id).get("exit_code")
        if code is not None:
            state, why = (State.FAILED, f"exit code {code}") if code else (State.FINISHED, "")
            found.append(Attempt(run.run_id, state, why, planned(run.parameters, run.plan)))
    return found
