"""The interface of trackers, which record runs. The base class records nothing.

To record in another way, add a subclass of `Tracker` in its own file, and a line in `wandb_init.py` that
chooses it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """The record of one run, from its start to its end. This base class records nothing.

    It is used if the record is switched off, and in all processes but the main one. It keeps the tracker
    state of a checkpoint for the next checkpoint. All methods are called from the training thread. A tracker
    of a resumed run gets the `state_dict` of the checkpoint: rows that were logged after it come again and
    must be recorded once, and earlier rows must not be missing. `finish` is called once, however the training
    ends, unless the process is killed.

    Args:
        state: The `state_dict` of the checkpoint to resume from; None for a run from its start.

    Attributes:
        run_id: It also names the folder of the run's checkpoints.
        record: The folder of the record on this machine; None: there is none.
    """

    record: Path | None = None

    def __init__(self, run_id: str = "", state: Mapping[str, Any] | None = None) -> None:
        self.run_id = run_id
        self._state = dict(state or {"rows": 0, "tail": []})

    def describe_record(self, output_dir: Path) -> list[str]:
        """Return the lines that are printed at the end: where the record is, and commands that show it."""
        return [f"record: {self.record}"] if self.record else ["record: none"]

    def update_summary(self, facts: Mapping[str, Any]) -> None:
        """Add to the summary what is known before the end, so that a failed or killed run has it too."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row. The loop waits for this, so keep the row and return.

        May raise what went wrong with an earlier row.

        Args:
            row: Numbers and Histograms by metric key. Its step is `global_step`; a step may have several
                rows.
        """

    def advance(self, step: int) -> None:
        """Note that so many steps of a user's own loop are done: waiting rows may be logged."""

    def flush(self) -> None:
        """Wait until the rows so far are passed on, so that a checkpoint may be written."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue the record from here: plain values. Call it after `flush`."""
        return self._state

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """End the record.

        Args:
            summary: Added to the run's summary.
            exit_code: 0: the run has finished. 128 + signal: it was stopped, so the end may take only
                seconds, because a batch system kills soon. Any other code: it has failed.

        Returns:
            What the record lacks, for the user; None: it is complete.
        """
        return None
