"""Runs as processes on this machine, each on one GPU where there are GPUs."""

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psutil

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_process import (
    GUARD_MARK,
    SAME_SIGNAL_SECONDS,
    SIGNAL_CODES,
    STOP_SECONDS,
    RunLauncher,
    RunProcess,
    end_leftovers,
    end_state,
)

POLL_SECONDS = 0.02


@dataclass
class _Started:
    run: SweepRun
    process: RunProcess
    worker: int
    report_at: float = 0.0  # its end by a signal, once it is clear whether this process is ended as well


class LocalExecutor:
    """Starts runs as child processes.

    Args:
        launcher: Starts the processes.
        slots: Number of runs at a time.
        gpus: CUDA_VISIBLE_DEVICES of each worker, in turn; empty where there are no GPUs.
        code: Dates of the user's files, for the records, where they changed since the sweep began.
    """

    has_live_records = True

    def __init__(
        self,
        launcher: RunLauncher,
        slots: int,
        gpus: Sequence[str] = (),
        code: Mapping[str, str] | None = None,
    ) -> None:
        self.launcher, self.slots, self.gpus, self.code = launcher, slots, gpus, code
        self._guard = ProcessGuard(launcher.folder / GUARD_MARK)
        self._started: dict[int, _Started] = {}
        self._submitted: dict[int, SweepRun] = {}
        self._news: list[RunEvent] = []

    def submit(self, runs: Sequence[SweepRun]) -> None:
        """Start these runs at once, each on the GPU of a free worker."""
        for run in runs:
            busy = {started.worker for started in self._started.values()}
            worker = next(number for number in count() if number not in busy)
            gpu = self.gpus[worker % len(self.gpus)] if self.gpus else None
            process = self.launcher.start(run, self._guard, gpu, self.code)
            where: dict[str, Any] = {"host": socket.gethostname(), **({"gpu": gpu} if gpu else {})}
            if process is None:
                self._news += [RunEvent(run.index, RunState.RUNNING, process=where)]
                self._news += [RunEvent(run.index, RunState.FAILED)]
                continue
            self._started[run.index] = _Started(run, process, worker)
            where |= {"pid": process.pid, "process_started": _create_time(process.pid)}
            self._submitted[run.index] = replace(run, process=where)
            self._news.append(RunEvent(run.index, RunState.RUNNING, process=where))

    def poll(self, seconds: float) -> list[RunEvent]:
        """Return what has happened, after `seconds` at the latest."""
        deadline = time.monotonic() + seconds
        while True:
            for started in [*self._started.values()]:
                self._check(started)
            if self._news or time.monotonic() >= deadline:
                news, self._news = self._news, []
                return news
            time.sleep(POLL_SECONDS)

    def cancel(self, run: SweepRun, *, at_once: bool = False) -> None:
        """Send SIGTERM, and SIGKILL to all that is left after STOP_SECONDS or `at_once`."""
        if started := self._started.get(run.index):
            if at_once:
                started.process.kill()
            started.process.stop(signal.SIGTERM, STOP_SECONDS)
            started.report_at = 0.0

    def close(self) -> None:
        """End the guard, and what the runs have left in other sessions."""
        self._guard.close()
        end_leftovers([*self._submitted.values()], self.launcher.folder)

    def _check(self, started: _Started) -> None:
        exit_code = started.process.poll()
        if exit_code is None:
            return
        run, was_asked = started.run, started.process.was_interrupted
        if exit_code in SIGNAL_CODES and not was_asked:
            now = time.monotonic()
            started.report_at = started.report_at or now + SAME_SIGNAL_SECONDS
            if now < started.report_at:
                return
        state, by_signal = end_state(self.launcher, run, exit_code, was_asked=was_asked)
        if state is not RunState.FINISHED and not was_asked:
            # Such as the workers of a torchrun that was killed: they hold the GPU.
            end_leftovers([run], self.launcher.folder)
        self._news.append(RunEvent(run.index, state, exit_code, by_signal))
        del self._started[run.index]


def _create_time(pid: int) -> float | None:
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
