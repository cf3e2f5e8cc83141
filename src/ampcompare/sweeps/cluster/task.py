"""What a job of the array does: one run, from its start to its end or until the machine is taken away.

submitit starts it in a process of its own and calls `checkpoint` when the batch system's warning comes; what
that returns is run when the job, queued again, starts the next time. The training is a process below this
one. Slurm sends its signals to all processes of a step, this one and the training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ampcompare.program.stopping import WORDS
from ampcompare.sweeps.cluster.array import PlannedRun
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.process import Guard, Run
from ampcompare.sweeps.worker import KILLED, SAME_SIGNAL_SECONDS, Launch

ATTEMPTS = 2  # of a run that a signal ends which is not for this job: somebody's, or for want of memory
LOOK_SECONDS = 0.1
HELD_SECONDS = 150.0  # for the lock of a job whose machine has died: file servers keep it for a minute or two
EXIT_HELD = 75  # EX_TEMPFAIL
WAIT_SECONDS = 120.0  # for the batch system to end what it has sent SIGTERM


@dataclass
class RunTask:
    """One run of the array. All of it travels to the job as a pickle.

    `patience` is how many seconds the training has to end in order.
    """

    launch: Launch
    run: PlannedRun
    patience: float
    _going: _Going | None = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        """Run; returns 0, or ends the job with the exit code of the run."""
        book, run_id = Book(self.launch.folder), self.run.run_id
        until = time.monotonic() + HELD_SECONDS
        while (code := self._try(book)) is None:
            if time.monotonic() > until:  # nothing is noted: the same command again submits it, if it has to
                print(f"run {run_id} goes on in another job: nothing is done here", flush=True)
                raise SystemExit(EXIT_HELD)
            time.sleep(1.0)
        if code:
            raise SystemExit(code if code > 0 else 128 - code)
        return 0

    def _try(self, book: Book) -> int | None:
        """The exit code of the run, None where another job has it."""
        with book.held(self.run.run_id) as is_ours:
            if not is_ours:
                return None
            if book.ended(self.run.run_id) == 0:
                print(f"run {self.run.run_id} is finished already", flush=True)
                return 0
            return self._see_through(book)

    def _see_through(self, book: Book) -> int:
        with contextlib.closing(Guard()) as guard:
            for _ in range(ATTEMPTS):
                code = self._attempt(book, guard)
                if code not in KILLED:
                    break
        book.note(self.run.run_id, exit_code=code)
        print(f"run {self.run.run_id} ended with exit code {code}", flush=True)
        return code

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """The warning: end the run in order. What is returned goes on with it when the job starts again."""
        from submitit.helpers import DelayedSubmission

        if self._going is not None:
            self._going.end(self._forwarded, self.patience)
        return DelayedSubmission(dataclasses.replace(self))

    @property
    def _forwarded(self) -> signal.Signals:
        """What tells the program that its machine is taken away."""
        warning = _warning()
        return warning if self.launch.here and warning in WORDS else signal.SIGTERM

    def _attempt(self, book: Book, guard: Guard) -> int:
        starts = book.of_run(self.run.run_id).get("starts", 0)
        book.note(self.run.run_id, starts=starts + 1)
        with _deaf(_warning() if self._forwarded != _warning() else None):
            run = self.launch.start(self.run, guard, again=starts > 0)
        if run is None:
            return 1
        going = self._going = _Going(run)
        log = self.launch.log(self.run.run_id)
        print(f"run {self.run.run_id} of {self.launch.name}, start {starts + 1}; output: {log}", flush=True)

        def told(number: int, frame: FrameType | None) -> None:
            going.ask(self._forwarded)

        before = signal.signal(signal.SIGTERM, told)
        try:
            code = going.wait()
            if code in KILLED:  # the signal of a scheduler may reach the program before it reaches us
                going.hear(SAME_SIGNAL_SECONDS)
            if going.asked and (code != 0 or not self.launch.here):
                _wait_to_be_ended()
                raise SystemExit(128 + signal.SIGTERM)
        finally:
            going.end(signal.SIGTERM, self.patience)
            signal.signal(signal.SIGTERM, before)
        return code


class _Going:
    """A run that goes on. No lock of ours: a signal's handler may wait for it while the program does."""

    def __init__(self, run: Run) -> None:
        self.run, self.asked = run, False
        self._code: int | None = None
        self._problem: BaseException | None = None
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        try:
            while (code := self.run.wait(60)) is None:
                pass
            self._code = code
        except BaseException as problem:  # whoever waits has to hear of it
            self.run.kill()
            self._problem = problem

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs. Raises what made waiting for it impossible."""
        if self._problem:
            raise self._problem
        return self._code

    def wait(self) -> int:
        """The exit code."""
        while (code := self.code) is None:
            time.sleep(LOOK_SECONDS)
        return code

    def hear(self, seconds: float) -> None:
        """Wait for somebody to ask for the end, so long at most."""
        until = time.monotonic() + seconds
        while not self.asked and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def ask(self, number: signal.Signals) -> None:
        """Have the program end; its helpers are left to it."""
        self.asked = True
        if self.code is None:
            self.run.tell(number)

    def end(self, number: signal.Signals, patience: float) -> None:
        """Have it end, and wait until it has."""
        if self.code is None:
            self.ask(number)
        until = time.monotonic() + patience
        while self.code is None:
            if time.monotonic() > until:
                self.run.kill()
            time.sleep(LOOK_SECONDS)


def _warning() -> signal.Signals:
    """The signal by which the batch system warns: submitit asks for it."""
    from submitit.core.job_environment import JobEnvironment

    return signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]


@contextlib.contextmanager
def _deaf(number: signal.Signals | None) -> Any:
    """What is started within ignores a signal that would end it at once, until it sets a handler."""
    before = None if number is None else signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        if number is not None:
            signal.signal(number, before)


def _wait_to_be_ended() -> None:
    """The run was told to end, not by us: whoever said so ends this job, and queues it again or does not."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


@dataclass
class ReportTask:
    """The report, when the last run has ended."""

    sweep: Sweep
    folder: Path

    def __call__(self) -> int:
        """Make it; returns its exit code."""
        from rich.console import Console

        from ampcompare.sweeps.answer import report

        return report(
            Console(highlight=False, width=int(os.environ.get("COLUMNS", "110"))), self.sweep, self.folder
        )

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """The warning: from the beginning, when the job starts again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
