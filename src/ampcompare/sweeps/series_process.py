"""Processes on this machine that train several runs each, one after the other (`ampcompare.run_series`)."""

import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampcompare.run_series import read_progress
from ampcompare.sweeps.executors.local import LocalExecutor, create_time
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import write_end
from ampcompare.sweeps.run_end import RunEnd, end_file
from ampcompare.sweeps.run_process import STOP_SECONDS, RunProcess, end_leftovers


@dataclass
class _Series:
    """A process and its runs.

    Attributes:
        runs: The runs in their order.
        file: The file that lists the runs.
        worker: The number of the worker, which decides the GPU.
        place: Where the process was started.
        number: The number of the run that is under way, or that comes next.
        is_under_way: Whether that run has begun.
    """

    runs: Sequence[SweepRun]
    process: RunProcess
    file: Path
    worker: int
    place: dict[str, Any]
    number: int = 0
    is_under_way: bool = True  # the first run, since the process was started

    @property
    def current(self) -> SweepRun | None:
        """The run that is under way; None between two runs and at the end."""
        return self.runs[self.number] if self.is_under_way else None


class LocalSeriesExecutor(LocalExecutor):
    """Starts processes that train the runs of one series each.

    `submit` takes the runs of one process. A run is alive once its process has begun it. `alive` takes at
    most one step of each process into account, so that the driver sees each run begin before it ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._series: list[_Series] = []

    @property
    def assigned(self) -> Sequence[Sequence[int]]:  # type: ignore[override]
        """For each process that lives: the runs that wait in it."""
        return [
            tuple(run.index for run in series.runs[series.number + series.is_under_way :])
            for series in self._series
        ]

    def submit(self, runs: Sequence[SweepRun], code: Mapping[str, str]) -> list[dict[str, Any]]:
        """Start one process for these runs; return where it was started, for the first run."""
        worker, gpu = self._free_worker({series.worker for series in self._series})
        place: dict[str, Any] = {"host": socket.gethostname(), **({"gpu": gpu} if gpu else {})}
        if started := self.launcher.start_series(runs, self._guard, gpu, code):
            process, file = started
            place |= {"pid": process.pid, "process_started": create_time(process.pid)}
            for run in runs:
                self._submitted[run.index] = replace(run, process=place)
            self._series.append(_Series(runs, process, file, worker, place))
        return [place]

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return the runs that their processes have begun and not ended."""
        alive: dict[int, dict[str, Any]] = {}
        for series in [*self._series]:
            self._advance(series)
            if series in self._series and (run := series.current):
                alive[run.index] = series.place
        return alive

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Stop the processes of these runs as `LocalExecutor.cancel` does; waiting runs do not begin."""
        indices = {run.index for run in runs}
        for series in self._series:
            if indices & {run.index for run in series.runs[series.number :]}:
                if at_once:
                    series.process.kill()
                series.process.stop(signal.SIGTERM, STOP_SECONDS)

    def _advance(self, series: _Series) -> None:
        """Note what the process has begun or ended since the last call, at most one thing."""
        # In this order: whatever an ended process has noted is there to be read.
        end = series.process.poll()
        begun, ended = read_progress(series.file)
        if series.is_under_way and series.number in ended:
            self._note_end(series, RunEnd(0, ended_at=time.time()))
            series.number, series.is_under_way = series.number + 1, False
            self._guard.watch(series.process.pid)
        elif not series.is_under_way and series.number in begun:
            series.is_under_way = True
            run = series.runs[series.number]
            self._guard.watch(series.process.pid, self._end_file(run))
        elif end is not None:
            if series.is_under_way:
                self._note_end(series, end)
            if end.exit_code != 0 and end.asked_at is None:
                # A process shows the environment with which it was started, which is that of the first run.
                end_leftovers(series.runs, self.launcher.folder)
            self._series.remove(series)

    def _note_end(self, series: _Series, end: RunEnd) -> None:
        """Write the facts about the end of the run that is under way."""
        write_end(self._end_file(series.runs[series.number]), end.facts())

    def _end_file(self, run: SweepRun) -> Path:
        return end_file(self.launcher.folder, run.run_id, run.starts + 1)
