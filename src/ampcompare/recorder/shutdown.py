"""How the record of somebody's loop ends: finished, failed with an exception, or stopped by a signal."""

import atexit
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType

from ampcompare.runtime.signals import EXIT_FAILED, EXIT_INTERRUPTED, SignalListener, exit_by_signal

# Those that end a process at once, without a word in its record. Ctrl-C is Python's KeyboardInterrupt.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LAST_SIGNALS: dict[int, int] = {}  # by process, as a fork has a copy: the signal that it was asked to end by


def _at_exit() -> None:
    """End by the signal under W&B's agent, for which an exit code is a failure (`exit_by_signal`)."""
    if number := _LAST_SIGNALS.get(os.getpid()):
        exit_by_signal(number)


# What is registered first runs last: behind W&B's own hook, which ends a run that is open. One that is open
# already has its hook before ours, and the exit code has to do.
if getattr(sys.modules.get("wandb"), "run", None) is None:
    atexit.register(_at_exit)


class ShutdownHandler:
    """Makes a batch system's signals and the end of the terminal a SystemExit, which unwinds the loop and
    ends its record.

    A handler that the program has set stays. While entered the exit waits: the recorder is at work.
    """

    def __init__(self) -> None:
        self._listener = SignalListener(self._on_signal, only_unhandled=True)
        self.is_busy = False
        self.requested_signal: int | None = None

    def listen(self, numbers: Iterable[signal.Signals] = SIGNALS) -> None:
        """Handle these signals until `close`."""
        self._listener.listen(numbers)

    def close(self) -> None:
        """Leave the signals to the system again: what comes later ends the process."""
        self._listener.close()

    def __enter__(self) -> None:
        self.is_busy = True

    def __exit__(self, *problem: object) -> None:
        self.is_busy = False
        self.exit_if_requested()

    def exit_if_requested(self) -> None:
        """Exit, if that was asked for meanwhile."""
        if self.requested_signal is not None:
            # Not `raise SystemExit`: W&B's client watches this call for the exit code of a run that is open.
            sys.exit(128 + self.requested_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested_signal = _LAST_SIGNALS[os.getpid()] = number
        if not self.is_busy:
            self.exit_if_requested()


def get_exit_code(problem: BaseException | None) -> int:
    """The exit code of a record: 0 of a loop that ended; that of a signal of one that was stopped."""
    if isinstance(problem, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    code = problem.code if isinstance(problem, SystemExit) else 0 if problem is None else EXIT_FAILED
    return code if isinstance(code, int) else EXIT_FAILED if code else 0
