"""A run that is asked to stop: by Ctrl-C, by a batch system (SIGTERM, SIGUSR1, SIGUSR2), by the end of its
terminal, by W&B (its page, hyperband), or because its record takes no more rows.

The first request lets the step under way finish and the record be completed. Only a second Ctrl-C ends at
once: batch systems warn with one signal and end with another, while the checkpoint is being written. Free of
torch: the entrypoint needs this before it knows that the input is good.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Self

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
# By these a batch system says that it takes the machine away and that the run is to go on elsewhere: Slurm by
# what `--signal` names, SIGUSR1 by custom, SIGUSR2 with submitit. SIGTERM says nothing of why.
TAKEN_AWAY = (signal.SIGUSR1, signal.SIGUSR2)
WORDS = {
    signal.SIGINT: "Ctrl-C",
    **{number: number.name for number in (signal.SIGTERM, *TAKEN_AWAY)},
    signal.SIGHUP: "the terminal has gone",
}


class StopRequest:
    """While entered, signals become a request that the training loop looks at after each step."""

    def __init__(self) -> None:
        self.reason = ""
        self.exit_code = EXIT_INTERRUPTED
        self._by_another = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self, numbers: Iterable[signal.Signals]) -> None:
        """Take these signals from here on, until it is closed."""
        if threading.current_thread() is threading.main_thread():  # nowhere else may handlers be set
            for number in heard(numbers):
                before = signal.signal(number, self._on_signal)
                self._before.setdefault(number, before)

    def __enter__(self) -> Self:
        self.listen(WORDS)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the signals to whom they were before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def is_made(self) -> bool:
        """Whether anyone has asked."""
        return bool(self.reason)

    def is_interruption(self) -> bool:
        """Whether somebody has; else it is the record that has failed."""
        return self.is_made() and self.exit_code != EXIT_FAILED

    def from_wandb(self) -> None:
        """W&B's client asks, from a thread of its own."""
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
        if number == signal.SIGINT and self.reason:
            if not self._by_another:
                raise KeyboardInterrupt
            self._by_another = False
        if number == signal.SIGHUP:
            _forget_terminal()
        self._ask(WORDS[signal.Signals(number)], number)

    def _ask(self, reason: str, number: int) -> None:
        # A signal to every process of a job ends W&B's client as well, which may be known here before it.
        if not self.is_interruption():
            self.reason, self.exit_code = reason, 128 + number


def _forget_terminal() -> None:
    """What is printed to a terminal that has gone is an error from here on, in libraries as well."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def is_stopped(exit_code: int) -> bool:
    """Whether a run that ends with this code was asked to stop."""
    return exit_code - 128 in WORDS


def is_preemption(exit_code: int) -> bool:
    """Whether a run that ends with this code loses its machine, and is to be started again."""
    return exit_code - 128 in TAKEN_AWAY


def signal_of(code: int) -> int:
    """The signal that ended a process, as `subprocess` (-n) or a shell (128 + n) tells it; 0 for none."""
    return -code if code < 0 else max(code - 128, 0)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that are for this process: under `nohup` the end of the terminal is not."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


def leave(code: int) -> NoReturn:
    """Exit with the code: at once where the run was stopped; under W&B's agent it ends by its signal instead.
    One of several processes does without Python's own end, but for what is to be done at exit.

    The agent counts every exit code above 0 as a failure and gives up after three in its first minute. Death
    by a signal, which is how a program ends that knows nothing of W&B's stops, is no failure to it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done: no traceback out of a library's own end
    if is_stopped(code):
        die_of(code - 128)
        os._exit(code)  # W&B's exit hooks may wait for a server; the record has been ended
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a full disk, a closed pipe, a print that a signal came into
            stream.flush()
