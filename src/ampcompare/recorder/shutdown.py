"""The end of a recorded loop: finished, failed with an exception, or stopped by a signal."""

import atexit
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType

from ampcompare.runtime.signals import EXIT_FAILED, EXIT_INTERRUPTED, SignalListener, exit_by_signal

# Signals that end a process at once by default. Ctrl-C is Python's KeyboardInterrupt.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LAST_SIGNALS: dict[int, int] = {}  # by process, as a fork has a copy: the signal that it was asked to end by


def _at_exit() -> None:
    """End the process by the signal under W&B's agent, which counts any exit code as a failure."""
    if number := _LAST_SIGNALS.get(os.getpid()):
        exit_by_signal(number)


# The hook that is registered first runs last. W&B registers a hook when a run begins, and the hook ends the
# run; ours must come after it. If a run is open already, our hook would come first, so none is registered.
if getattr(sys.modules.get("wandb"), "run", None) is None:
    atexit.register(_at_exit)


class ShutdownHandler:
    """Turns a batch system's signals and a closed terminal into SystemExit, which ends loop and record.

    A handler that the program has set stays. As a context it delays the exit until the context ends.

    Attributes:
        is_busy: Whether a recorder is at work, so that the exit has to wait.
        requested_signal: The signal that was received, None before.
    """

    def __init__(self) -> None:
        self._listener = SignalListener(self._on_signal, only_unhandled=True)
        self.is_busy = False
        self.requested_signal: int | None = None

    def listen(self, numbers: Iterable[signal.Signals] = SIGNALS) -> None:
        """Handle these signals until `close`."""
        self._listener.listen(numbers)

    def close(self) -> None:
        """Restore the signals' default handlers."""
        self._listener.close()

    def __enter__(self) -> None:
        self.is_busy = True

    def __exit__(self, *problem: object) -> None:
        self.is_busy = False
        self.exit_if_requested()

    def exit_if_requested(self) -> None:
        """Exit if a signal was received."""
        if self.requested_signal is not None:
            # Not `raise SystemExit`: W&B's client patches sys.exit to get the exit code of an open run.
            sys.exit(128 + self.requested_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested_signal = _LAST_SIGNALS[os.getpid()] = number
        if not self.is_busy:
            self.exit_if_requested()


def get_exit_code(problem: BaseException | None) -> int:
    """Return the exit code of a record: 0 if the loop finished, 128 + signal if it was stopped."""
    if problem is None:
        return 0
    if isinstance(problem, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if not isinstance(problem, SystemExit):
        return EXIT_FAILED
    if isinstance(problem.code, int):
        return problem.code
    return EXIT_FAILED if problem.code else 0  # sys.exit("text") fails, sys.exit() does not
