"""What a job of the array does: one run, from its start to its end or until the machine is taken away.

submitit starts it in a process of its own and calls `checkpoint` when the batch system's warning comes; what
that returns is run when the job, queued again, starts the next time. The training is a process below this
one. Slurm sends its signals to all processes of a step, this one and the training.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.sweeps.cluster.array import Array, held
from ampcompare.sweeps.process import Guard, Launch, ended, note_end
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.table import Row
from ampcompare.sweeps.worker import Stop, see_through

HELD_SECONDS = 150.0  # for the lock of a job whose machine has died: file servers keep it for a minute or two
EXIT_HELD = 75  # EX_TEMPFAIL
LOOK_SECONDS = 0.1
WAIT_SECONDS = 120.0  # for the batch system to end what it has sent SIGTERM
# Somebody else's program knows nothing of a warning that would end it at once, until it sets a handler.
DEAF = ("sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh")


@dataclass
class RunTask:
    """One run of the array. All of it travels to the job as a pickle.

    `patience` is how many seconds the training has to end in order.
    """

    launch: Launch
    row: Row
    patience: float
    _stop: Stop | None = field(default=None, init=False, repr=False)
    _is_going_on: bool = field(default=False, init=False, repr=False)

    def __call__(self) -> int:
        """Run; returns 0, or ends the job with the exit code of the run."""
        array, run_id = Array(self.launch.folder), self.row.run_id
        with held(array.lock(run_id), HELD_SECONDS) as is_ours:
            if not is_ours:  # nothing is noted: the same command again submits it, if it has to
                print(f"run {run_id} goes on in another job: nothing is done here", flush=True)
                raise SystemExit(EXIT_HELD)
            if ended(array.folder, run_id) == "finished":
                print(f"run {run_id} is finished already", flush=True)
                return 0
            state, code = self._attempt()
            if state == "lost":  # by a signal that is not for this job: somebody's, or for want of memory
                state, code = self._attempt()
            if state == "interrupted":
                # Not by us: whoever said so ends this job, and queues it again or does not.
                time.sleep(WAIT_SECONDS)
                raise SystemExit(128 + signal.SIGTERM)
            ended_with = 0 if state == "finished" else code or 1
            note_end(array.folder, run_id, "failed" if ended_with else "finished")
        print(f"run {run_id} ended with exit code {ended_with}", flush=True)
        if ended_with:
            raise SystemExit(ended_with if ended_with > 0 else 128 - ended_with)
        return 0

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """The warning: end the run in order. What is returned goes on with it when the job starts again."""
        from submitit.helpers import DelayedSubmission

        # That says to our training that its machine is taken away.
        self._end(signal.SIGUSR2 if self.launch.here else signal.SIGTERM)
        return DelayedSubmission(RunTask(self.launch, self.row, self.patience))

    def _attempt(self) -> tuple[str, int | None]:
        launch = self.launch if self.launch.here else dataclasses.replace(self.launch, front=DEAF)
        log = launch.log(self.row.run_id)
        print(f"run {self.row.run_id} of {launch.sweep.name}; output: {log}", flush=True)
        stop = self._stop = Stop(seconds=self.patience)
        row = dataclasses.replace(self.row, starts=2 if log.exists() else 1)
        how: list[tuple[str, int | None]] = []

        def see() -> None:
            try:
                with contextlib.closing(Guard()) as guard:
                    how.append(see_through(row, launch, guard, stop))
            finally:
                self._is_going_on = False

        # A thread and a flag, as the handler of a signal waits for the run: no lock may be held by what it
        # interrupts.
        self._is_going_on = True
        before = signal.signal(signal.SIGTERM, lambda number, frame: stop.asked.set())
        threading.Thread(target=see, daemon=True).start()
        try:
            self._wait()
        finally:
            self._end(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)
        if not how:
            raise RuntimeError("a run could not be waited for; its traceback is above")
        return how[0]

    def _end(self, number: signal.Signals) -> None:
        """Have the run end, if there is one, and wait until it has."""
        if self._stop and not self._stop.asked.is_set():
            self._stop.number = number
            self._stop.asked.set()
        self._wait()

    def _wait(self) -> None:
        while self._is_going_on:
            time.sleep(LOOK_SECONDS)


def make_report(sweep: Sweep, folder: Path) -> int:
    """The job behind the last run. submitit starts it from its beginning where its machine is taken away."""
    from rich.console import Console

    from ampcompare.sweeps.answer import report

    console = Console(highlight=False, width=int(os.environ.get("COLUMNS", "110")))
    return report(console, sweep, folder)
