"""`--cluster local`: the same tasks on this machine, by submitit's local executor, to try an array out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.program.place import as_typed
from ampcompare.program.stopping import heard
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import PlannedRun
from ampcompare.sweeps.cluster.task import AT_ONCE, OnThisMachine
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.devices import visible_gpus
from ampcompare.sweeps.process import STOP_SECONDS
from ampcompare.sweeps.run import EXIT_FAILED_RUNS, STOP_SIGNALS, stopped_by_signals

MOST_LOCAL = 8  # runs: submitit's local executor starts all of them at once
LOCAL_MINUTES = 7 * 24 * 60
LOOK_SECONDS = 0.2
EARLIER_SECONDS = STOP_SECONDS + 15  # for the runs of a command that was killed to end


class Local:
    """All runs at once on this machine; this command waits for them."""

    def __init__(self, array: WholeArray, executor: Any) -> None:
        self.array, self.executor = array, executor
        self.file = array.book.place / f"stop-{os.getpid()}"
        self.unheard = [number for number in heard(STOP_SIGNALS) if number != signal.SIGTERM]
        self.stop, self.kill = threading.Event(), threading.Event()

    def run(self) -> int:
        array, book = self.array, self.array.book
        runs = array.runs()
        with stopped_by_signals(self.stop, self.kill, array.say) as received:
            self._wait_for_earlier(runs)
            left = [run for run in runs if book.ended(run.run_id) is None]
            failed = [run for run in runs if book.ended(run.run_id)]
            said = array.headline(len(runs) - len(left) - len(failed), len(failed))
            if len(left) > MOST_LOCAL:
                why = f"starts all runs at once, {MOST_LOCAL} at most, and {len(left)} are left"
                raise UserError(
                    f"--cluster local {why}; leave --cluster out, which runs them one after the other"
                )
            shared = (
                ", all at once on this machine, so their times are not comparable" if len(left) > 1 else ""
            )
            if not self.stop.is_set():
                array.say(f"{said}; {plural(len(left), 'run')} started{shared}, in {array.folder}")
                self._see_through(left)
        if received:
            again = as_typed(
                "ampcompare", "sweep", array.path, *array.words, *array.options, "--cluster", "local"
            )
            array.say(f"stopped: finished runs stay finished; go on with: {again}")
            return 128 + received[0]
        ended = {run.run_id: book.ended(run.run_id) for run in left}
        if undone := [run for run, code in ended.items() if code is None]:
            array.say(f"{plural(len(undone), 'run')} did not end ({', '.join(undone[:5])}); see {book.jobs}")
            return EXIT_FAILED_RUNS
        return array.finish([*failed, *(run for run in left if ended[run.run_id])])

    def _wait_for_earlier(self, runs: Sequence[PlannedRun]) -> None:
        """The runs of a command that was killed end by themselves, in a moment. Raises UserError: they do
        not, and are on another machine.
        """
        until = time.monotonic() + EARLIER_SECONDS
        waits = False
        while not self.stop.is_set() and (going := [run for run in runs if self._goes_on(run)]):
            if not waits:
                self.array.say(f"waiting for {plural(len(going), 'run')} of an earlier command to end")
            waits = True
            if time.monotonic() > until:
                what = f"{plural(len(going), 'run')} started earlier: still going on"
                raise UserError(f"--cluster local: {what}; start it again when they have ended")
            time.sleep(LOOK_SECONDS)

    def _goes_on(self, run: PlannedRun) -> bool:
        with self.array.book.held(run.run_id) as is_ours:
            return not is_ours

    def _see_through(self, left: Sequence[PlannedRun]) -> None:
        gpus = [] if self.array.on_cpu else visible_gpus()
        self.executor.update_parameters(timeout_min=LOCAL_MINUTES)
        self.file.unlink(missing_ok=True)  # a killed command's whose number was ours
        jobs = []
        try:
            for place, run in enumerate(left):
                if self.stop.is_set():
                    break
                device = gpus[place % len(gpus)] if gpus else os.environ.get("CUDA_VISIBLE_DEVICES")
                knows = OnThisMachine(os.getpid(), self.file, self.unheard, device)
                task = dataclasses.replace(self.array.task(run, 60.0), local=knows)
                with _held(self.unheard):
                    jobs.append(self.executor.submit(task))
            while any(job._process.poll() is None for job in jobs):
                if self.stop.is_set():
                    self._tell(jobs)
                time.sleep(LOOK_SECONDS)
        finally:
            for job in jobs:
                job._process.terminate()
            self.file.unlink(missing_ok=True)

    def _tell(self, jobs: Sequence[Any]) -> None:
        """Have the runs end. By a file: a signal is lost on a job that is just starting."""
        try:
            self.file.write_text(AT_ONCE if self.kill.is_set() else "in order")
        except OSError:  # a full disk
            for job in jobs:
                job._process.terminate()


@contextlib.contextmanager
def _held(numbers: Sequence[int]) -> Iterator[None]:
    """What is started within does not hear these signals, until it says so itself: those of a terminal come
    to every process there. Here they wait for the end of this.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
