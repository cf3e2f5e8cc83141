"""Runs as processes on this machine, each on one GPU where there are GPUs."""

import os
import signal
import socket
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psutil

from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_end import MAX_SIGNAL_ENDS
from ampcompare.sweeps.run_process import STOP_SECONDS, RunLauncher, RunProcess, end_leftovers


@dataclass
class _Started:
    run: SweepRun
    process: RunProcess
    worker: int


class LocalExecutor:
    """Starts runs as child processes.

    Args:
        launcher: Starts the processes.
        slots: Number of runs at a time.
        gpus: CUDA_VISIBLE_DEVICES of each worker, in turn; empty where there are no GPUs.
    """

    has_live_records = True
    poll_seconds = 0.02
    max_signal_ends: int | None = MAX_SIGNAL_ENDS
    assigned: Sequence[Sequence[int]] = ()

    def __init__(self, launcher: RunLauncher, slots: int, gpus: Sequence[str] = ()) -> None:
        self.launcher, self.slots, self.gpus = launcher, slots, gpus
        self._guard = ProcessGuard()
        self._started: dict[int, _Started] = {}
        self._submitted: dict[int, SweepRun] = {}

    def submit(self, runs: Sequence[SweepRun], code: Mapping[str, str]) -> list[dict[str, Any]]:
        """Start these runs at once, each on the GPU of a free worker; return where each was started."""
        places = []
        for run in runs:
            worker, gpu = self._free_worker({started.worker for started in self._started.values()})
            process = self.launcher.start(run, self._guard, gpu, code)
            place: dict[str, Any] = {"host": socket.gethostname(), **({"gpu": gpu} if gpu else {})}
            if process is not None:
                self._started[run.index] = _Started(run, process, worker)
                place |= {"pid": process.pid, "process_started": create_time(process.pid)}
                self._submitted[run.index] = replace(run, process=place)
            places.append(place)
        return places

    def _free_worker(self, busy: Container[int]) -> tuple[int, str | None]:
        """Return the number of a free worker, and its GPU."""
        worker = next(number for number in count() if number not in busy)
        return worker, self.gpus[worker % len(self.gpus)] if self.gpus else None

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return the runs whose processes have not all ended."""
        for index, started in [*self._started.items()]:
            end = started.process.poll()
            if end is None:
                continue
            if end.exit_code != 0 and end.asked_at is None:
                # Such as the workers of a torchrun that was killed: they hold the GPU.
                end_leftovers([started.run], self.launcher.folder)
            del self._started[index]
        return {index: {} for index in self._started}

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Send SIGTERM, and SIGKILL to all that is left after STOP_SECONDS or `at_once`."""
        for run in runs:
            if started := self._started.get(run.index):
                if at_once:
                    started.process.kill()
                started.process.stop(signal.SIGTERM, STOP_SECONDS)

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
