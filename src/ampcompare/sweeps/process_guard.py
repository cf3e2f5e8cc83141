"""End the runs of a process that was killed before it could end them itself.

The guard is a program of its own, started by `ProcessGuard` in a session of its own. It reads lines from its
standard input: `+PID RUN_ID`, watch a run's process group, or `-PID`, watch it no longer. When the input
closes, its parent has ended, however that happened, and the guard ends the runs that are left: SIGTERM to the
run, so that it can save a checkpoint, SIGKILL to its whole group after PATIENCE_SECONDS.

Linux has PR_SET_PDEATHSIG for this, but that fires when the *thread* that started the run ends, it does not
reach grandchildren, and other systems do not have it.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE_SECONDS = 30.0
CLOCK_TICK_SECONDS = 0.01  # to which the times of files are exact
# A batch system sends these to every process of a job; they are not for the guard.
IGNORED_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class ProcessGuard:
    """The guard of this process's runs.

    If somebody kills the guard, the runs continue without it.
    """

    def __init__(self, mark: Path | None = None) -> None:
        """Start the guard.

        Args:
            mark: A file that the guard writes before it ends runs: the time at which its parent ended, and
                the ids of the runs that it interrupts.
        """
        marks = [] if mark is None else [str(mark)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *marks],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is not for the guard
        )

    def watch(self, pid: int, run_id: str = "") -> None:
        """Watch the process group of a run."""
        self._write(f"+{pid} {run_id}\n")

    def forget(self, pid: int) -> None:
        """Stop watching a run that has ended."""
        self._write(f"-{pid}\n")

    def close(self) -> None:
        """End the guard. No run may be left."""
        self._process.communicate()

    def _write(self, line: str) -> None:
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(line.encode())


def main() -> None:
    """Watch until standard input closes, then end what is left."""
    for name in IGNORED_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    run_ids: dict[int, str] = {}  # by process group
    for line in sys.stdin:
        pid, _, run_id = line[1:].strip().partition(" ")
        if line[0] == "+":
            run_ids[int(pid)] = run_id
        else:
            run_ids.pop(int(pid), None)
    groups = set(run_ids)
    if groups and sys.argv[1:]:
        now = time.time()
        time.sleep(2 * CLOCK_TICK_SECONDS)  # what a run writes after its SIGTERM is clearly younger
        words = [now, *(run_id for pid, run_id in run_ids.items() if heeds_sigterm(pid))]
        with suppress(OSError):
            Path(sys.argv[1]).write_text(" ".join(map(str, words)))
    for pid in groups:
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)  # to the run alone: W&B's service has to complete the record
    deadline = time.monotonic() + PATIENCE_SECONDS
    while groups and time.monotonic() < deadline:
        time.sleep(0.1)
        groups = {group for group in groups if _has_members(group)}
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def heeds_sigterm(pid: int) -> bool:
    """Return whether there is a process that SIGTERM interrupts.

    Linux alone tells whether a process ignores the signal, or has ended and is not collected yet.
    """
    with suppress(OSError):
        os.kill(pid, 0)
        with suppress(FileNotFoundError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            ignored = int(fields["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1
            return not ignored and not fields["State"].startswith("Z")
        return True
    return False


def _has_members(group: int) -> bool:
    with suppress(OSError):
        os.killpg(group, 0)
        return True
    return False


if __name__ == "__main__":
    main()
