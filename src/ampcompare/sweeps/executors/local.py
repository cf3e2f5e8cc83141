"""Processes on this machine, each on one GPU where there are GPUs."""

import os
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psutil

from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_end import MAX_SIGNAL_ENDS
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.run_process import RunProcess, end_leftovers


@dataclass
class _Started:
    """A process that was started.

    Attributes:
        worker: The number of the worker, which decides the GPU.
        place: Where the process was started, for the journal.
    """

    process: RunProcess
    worker: int
    place: dict[str, Any]


class LocalExecutor:
    """Starts runs as child processes.

    Args:
        launcher: Starts the processes.
        slots: Number of processes at a time.
        gpus: CUDA_VISIBLE_DEVICES of each worker, in turn; empty where there are no GPUs.
    """

    poll_seconds = 0.02
    max_signal_ends: int | None = MAX_SIGNAL_ENDS

    def __init__(self, launcher: RunLauncher, slots: int, gpus: Sequence[str] = ()) -> None:
        self.launcher, self.slots, self.gpus = launcher, slots, gpus
        self._guard = ProcessGuard()
        self._started: list[_Started] = []
        self._submitted: dict[int, SweepRun] = {}

    @property
    def assigned(self) -> Sequence[Sequence[int]]:
        """For each process that lives: the runs that wait in it."""
        return [tuple(run.index for run in started.process.waiting) for started in self._started]

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, Any]]:
        """Start a process for each group, on the GPU of a free worker; return where each was started."""
        places = []
        for runs in groups:
            worker, gpu = self._free_worker({started.worker for started in self._started})
            process = self.launcher.start(runs, self._guard, gpu)
            place: dict[str, Any] = {"host": socket.gethostname(), **({"gpu": gpu} if gpu else {})}
            if process is not None:
                place |= {"pid": process.pid, "process_started": create_time(process.pid)}
                self._started.append(_Started(process, worker, place))
                self._submitted |= {run.index: replace(run, process=place) for run in runs}
            places.append(place)
        return places

    def _free_worker(self, busy: Container[int]) -> tuple[int, str | None]:
        """Return the number of a free worker, and its GPU."""
        worker = next(number for number in count() if number not in busy)
        return worker, self.gpus[worker % len(self.gpus)] if self.gpus else None

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return the run that is under way in each process that has not ended."""
        alive: dict[int, dict[str, Any]] = {}
        for started in [*self._started]:
            process = started.process
            end = process.poll()
            if end is not None:
                self._started.remove(started)
                if end.exit_code != 0 and end.asked_at is None:
                    # Such as the workers of a torchrun that was killed: they hold the GPU. They have the
                    # environment of the process, which is that of its first run.
                    end_leftovers(process.runs, self.launcher.folder)
            elif run := process.current:
                alive[run.index] = started.place
        return alive

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Send SIGTERM, and SIGKILL to all that is left after STOP_SECONDS or `at_once`."""
        indices = {run.index for run in runs}
        for process in (started.process for started in self._started):
            own = [run for run in (process.current, *process.waiting) if run is not None]
            if not any(run.index in indices for run in own):
                continue
            if at_once:
                process.kill()
            process.stop()

    def close(self) -> None:
        """End the guard, and what the runs have left in other sessions."""
        self._guard.close()
        end_leftovers([*self._submitted.values()], self.launcher.folder)


def create_time(pid: int) -> float | None:
    """Return when a process was started (seconds since 1970); None if it has gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def visible_gpus() -> list[str]:
    """Return a value of CUDA_VISIBLE_DEVICES for each GPU that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA takes the list up to the first name that is none, such as -1.
        valid = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
        return names[:valid] if _gpu_count() else []
    return [str(index) for index in range(_gpu_count())]


def _gpu_count() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver, no GPU
        return 0
