"""The metric of a run while it goes on, read from its W&B record as it grows."""

import time
from pathlib import Path

from ampcompare.records.run import merge
from ampcompare.records.wandb_file import read_wandb_file

SHARE_OF_TIME = 0.02  # of one core, at most, goes into reading


class Follower:
    """Values of one metric of one run under `folder/wandb/`."""

    def __init__(self, folder: Path, run_id: str, metric: str | None) -> None:
        self.folder, self.run_id, self.metric = folder, run_id, metric
        self._next, self._size = 0.0, -1
        self._values: list[float] = []

    def values(self, *, now: bool = False) -> list[float]:
        """Every value logged so far, NaN included, in order. Reads again only when it is time, or `now`."""
        began = time.monotonic()
        if self.metric is None or (began < self._next and not now):
            return self._values
        files = self.files()
        if files and (size := sum(f.stat().st_size for f in files)) != self._size:
            self._size = size
            run = merge([read_wandb_file(file) for file in files])
            self._values = run.logged_numbers(self.metric)[1].tolist()
            if not self._values and (summary := run.summary_number(self.metric)) is not None:
                self._values = [summary]  # a metric of the summary alone, such as best/eval_accuracy
        self._next = time.monotonic() + max(1.0, (time.monotonic() - began) / SHARE_OF_TIME)
        return self._values

    def last(self, *, now: bool = False) -> float | None:
        """The newest value, None while there is none."""
        values = self.values(now=now)
        return values[-1] if values else None

    def exit_code(self) -> int | None:
        """How the run ended by its newest record, None if there is none or it did not end."""
        files = self.files()
        return read_wandb_file(files[-1]).exit_code if files else None

    def files(self) -> list[Path]:
        """The run's records, oldest first: one file, more after a restart, be it online or offline."""
        found = (self.folder / "wandb").glob(f"*run-*-{self.run_id}/run-{self.run_id}.wandb")
        return sorted(found, key=lambda file: file.parent.name.removeprefix("offline-"))
