"""How the record of somebody's loop ends: finished, failed with an exception, or stopped by a signal."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType

from ampcompare.program.stopping import EXIT_FAILED, EXIT_INTERRUPTED, die_of, heard

# Those that end a process at once, without a word in its record. Ctrl-C is Python's KeyboardInterrupt.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LAST: dict[int, int] = {}  # by process, as a fork has a copy: the signal that it was asked to end by


def _at_exit() -> None:
    """W&B's agent counts an exit code as a failure, as `program.stopping.leave` tells."""
    if number := _LAST.get(os.getpid()):
        die_of(number)


# What is registered first runs last: behind W&B's own hook, which ends a run that is open. One that is open
# already has its hook before ours, and the exit code has to do.
if getattr(sys.modules.get("wandb"), "run", None) is None:
    atexit.register(_at_exit)


class Ending:
    """Makes a batch system's signals and the end of the terminal a SystemExit, which unwinds the loop and
    ends its record.

    A handler that the program has set stays. While entered the exit waits: the recorder is at work.
    """

    def __init__(self) -> None:
        self._taken: list[signal.Signals] = []
        self.is_at_work = False
        self.asked: int | None = None

    def listen(self, numbers: Iterable[signal.Signals] = SIGNALS) -> None:
        """From here on."""
        if threading.current_thread() is threading.main_thread():  # nowhere else may handlers be set
            taken = [n for n in heard(numbers) if signal.getsignal(n) is signal.SIG_DFL]
            for number in taken:
                signal.signal(number, self._on_signal)
            self._taken += taken

    def close(self) -> None:
        """Up to here: what comes later ends the process. What the program has set meanwhile stays."""
        if threading.current_thread() is threading.main_thread():
            for number in self._taken:
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, signal.SIG_DFL)

    def __enter__(self) -> None:
        self.is_at_work = True

    def __exit__(self, *problem: object) -> None:
        self.is_at_work = False
        self.leave()

    def leave(self) -> None:
        """Exit, if that was asked for meanwhile."""
        if self.asked is not None:
            # Not `raise SystemExit`: W&B's client watches this call for the exit code of a run that is open.
            sys.exit(128 + self.asked)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = _LAST[os.getpid()] = number
        if not self.is_at_work:
            self.leave()


def exit_code(problem: BaseException | None) -> int:
    """The exit code of a record: 0 of a loop that ended; that of a signal of one that was stopped."""
    if isinstance(problem, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    code = problem.code if isinstance(problem, SystemExit) else 0 if problem is None else EXIT_FAILED
    return code if isinstance(code, int) else EXIT_FAILED if code else 0
