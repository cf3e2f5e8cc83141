"""Stop requests by signal, how a process ends, and child processes that end with it.

A signal asks a program to stop: Ctrl-C, a batch system's SIGTERM, SIGUSR1 or SIGUSR2, or the SIGHUP of a
terminal that closes. The handler sets one flag, `StopRequest`, and notes the signal. Loops poll the flag, so
the step under way is completed and the record is written. Only a second Ctrl-C interrupts at once: batch
systems warn with one signal and end with another while the checkpoint is being written.

This module loads no torch: the entrypoint needs it before it knows that the input is valid.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Self

from ampcompare.errors import UserError, print_error

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
# A batch system announces with these that it preempts the job, which is to continue elsewhere: Slurm sends
# the signal of `--signal`, SIGUSR1 by convention, and SIGUSR2 with submitit. SIGTERM gives no reason.
PREEMPTION_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
SIGNAL_LABELS = {
    signal.SIGINT: "Ctrl-C",
    **{number: number.name for number in (signal.SIGTERM, *PREEMPTION_SIGNALS)},
    signal.SIGHUP: "the terminal has gone",
}
POLL_SECONDS = 0.1  # between checks of the flag in `StopRequest.wait`
CHILD_POLL_SECONDS = 0.2  # between checks for a signal in `run_to_completion`
PRINT_SECONDS = 5.0  # for the first process on a machine to print an error that all processes have

Handler = Callable[[int, FrameType | None], Any]


def set_handler(numbers: Iterable[int], handler: Handler | signal.Handlers) -> dict[int, Any]:
    """Set the handler of these signals.

    Returns:
        The previous handler of each signal, for `restore_handlers`.
    """
    return {number: signal.signal(number, handler) for number in numbers}


def restore_handlers(handlers: Mapping[int, Any]) -> None:
    """Set the handlers that `set_handler` has returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def preserved_handlers(*numbers: int) -> Iterator[None]:
    """Restore the handlers of these signals at the end, for a library that sets its own."""
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        restore_handlers(handlers)


class SignalListener:
    """Installs one handler for several signals, and restores the previous handlers.

    Args:
        handler: Called in the main thread with the number of the signal.
        only_unhandled: Whether a signal for which the program has a handler already is left to it.
    """

    def __init__(self, handler: Handler, *, only_unhandled: bool = False) -> None:
        self._handler = handler
        self._only_unhandled = only_unhandled
        self._previous: dict[int, Any] = {}

    def listen(self, numbers: Iterable[int]) -> None:
        """Handle these signals until `close`. Other threads than the main one cannot, and do nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers:
            previous = signal.getsignal(number)
            # `nohup` ignores SIGHUP so that the program survives its terminal.
            is_nohup = number == signal.SIGHUP and previous is signal.SIG_IGN
            is_taken = self._only_unhandled and previous is not signal.SIG_DFL
            if previous != self._handler and not is_nohup and not is_taken:
                self._previous |= set_handler([number], self._handler)

    def close(self) -> None:
        """Restore the previous handlers. A handler that the program has set since then stays."""
        if threading.current_thread() is not threading.main_thread():
            return
        ours = [number for number in self._previous if signal.getsignal(number) == self._handler]
        restore_handlers({number: self._previous[number] for number in ours})
        self._previous = {}


class StopRequest:
    """A flag that signals set while it is entered, or once `listen` was called.

    It may be entered several times, one after the other: leaving it restores the handlers of before, also
    those of `listen`.

    Attributes:
        reason: What asked to stop, such as `Ctrl-C`; "" before a request.
        exit_code: Exit code of the program after a request: 128 + signal, or 1 if the record failed.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.exit_code = EXIT_INTERRUPTED
        self._is_from_other_process = False
        self._listener = SignalListener(self._on_signal)
        self._entered = SignalListener(self._on_signal)

    def __enter__(self) -> Self:
        self._entered.listen(SIGNAL_LABELS)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.close()

    def listen(self, numbers: Iterable[int]) -> None:
        """Handle these signals until `close`."""
        self._listener.listen(numbers)

    def close(self) -> None:
        """Restore the handlers of before `listen`."""
        self._listener.close()

    def is_made(self) -> bool:
        """Return whether the program is asked to stop."""
        return bool(self.reason)

    def is_interruption(self) -> bool:
        """Return whether a signal or W&B asked to stop, rather than a record that has failed."""
        return self.is_made() and self.exit_code != EXIT_FAILED

    @property
    def signal(self) -> int:
        """The number of the signal that asked to stop; 0 if none did."""
        return self.exit_code - 128 if self.is_interruption() else 0

    def wait(self, seconds: float) -> None:
        """Sleep for so many seconds, or until the program is asked to stop."""
        # Python resumes `time.sleep` after a signal, and a `threading.Event` must not be set in a handler.
        deadline = time.monotonic() + seconds
        while not self.is_made() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))

    def request(self, reason: str, number: int) -> None:
        """Ask the program to stop, as if it had received this signal. The first reason stays."""
        # A signal to every process of a job also ends W&B's client, whose failure may be noticed first.
        if not self.is_interruption():
            self.reason = reason
            self.exit_code = 128 + number

    def request_by_wandb(self) -> None:
        """Ask on behalf of W&B (its page, hyperband), from a thread of W&B's client."""
        self.request("requested by W&B", signal.SIGTERM)

    def request_after_failure(self, reason: str) -> None:
        """Ask because the record takes no more rows, so that the run fails; from any thread."""
        if not self.reason:
            self.reason = reason
            self.exit_code = EXIT_FAILED

    def agree_on(self, exit_code: int) -> None:
        """Take over the exit code that all processes of a run agreed on.

        One process may have received the signal alone.
        """
        if not self.reason or exit_code != self.exit_code:
            # This process may receive the same Ctrl-C later: that is not a second one.
            self._is_from_other_process = True
            labels = {128 + number: label for number, label in SIGNAL_LABELS.items()}
            self.reason = labels.get(exit_code, "requested by another process")
            self.exit_code = exit_code

    def on_second_interrupt(self) -> None:
        """Act on Ctrl-C after a first request."""
        raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._is_from_other_process:
            self._is_from_other_process = False
        elif number == signal.SIGINT and self.is_interruption():
            self.on_second_interrupt()
        if number == signal.SIGHUP:
            _discard_closed_output()
        self.request(SIGNAL_LABELS[signal.Signals(number)], number)


def run_to_completion(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that completes its work and ends when a signal asks it to.

    Signals to this process alone are forwarded. Ctrl-C is not: the terminal sends it to both.

    Returns:
        Its exit code, or 128 + the signal that killed it or that asked this program to stop.
    """
    with StopRequest() as stop, subprocess.Popen(command, env=dict(environment)) as process:
        forwarded: int = signal.SIGINT
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(CHILD_POLL_SECONDS)
            if stop.is_made() and stop.signal != forwarded:
                forwarded = stop.signal
                process.send_signal(forwarded)
    if stop.is_made():
        return stop.exit_code
    return process.returncode if process.returncode >= 0 else 128 + signal_of(process.returncode)


def discard_output(*descriptors: int) -> None:
    """Discard what is written to these file descriptors from here on, by libraries and at exit as well."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    if null not in descriptors:  # it takes the number of a descriptor that was closed, as by `>&-`
        os.close(null)


def _discard_closed_output() -> None:
    """Discard what is printed to a terminal that has gone, which would be an error, in libraries as well."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            discard_output(stream)


def is_stopped(exit_code: int) -> bool:
    """Return whether a run that ends with this code was asked to stop."""
    return exit_code - 128 in SIGNAL_LABELS


def is_preemption(exit_code: int) -> bool:
    """Return whether a run that ends with this code loses its machine and is to be started again."""
    return exit_code - 128 in PREEMPTION_SIGNALS


def signal_of(code: int) -> int:
    """Return the signal that ended a process, given `subprocess` code -n or shell code 128 + n; else 0."""
    return -code if code < 0 else max(code - 128, 0)


def exit_process(code: int) -> NoReturn:
    """End a training with this exit code; under W&B's agent a stopped one by its signal, `exit_by_signal`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C from here on would print a traceback out of a library's exit hook. The record is complete.
        set_handler([signal.SIGINT], signal.SIG_DFL)
    if is_stopped(code):
        exit_by_signal(code - 128)
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        # PyTorch 2.14 leaves threads of a process group running after DDP. A thread that needs the
        # interpreter while it shuts down aborts the process, and torchrun then ends the other processes, of
        # which the first may still be sending its record. So the exit hooks run, and the shutdown does not.
        atexit._run_exitfuncs()
    else:
        sys.exit(code)
    _flush_output()
    # A stopped run runs no exit hooks: W&B's may wait for a server, and the record has been completed.
    os._exit(code)


def exit_by_signal(number: int) -> None:
    """Under W&B's agent, end this process by the signal; elsewhere, return.

    The agent counts every exit code above 0 as a failure and gives up after three of them in its first
    minute. Death by a signal is how a program ends that has no handler for W&B's stops, and is no failure.
    """
    _flush_output()
    if os.environ.get("WANDB_SWEEP_ID"):
        set_handler([number], signal.SIG_DFL)
        os.kill(os.getpid(), number)


def exit_with(error: UserError) -> NoReturn:
    """Show the error and exit with its code.

    torchrun starts several processes on a machine. All of them have the error, and the first one shows it.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("LOCAL_RANK", "0") == "0":
        print_error(error)
    else:
        # torchrun ends all processes when the first of them ends, perhaps before that one has printed. So
        # the others wait for torchrun's SIGTERM.
        with StopRequest() as stop:
            stop.wait(PRINT_SECONDS)
    raise SystemExit(error.exit_code)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a full disk, a closed pipe, a print that the signal interrupted
            stream.flush()
