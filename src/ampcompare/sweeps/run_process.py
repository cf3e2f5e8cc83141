"""A program that trains one run or a series of runs: its process group, its stop, the ends of its runs.

Every executor starts runs through `RunLauncher.start`, which returns a `RunProcess`: the driver on this
machine, and on a cluster the job of Slurm or the task of Ray. Whoever has it polls it. Each run of a series
is a run of its own, and leaves its own facts (run_end.py). The training itself notes which run it has begun
and finished (config/run_series.py). What a process that was killed has left is ended by `end_leftovers`.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ampcompare.config.run_series import read_progress
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import (
    POLL_SECONDS,
    STOP_SECONDS,
    ProcessGuard,
    ask_to_end,
    send_to_group,
    wait_for,
    write_end,
)
from ampcompare.sweeps.run_end import DRIVER, NOT_STARTED, RunEnd, end_file_of, exit_code_of

log = logging.getLogger(__name__)

LEFTOVER_SECONDS = 5.0  # for processes that a program leaves running when it ends
# A scheduler that signals all processes of a job may reach the run before the process that started it.
SAME_SIGNAL_SECONDS = 2.0
# The ids of all runs of a process that trains several: its environment has W&B's variable of the first one.
SERIES_VARIABLE = "AMPCOMPARE_SERIES"


class RunProcess:
    """A running program in a process group of its own, and its runs. Its output goes to a file.

    Args:
        command: The program and its arguments.
        environment: All its environment variables.
        log: The file to which its output is appended.
        guard: Ends it if this process dies.
        folder: Output folder of the sweep.
        runs: The runs in their order. The first one begins with the process.
        series: The file that lists the runs (config/run_series.py); None: the process trains one run.

    Attributes:
        runs: As above.
        ends: The facts about the runs that have ended, by the index of the run.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        guard: ProcessGuard,
        folder: Path,
        runs: Sequence[SweepRun],
        series: Path | None = None,
    ) -> None:
        self.runs = runs
        self.ends: dict[int, RunEnd] = {}
        self._guard, self._folder, self._series = guard, folder, series
        self._begun = 1  # how many runs have begun
        self._exit_code: int | None = None
        self._ended_at = 0.0  # by time.monotonic
        self._asked_at: float | None = None  # by time.time
        self._asked_by: str | None = None
        self._kill_at: float | None = None
        self._end: RunEnd | None = None
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self.pid, end_file_of(folder, runs[0]))

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def current(self) -> SweepRun | None:
        """The run that is under way; None between two runs and at the end."""
        return self.runs[self._begun - 1] if len(self.ends) < self._begun else None

    @property
    def waiting(self) -> Sequence[SweepRun]:
        """The runs that have not begun, and will not if the process has ended."""
        return self.runs[self._begun :]

    def poll(self) -> RunEnd | None:
        """Note which runs have begun or ended since the last call.

        Returns:
            The facts about the end of the program, once all its processes have ended; None while something is
            running.
        """
        # In this order: whatever an ended process has noted is there to be read.
        end = self._poll_process()
        if self._series is not None:
            self._follow(*read_progress(self._series))
        if end is not None and (run := self.current):
            self._note_end(run, end)
        return end

    def _poll_process(self) -> RunEnd | None:
        """Return the facts about the end once the program and all its processes have ended.

        W&B's service ends shortly after its program. Other processes that the program left are killed after
        LEFTOVER_SECONDS. A program that was asked to stop is killed when its time is over.

        If a signal ended the program, a stop request within SAME_SIGNAL_SECONDS counts as the reason.
        """
        if self._end is not None:
            return self._end
        now = time.monotonic()
        if self._exit_code is None:
            if self._kill_at is not None and now > self._kill_at:
                self.kill()
            returncode = self._process.poll()
            if returncode is None:
                return None
            self._exit_code, self._ended_at = exit_code_of(returncode), now
        if _is_group_running(self.pid):
            if now > self._ended_at + LEFTOVER_SECONDS:
                self.kill()
            return None
        end = RunEnd(self._exit_code, self._asked_at, self._asked_by)
        if end.is_by_signal and end.asked_at is None and now < self._ended_at + SAME_SIGNAL_SECONDS:
            return None
        self._end = end
        self._guard.forget(self.pid)
        return end

    def stop(
        self, number: int = signal.SIGTERM, patience: float = STOP_SECONDS, asked_by: str = DRIVER
    ) -> None:
        """Ask the program to end, and kill it if it has not ended after `patience` seconds.

        The signal goes to the program alone: W&B's service has to complete the record. Runs that wait do not
        begin.

        Args:
            number: The signal.
            patience: In seconds.
            asked_by: Who asks, as in `RunEnd`.
        """
        if self._asked_at is not None or self._end is not None:
            return
        asked_at = time.time()
        if self._exit_code is None:
            self._process.send_signal(number)  # no effect if the process has ended already
        returncode = self._process.returncode
        if returncode is not None and not RunEnd(exit_code_of(returncode)).is_by_signal:
            return  # it ended by itself, before it was asked to
        self._asked_at, self._asked_by = asked_at, asked_by
        self._kill_at = time.monotonic() + patience

    def kill(self) -> None:
        """Kill the program and all its processes at once."""
        send_to_group(self.pid, signal.SIGKILL)

    def _follow(self, begun: Sequence[int], finished: Sequence[int]) -> None:
        """Take into account what a process of several runs has noted."""
        before = self.current
        for run in self.runs[len(self.ends) : len(finished)]:
            self._note_end(run, RunEnd(0))
        self._begun = max(self._begun, len(begun))
        if self.current is not before:
            facts = end_file_of(self._folder, self.current) if self.current else None
            self._guard.watch(self.pid, facts)

    def _note_end(self, run: SweepRun, end: RunEnd) -> None:
        self.ends[run.index] = end
        write_end(end_file_of(self._folder, run), end.facts())


def train_in_series(
    start: Callable[[Sequence[SweepRun]], RunProcess | None],
    runs: Sequence[SweepRun],
    attend: Callable[[RunProcess], None],
    is_stopping: Callable[[], bool],
) -> dict[int, RunEnd]:
    """Train runs one after the other in a job or a task, with a new process behind each that did not finish.

    Args:
        start: Starts the process of these runs; None where it cannot be started.
        attend: Passes stop requests on to the process. It is called repeatedly while the process runs.
        is_stopping: Returns whether no further run may begin.

    Returns:
        The facts about the runs that have ended, by the index of the run. The others have not begun.
    """
    ends: dict[int, RunEnd] = {}
    left = runs
    while left and not is_stopping():
        process = start(left)
        if process is None:
            ends[left[0].index] = RunEnd(NOT_STARTED)
            left = left[1:]
            continue
        while process.poll() is None:
            attend(process)
            time.sleep(POLL_SECONDS)
        ends |= process.ends
        left = process.waiting
    return ends


def end_leftovers(runs: Sequence[SweepRun], folder: Path, *, announces: bool = False) -> None:
    """End the processes that runs or a killed driver left on this machine, and wait for their end.

    The programs of the runs get SIGTERM and have STOP_SECONDS to save a checkpoint. Processes that they
    started (with the run's id and this folder in their environment) have LEFTOVER_SECONDS more: W&B's
    service completes the record. Then all are killed. The facts about the end of each run say that it was
    asked to end.

    Args:
        folder: Output folder of the sweep.
        announces: Whether to tell the user about the wait.
    """
    started = {(run.process.get("pid"), run.process.get("process_started")) for run in runs}
    found = _processes_of(runs, folder, started)
    pids = {process.pid for process in found}
    interrupted = []
    for run in runs:
        is_running = run.state is RunState.RUNNING
        # A run that waits for a start by the journal may have begun: its driver was killed in between.
        is_found = (is_running or run.is_startable) and run.run_id in found.values()
        if is_found or (is_running and run.process.get("pid") in pids):
            interrupted.append(end_file_of(folder, run))
    if announces and found:
        processes = "1 process" if len(found) == 1 else f"{len(found)} processes"
        log.info(f"waiting for {processes} left over from a sweep command that was killed")
    # By the pid alone: when the machine's clock is set, the start times of processes change.
    known = {pid for pid, _ in started}
    programs = [process for process in found if process.pid in known or _leads_its_group(process)]
    ask_to_end([process.pid for process in programs], interrupted, DRIVER)
    wait_for(programs, has_ended, STOP_SECONDS)
    left = wait_for(found, has_ended, LEFTOVER_SECONDS)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    wait_for(left, has_ended, LEFTOVER_SECONDS)


def _processes_of(
    runs: Sequence[SweepRun], folder: Path, started: Container[tuple[Any, Any]]
) -> dict[psutil.Process, str | None]:
    """Return the processes of runs on this machine, with the id of the run in their environment."""
    run_ids = {run.run_id for run in runs}
    found: dict[psutil.Process, str | None] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_program = (process.pid, process.create_time()) in started
            environment = {} if is_program else process.environ()
            run_id = environment.get("WANDB_RUN_ID")
            marks = {run_id, *environment.get(SERIES_VARIABLE, "").split(",")}
            is_marked = run_ids & marks and environment.get("WANDB_DIR") == str(folder)
            if (is_program or is_marked) and process.pid != os.getpid() and not has_ended(process):
                found[process] = run_id
    return found


def _leads_its_group(process: psutil.Process) -> bool:
    """Return whether a process leads a group, but no session, as `RunProcess` starts a program."""
    with suppress(OSError):
        return os.getpgid(process.pid) == process.pid != os.getsid(process.pid)
    return False


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or a zombie: a container may have no process that collects them."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _is_group_running(group: int) -> bool:
    """Return whether a process group has a member that has not ended."""
    if not send_to_group(group, 0):
        return False
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group and not has_ended(psutil.Process(pid)):
                return True
    return False
