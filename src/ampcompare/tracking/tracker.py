"""What records a run: the contract, and at the same time the tracker of a run that is recorded nowhere.

A second way to record is one file: a subclass of `Tracker`, and a line in `wandb_init.py` that chooses it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """The record of one run, from its start to its end, called from the thread that trains. This one records
    nothing: for a run whose record is switched off, and for all processes but the first; what a checkpoint
    says of an earlier part's record is handed on to the next.

    `run_id` names the run, and the folder of its checkpoints. A tracker that goes on with a resumed run has
    the `run_id` of before, and is made with the `state_dict` of the checkpoint: rows that were logged after
    it come again and must be in the record once, rows before it must not be missing. `finish` is called once,
    whatever ended the training; a process that was killed does not call it.
    """

    record: Path | None = None  # the folder of the record on this machine, if it has one

    def __init__(self, run_id: str = "", state: Mapping[str, Any] | None = None) -> None:
        self.run_id, self._state = run_id, dict(state or {"rows": 0, "tail": []})

    def where(self, output_dir: Path) -> list[str]:
        """Lines for the user, at the end: where the record is, and what shows it."""
        return [f"record: {self.record}"] if self.record else ["record: nothing is kept"]

    def update_summary(self, facts: Mapping[str, Any]) -> None:
        """Put into the summary at once what is known before the first row: a run that fails has it, too."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row of `ampcompare.metrics`, whose step is its `global_step` (a step may have several);
        values are numbers and Histograms. The loop waits for this: keep the row and return. May raise what
        went wrong earlier.
        """

    def advance(self, step: int) -> None:
        """So many steps of somebody else's loop are over, whose run it is: rows that waited may go on."""

    def flush(self) -> None:
        """Wait until the rows so far are on their way, so that a checkpoint may be written."""

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on with the record from here, after `flush`: plain values, no Histograms."""
        return self._state

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """End the record; returns in words what it lacks. Exit code 0 is a run that has finished; that of a
        signal (`program.signals`) one that was stopped, which takes seconds only, as a batch system kills
        soon; any other one that has failed.
        """
        return None
