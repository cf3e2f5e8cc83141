"""What records a run: the contract, and the tracker of a run that is recorded nowhere.

A second way to record is one file: a subclass of `Tracker`, and a line in `start.py` that chooses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Tracker(ABC):
    """The record of one run, from its start to its end. Called from the thread that trains.

    `run_id` names the run, and the folder of its checkpoints. A tracker that goes on with a resumed run has
    the `run_id` of before, and is made with the `state_dict` of the checkpoint: rows that were logged after
    it come again and must be in the record once, rows before it must not be missing. One of the two ends is
    called, once, whatever ended the training; a process that was killed calls neither.
    """

    run_id: str

    @property
    def record(self) -> Path | None:
        """The folder of the record on this machine, if it has one."""
        return None

    def where(self, output_dir: Path) -> list[str]:
        """Lines for the user, at the end: where the record is, and what shows it."""
        return [f"record: {self.record}"] if self.record else []

    def note(self, facts: Mapping[str, Any]) -> None:  # noqa: B027 - a tracker may leave it out
        """Put into the summary at once what is known before the first row: a run that fails has it, too."""

    def keep(self, name: str, content: bytes) -> None:  # noqa: B027 - likewise
        """Keep a small file with the record, to be written when that ends; the last of one name counts. One
        that cannot be written is said, and is no failure of the run.
        """

    @abstractmethod
    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row of `ampcompare.metrics`, whose step is its `global_step` (a step may have several);
        values are numbers and Histograms. The loop waits for this: keep the row and return. May raise what
        went wrong earlier.
        """

    def passed(self, step: int) -> None:  # noqa: B027 - likewise
        """So many steps of somebody else's loop are over, whose run it is: rows that waited may go on."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until the rows so far are on their way, so that a checkpoint may be written."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on with the record from here, after `flush`: plain values, no Histograms."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """End the record: finished with exit code 0, else failed. Returns in words what it lacks on disk."""

    def hurry_when(self, asked: Callable[[], bool]) -> None:  # noqa: B027 - a tracker may leave it out
        """From when `asked()` holds, `finish` may take seconds only, and returns what was not sent."""

    def tell_taken_away(self) -> None:  # noqa: B027 - likewise
        """The end was cut short as the machine is taken away: the run may be started again to complete it."""

    @abstractmethod
    def finish_stopped(self, summary: Mapping[str, Any], *, preempted: bool) -> bool:
        """End the record of a run that was stopped, within seconds (a batch system kills soon); whether all
        of it was sent. `preempted`: the machine was taken away, and the run may be started again; a tracker
        that knows better, as whoever drives the run wants it stopped, leaves that out.
        """


class NoRecord(Tracker):
    """Records nothing: for a run whose record is switched off, and for all processes but the first.

    What a checkpoint says of an earlier part's record is handed on to the next.
    """

    def __init__(self, run_id: str = "", state: Mapping[str, Any] | None = None) -> None:
        self.run_id, self._state = run_id, dict(state or {"rows": 0, "tail": []})

    def where(self, output_dir: Path) -> list[str]:
        return ["record: none (W&B is disabled)"]

    def log(self, row: Mapping[str, Any]) -> None:
        pass

    def flush(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        return None

    def finish_stopped(self, summary: Mapping[str, Any], *, preempted: bool) -> bool:
        return True
