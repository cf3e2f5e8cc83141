"""A running program: its process group, how it is stopped, and the facts about its end.

Executors get it from `RunLauncher` (run_launcher.py) inside a `SeriesProcess` (series_process.py), on the
machine on which the run happens.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_end import DRIVER, SIGNAL_CODES, RunEnd

POLL_SECONDS = 0.1
STOP_SECONDS = 30.0  # between SIGTERM and SIGKILL, as for W&B's agent
LEFTOVER_SECONDS = 5.0  # for processes that a program leaves running when it ends
# A scheduler that signals all processes of a job may reach the run before the process that started it.
SAME_SIGNAL_SECONDS = 2.0


class RunProcess:
    """A running program in a process group of its own. Its output goes to a file.

    Args:
        command: The program and its arguments.
        environment: All its environment variables.
        log: The file to which its output is appended.
        guard: Ends it if this process dies.
        facts: Where the guard then notes that it has asked the program to end; None: nowhere.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        guard: ProcessGuard,
        facts: Path | None = None,
    ) -> None:
        self._guard = guard
        self._exit_code: int | None = None
        self._ended_at = 0.0  # by time.monotonic
        self._asked_at: float | None = None  # by time.time
        self._asked_by = DRIVER
        self._kill_at: float | None = None
        self.end: RunEnd | None = None
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self.pid, facts)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def poll(self) -> RunEnd | None:
        """Return the facts about the end once the program and all its processes have ended.

        W&B's service ends shortly after its program. Other processes that the program left are killed after
        LEFTOVER_SECONDS. A program that was asked to stop is killed when its time is over.

        If a signal ended the program, a stop request within SAME_SIGNAL_SECONDS counts as the reason.

        Returns:
            The facts; None while something is running.
        """
        if self.end is not None:
            return self.end
        now = time.monotonic()
        if self._exit_code is None:
            if self._kill_at is not None and now > self._kill_at:
                self.kill()
            self._exit_code = self._process.poll()
            if self._exit_code is None:
                return None
            self._ended_at = now
        if _is_group_running(self.pid):
            if now > self._ended_at + LEFTOVER_SECONDS:
                self.kill()
            return None
        may_be_asked = self._exit_code in SIGNAL_CODES and self._asked_at is None
        if may_be_asked and now < self._ended_at + SAME_SIGNAL_SECONDS:
            return None
        asked_by = None if self._asked_at is None else self._asked_by
        self.end = RunEnd(self._exit_code, self._asked_at, asked_by)
        self._guard.forget(self.pid)
        return self.end

    def stop(
        self, number: int = signal.SIGTERM, patience: float = STOP_SECONDS, asked_by: str = DRIVER
    ) -> None:
        """Ask the program to end, and kill it if it has not ended after `patience` seconds.

        The signal goes to the program alone: W&B's service has to complete the record.

        Args:
            number: The signal.
            patience: In seconds.
            asked_by: Who asks, as in `RunEnd`.
        """
        if self._asked_at is not None or self.end is not None:
            return
        asked_at = time.time()
        if self._exit_code is None:
            self._process.send_signal(number)  # no effect if the process has ended already
        exit_code = self._process.returncode
        if exit_code is not None and exit_code not in SIGNAL_CODES:
            return  # it ended by itself, before it was asked to
        self._asked_at, self._asked_by = asked_at, asked_by
        self._kill_at = time.monotonic() + patience

    def kill(self) -> None:
        """Kill the program and all its processes at once."""
        _send_to_group(self.pid, signal.SIGKILL)


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or a zombie: a container may have no process that collects them."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _is_group_running(group: int) -> bool:
    """Return whether a process group has a member that has not ended."""
    if not _send_to_group(group, 0):
        return False
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group and not has_ended(psutil.Process(pid)):
                return True
    return False


def _send_to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except OSError:  # no process, or a zombie on macOS
        return False
    return True
