"""The metric of a running run, read from its W&B record as it grows."""

import math
import time
from pathlib import Path

from ampcompare.runs.run_record import merge_parts
from ampcompare.runs.run_state import RunState
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.wandb_client.record_folders import find_record_files

MAX_CORE_FRACTION = 0.02  # of one core's time that may go into reading


class MetricTail:
    """Follows one run's record under `folder/wandb/`.

    Args:
        folder: Output folder of the sweep.
        run_id: W&B's id of the run.
        metric: Name of the metric; None where only the end of the record is of interest.
    """

    def __init__(self, folder: Path, run_id: str, metric: str | None = None) -> None:
        self.folder, self.run_id, self.metric = folder, run_id, metric
        self._next_read, self._size = 0.0, -1
        self._values: list[float] = []

    def values(self, *, now: bool = False) -> list[float]:
        """Return every value logged so far, NaN included, in order.

        Args:
            now: Read the record even if it was read a moment ago.
        """
        began = time.monotonic()
        if self.metric is None or (began < self._next_read and not now):
            return self._values
        files = self.files()
        if files and (size := sum(file.stat().st_size for file in files)) != self._size:
            self._size = size
            run = merge_parts([read_wandb_file(file) for file in files])
            self._values = run.logged_numbers(self.metric)[1].tolist()
            if not self._values and (summary := run.summary_number(self.metric)) is not None:
                self._values = [summary]  # a metric of the summary alone, such as best/eval_accuracy
        took = time.monotonic() - began
        self._next_read = time.monotonic() + max(1.0, took / MAX_CORE_FRACTION)
        return self._values

    def final_value(self) -> float | None:
        """Return the last value of a run that has ended; None where there is none or it is no number."""
        values = self.values(now=True)
        return values[-1] if values and math.isfinite(values[-1]) else None

    def exit_code(self) -> int | None:
        """Return the exit code in the newest record; None if there is no record or it has no end."""
        files = self.files()
        return read_wandb_file(files[-1]).exit_code if files else None

    def is_preempting(self) -> bool:
        """Return whether the program called W&B's `mark_preempting()`."""
        files = self.files()
        return bool(files) and read_wandb_file(files[-1]).state is RunState.PREEMPTED

    def files(self) -> list[Path]:
        """Return the run's record files, oldest first: one for each start of the run, online or offline."""
        return find_record_files(self.folder, self.run_id)
