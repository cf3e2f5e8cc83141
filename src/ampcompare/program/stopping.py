"""A run that is asked to stop: by Ctrl-C, by a batch system (SIGTERM, SIGUSR1, SIGUSR2), by a sweep's agent,
by the end of its terminal, by W&B (its page, hyperband), or because its record takes no more rows.

The first request lets the step under way finish and the record be completed; a second Ctrl-C interrupts at
once. This module must stay free of torch: the entrypoint needs it before it knows that the input is good.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
        self._by_wandb = self._by_another = False
        self._end_late: tuple[float, Callable[[], None]] | None = None
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

    @contextmanager
    def hurried(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Within there is no step to look at the request: what is not over so long after a signal is ended by
        `end`, in the main thread, whatever that waits for.
        """
        if not self._before:  # another thread's
            yield
            return
        self._end_late = seconds, end
        before = signal.signal(signal.SIGALRM, lambda number, frame: end())
        try:
            yield
        finally:
            self._end_late = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def is_made(self) -> bool:
        """Whether anyone has asked."""
        return bool(self.reason)

    def is_interruption(self) -> bool:
        """Whether somebody has; else it is the record that has failed."""
        return self.is_made() and self.exit_code != EXIT_FAILED

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

    def adopt(self, exit_code: int) -> None:
        """Several processes of one run end with the code of one of them, which may have heard it alone."""
        if not self.reason or exit_code != self.exit_code:
            # Its own signal may still be on its way: a first Ctrl-C is no second one.
            self._by_another = True
            words = {128 + number: word for number, word in WORDS.items()}
            self.reason, self.exit_code = words.get(exit_code, "another process was asked to"), exit_code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            if not self._by_another:
                raise KeyboardInterrupt
            self._by_another = False
        self._ask(WORDS[signal.Signals(number)], number)

    def _ask(self, reason: str, number: int) -> None:
        if not self.reason:  # an agent may repeat itself
            self.reason, self.exit_code = reason, 128 + number
            if self._end_late:
                signal.setitimer(signal.ITIMER_REAL, self._end_late[0])


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


_tell: list[Callable[[int], None]] = []  # as `watch` was told


def watch(tell: Callable[[int], None]) -> list[signal.Signals]:
    """From here on, until there is a StopRequest, what takes the machine away ends this program at once,
    while it imports and prepares. `tell` is called before, and may become another program that tells W&B.
    Handlers that somebody has set stay; returns the signals that are watched now.
    """
    _tell[:] = [tell]
    # Of several processes one that waits in PyTorch for the others would not hear it: the default ends it.
    alone = threading.current_thread() is threading.main_thread() and os.environ.get("WORLD_SIZE", "1") == "1"
    taken = [n for n in TAKEN_AWAY if alone and signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _take_away)
    return taken


@contextmanager
def watching(tell: Callable[[int], None]) -> Iterator[None]:
    """`watch` while entered. Where the program has begun to before, it goes on."""
    taken = watch(tell)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _take_away(number: int, frame: FrameType | None) -> None:
    """No exception: whatever is under way, an import or somebody's code, might take it for its own."""
    _ignore()  # a second one (a warning, then the end) changes nothing, for what `tell` becomes neither
    _flush()
    with suppress(OSError):
        os.write(1, f"{signal.Signals(number).name} before the first step: nothing is lost\n".encode())
    for tell in _tell:
        with suppress(OSError):
            tell(number)
    leave(128 + number)


def _ignore() -> None:
    for number in (*TAKEN_AWAY, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a full disk, a closed pipe, a print that a signal came into
            stream.flush()


def leave(code: int) -> None:
    """Exit with the code: at once where the run was stopped; under W&B's agent it ends by its signal instead.
    One of several processes does without Python's own end, but for what is to be done at exit.

    The agent counts every exit code above 0 as a failure and gives up after three in its first minute. Death
    by a signal, which is how a program ends that knows nothing of W&B's stops, is no failure to it.
    """
    number = code - 128
    if number in list(WORDS):
        die_of(number)
        os._exit(code)  # W&B's exit hooks may wait for a server; the record has been ended
    atexit.register(_ignore)  # what comes while Python ends: all is done
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # PyTorch 2.14 leaves the threads of a group running behind DDP; one that needs the interpreter while
        # it ends aborts the process, and torchrun then ends the others: process 0 may still send its record.
        atexit._run_exitfuncs()
        _flush()
        os._exit(code)
    sys.exit(code)


def die_of(number: int) -> None:
    """Under W&B's agent end at once, by the signal; elsewhere nothing."""
    _flush()
    if os.environ.get("WANDB_SWEEP_ID"):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
