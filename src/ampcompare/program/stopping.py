"""A run that is asked to stop: by Ctrl-C, by SIGTERM (a sweep's agent, a batch system), by the end of its
terminal, by W&B (its page, hyperband), or because its record takes no more rows.

The first request lets the step under way finish and the record be completed; a second signal interrupts at
once. This module must stay free of torch: the entrypoint needs it before it knows that the input is good.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
WORDS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal has gone"}


class StopRequest:
    """While entered, signals become a request that the training loop looks at after each step."""

    def __init__(self) -> None:
        self.reason = ""
        self.exit_code = EXIT_INTERRUPTED
        self._by_wandb = False
        self._in_sweep = bool(os.environ.get("WANDB_SWEEP_ID"))
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # nowhere else may handlers be set
            self._before = {number: signal.signal(number, self._on_signal) for number in heard(WORDS)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_made(self) -> bool:
        """Whether anyone has asked."""
        return bool(self.reason)

    def is_preemption(self) -> bool:
        """Whether a batch system takes the machine. SIGTERM from a sweep's agent is none."""
        return self.exit_code == 128 + signal.SIGTERM and not self._by_wandb and not self._in_sweep

    def from_wandb(self) -> None:
        """W&B's client asks, from a thread of its own."""
        self._by_wandb = not self.reason
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


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that are for this process: under `nohup` the end of the terminal is not."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


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
