"""End the runs of a process that was killed before it could end them itself.

The guard is a program of its own, started by `ProcessGuard` in a session of its own. It reads lines of JSON
from its standard input: `["watch", PID, FILE]`, watch a run's process group, or `["forget", PID, ""]`. JSON
has an escape for each character that the name of a file may have. When the input closes, its parent has
ended, however that happened, and the guard ends the runs that are left: it notes in the run's FILE that the
run was asked to end, sends SIGTERM to the run, so that it can save a checkpoint, and SIGKILL to its whole
group after STOP_SECONDS.

`write_end` is here because the guard loads nothing but Python's standard library. What is written, and what
it means, is in run_end.py.

Linux has PR_SET_PDEATHSIG for this, but that fires when the *thread* that started the run ends, it does not
reach grandchildren, and other systems do not have it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
WATCH, FORGET = "watch", "forget"  # orders to the guard
GUARD = "guard"  # who asked a run to end
POLL_SECONDS = 0.1
EXIT_SECONDS = 0.5  # between the end of its input and that of a parent that was killed
STOP_SECONDS = 30.0  # between SIGTERM and SIGKILL, as for W&B's agent
CLOCK_TICK_SECONDS = 0.01  # to which the times of files are exact
# A batch system sends these to every process of a job; they are not for the guard.
IGNORED_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class ProcessGuard:
    """The guard of this process's runs.

    If the guard is killed, the runs continue without it.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is not for the guard
        )

    def watch(self, pid: int, end_file: Path | None = None) -> None:
        """Watch the process group of a run.

        Args:
            pid: Id of the group.
            end_file: Where the guard notes that it has asked the run to end; None: nowhere.
        """
        self._write(WATCH, pid, "" if end_file is None else str(end_file))

    def forget(self, pid: int) -> None:
        """Stop watching a run that has ended."""
        self._write(FORGET, pid)

    def close(self) -> None:
        """End the guard. No run may be left."""
        self._process.communicate()

    def _write(self, order: str, pid: int, file: str = "") -> None:
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(json.dumps([order, pid, file]).encode() + b"\n")


def main() -> None:
    """Watch until standard input closes, then end what is left."""
    for name in IGNORED_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    files: dict[int, str] = {}  # by process group
    parent = os.getppid()
    for line in sys.stdin:
        order, pid, file = json.loads(line)
        if order == WATCH:
            files[pid] = file
        else:
            files.pop(pid, None)
    if files:
        wait_for([parent], lambda pid: os.getppid() != pid, EXIT_SECONDS)
    ask_to_end(files, [Path(file) for file in files.values() if file], GUARD)
    for group in wait_for(files, lambda group: not send_to_group(group, 0), STOP_SECONDS):
        send_to_group(group, signal.SIGKILL)


def ask_to_end(groups: Collection[int], files: Iterable[Path], asked_by: str) -> None:
    """Send SIGTERM to the leaders of these process groups, and note in the files that they were asked.

    The groups stand still meanwhile: all that they have written before is older than the noted time, and what
    they write because of the signal is clearly younger. Their parent must have ended, or stay: the kernel
    sends SIGHUP to a stopped group whose parent ends.
    """
    for group in groups:
        send_to_group(group, signal.SIGSTOP)
    try:
        asked_at = time.time()
        for file in files:
            note_stop(file, asked_at, asked_by)
        if groups:
            time.sleep(2 * CLOCK_TICK_SECONDS)
    finally:  # also after Ctrl-C: no group may stand still for ever
        for group in groups:
            with suppress(OSError):
                os.kill(group, signal.SIGTERM)  # to the run alone: W&B's service has to complete the record
            send_to_group(group, signal.SIGCONT)


def wait_for(processes: Iterable[T], has_ended: Callable[[T], bool], seconds: float) -> list[T]:
    """Wait until these have ended, at most so many seconds; return those that have not."""
    left, deadline = [*processes], time.monotonic() + seconds
    while (left := [each for each in left if not has_ended(each)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


def note_stop(file: Path, asked_at: float, asked_by: str) -> None:
    """Note that a run was asked to end, unless the file already has facts about its end."""
    write_end(file, {"asked_at": asked_at, "asked_by": asked_by}, is_first=True)


def write_end(file: Path, facts: Mapping[str, Any], *, is_first: bool = False) -> None:
    """Write facts about the end of a run: the one place that does.

    A fact that cannot be written is lost: the run then counts as one whose end was not observed.

    Args:
        facts: The facts by their name.
        is_first: Whether facts that are there already stay as they are.
    """
    text = json.dumps(facts)
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        if is_first:
            with file.open("x") as created:
                created.write(text)
        else:
            temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
            temporary.write_text(text)
            temporary.replace(file)


def send_to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except OSError:  # no process, or a zombie on macOS
        return False
    return True


if __name__ == "__main__":
    main()
