"""A run that is asked to stop: by Ctrl-C, by a batch system (SIGTERM, SIGUSR1, SIGUSR2), by a sweep's agent,
by the end of its terminal, by W&B (its page, hyperband), or because its record takes no more rows.

The first request lets the step under way finish and the record be completed; a second Ctrl-C interrupts at
once. This module must stay free of torch: the entrypoint needs it before it knows that the input is good.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ampcompare.program.agent import is_of_agent

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
# With these a batch system takes the machine away. Slurm sends SIGTERM at the end, and before that what
# `--signal` names: SIGUSR1 by custom, SIGUSR2 with submitit.
TAKEN_AWAY = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
WORDS = {
    signal.SIGINT: "Ctrl-C",
    **{number: number.name for number in TAKEN_AWAY},
    signal.SIGHUP: "the terminal has gone",
}


class StopRequest:
    """While entered, signals become a request that the training loop looks at after each step."""

    def __init__(self) -> None:
        self.reason = ""
        self.exit_code = EXIT_INTERRUPTED
        self._by_wandb = False
        self._is_local = bool(os.environ.get("AMPCOMPARE_LOCAL_SWEEP"))  # the tracker takes it away
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # nowhere else may handlers be set
            self._before = {number: signal.signal(number, self._on_signal) for number in heard(WORDS)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # What comes behind the end of the record finds nothing left to save: the process ends anyway.
            signal.signal(number, signal.SIG_IGN if handler is _take_away else handler)

    def is_made(self) -> bool:
        """Whether anyone has asked."""
        return bool(self.reason)

    def is_preemption(self) -> bool:
        """Whether a batch system takes the machine, as far as this process can tell."""
        return not self._by_wandb and is_preemption(self.exit_code, self._is_local)

    def from_wandb(self) -> None:
        """W&B's client asks, from a thread of its own."""
        self._by_wandb = True  # should a signal have come first: the agent's, about the same
        self._ask("W&B asked for it", signal.SIGTERM)

    def from_record(self, why: str) -> None:
        """The record takes no more rows; said from a thread of its own. The run has failed."""
        if not self.reason:
            self.reason, self.exit_code = why, EXIT_FAILED

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._ask(WORDS[signal.Signals(number)], number)

    def _ask(self, reason: str, number: int) -> None:
        if not self.reason:  # an agent may repeat itself
            self.reason, self.exit_code = reason, 128 + number


def is_preemption(exit_code: int, is_local: bool = False) -> bool:
    """Whether a run that ends with this code loses its machine and may be started again.

    SIGTERM is a batch system's, or that of whoever drives the sweep: W&B's agent, for a run that hyperband or
    the page has stopped, or `ampcompare sweep` (`is_local`). What the agent hands on from a batch system only
    W&B's server can tell from its own; the tracker asks.
    """
    number = exit_code - 128
    if number != signal.SIGTERM:
        return number in TAKEN_AWAY
    return not (is_local or (os.environ.get("WANDB_SWEEP_ID") and is_of_agent()))


def signal_of(code: int) -> int:
    """The signal that ended a process, as `subprocess` (-n) or a shell (128 + n) tells it; 0 for none."""
    return -code if code < 0 else max(code - 128, 0)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that are for this process: under `nohup` the end of the terminal is not."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


class Taken(BaseException):
    """The machine is taken away before there is a run that could be stopped in order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def watching() -> Iterator[None]:
    """Until there is a StopRequest, what takes the machine away raises Taken: from the start of the program,
    while it imports and prepares. Handlers that somebody has set stay.
    """
    # Of several processes one that waits in PyTorch for the others would not hear it: the default ends it.
    watches = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    taken = [n for n in TAKEN_AWAY if watches and signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _take_away)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _take_away(number: int, frame: FrameType | None) -> None:
    raise Taken(number)


def leave(code: int) -> None:
    """Exit with the code: at once where the run was stopped; under W&B's agent it ends by its signal instead.

    The agent counts every exit code above 0 as a failure and gives up after three in its first minute. Death
    by a signal, which is how a program ends that knows nothing of W&B's stops, is no failure to it.
    """
    number = code - 128
    if number in list(WORDS):
        sys.stdout.flush()
        sys.stderr.flush()
        if os.environ.get("WANDB_SWEEP_ID"):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(code)  # W&B's exit hooks may wait for a server; the record has been ended
    sys.exit(code)
