"""The job of a Slurm array: one run or a series of runs, to their end or to the preemption of the job.

submitit starts the job in its own process and calls `checkpoint` when Slurm sends its warning. When the
requeued job starts again, it runs what `checkpoint` returned: the same start of the run goes on, and the runs
behind it follow. The training is a child process. Slurm sends its signals to all processes of a step: to this
process and to the training.
"""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.runtime.signals import StopRequest
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import POLL_SECONDS, ProcessGuard
from ampcompare.sweeps.run_end import SCHEDULER, RunEnd, end_file_of, read_end, state_of_end
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.run_process import RunProcess, train_in_series
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.sweep import Sweep

REQUEUE_SECONDS = 120.0  # within which Slurm ends a job after its SIGTERM
# The warning would end a program without a handler at once, so other programs ignore it until they set one.
IGNORE_WARNINGS = ("sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh")


@dataclass
class SlurmTask:
    """The runs of a job, sent to the job as a pickle.

    Attributes:
        launcher: Starts the runs.
        runs: The runs in their order; more than one with several seeds in a process.
        patience: Seconds that the training has to save a checkpoint and end.
    """

    launcher: RunLauncher
    runs: tuple[SweepRun, ...]
    patience: float
    _stop: StopRequest = field(default_factory=StopRequest, init=False, repr=False)
    _is_running: bool = field(default=False, init=False, repr=False)
    _ends: dict[int, RunEnd] | None = field(default=None, init=False, repr=False)

    def __call__(self) -> None:
        """Train the runs that are left. End the job with the exit code of the first that did not finish."""
        known = {run.index: read_end(end_file_of(self.launcher.folder, run)) for run in self.runs}
        left = [run for run in self.runs if self._is_left(run, known[run.index])]
        if not left:
            return  # the warning came just after the last run ended, so submitit requeued the job
        is_requeued = any(known.values()) or any(self._log(run).exists() for run in self.runs)
        ends = self._run_to_end(left, is_requeued=is_requeued)
        if self._stop.is_made() and any(self._is_left(run, ends.get(run.index)) for run in left):
            # Slurm has sent SIGTERM: it ends this job now, and may requeue it.
            time.sleep(REQUEUE_SECONDS)
            raise SystemExit(128 + signal.SIGTERM)
        for run in left:
            print(f"run {run.run_id} ended with exit code {ends[run.index].exit_code}", flush=True)
        failed = [end for end in ends.values() if end.exit_code != 0]
        if failed:
            code = failed[0].exit_code or 1
            raise SystemExit(code if code > 0 else 128 - code)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """End the run with a checkpoint after Slurm's warning; return the submission that continues it."""
        from submitit.helpers import DelayedSubmission

        # For our own training, SIGUSR2 means that the job is preempted.
        number = signal.SIGUSR2 if self.launcher.trains_here else signal.SIGTERM
        self._stop.request("Slurm's warning", number)
        self._wait()
        return DelayedSubmission(SlurmTask(self.launcher, self.runs, self.patience))

    def _log(self, run: SweepRun) -> Path:
        return self.launcher.log_file(run.run_id)

    def _is_left(self, run: SweepRun, end: RunEnd | None) -> bool:
        """Return whether a run has to be trained when this job starts or is requeued.

        Args:
            end: The facts about its end; None if it has not begun.
        """
        if end is None or end.exit_code is None:
            return True
        records = RunRecords(self.launcher.folder)
        ours = self.launcher.trains_here
        state, by_signal = state_of_end(run, end, lambda: records.record(run), trains_here=ours)
        return state is RunState.PREEMPTED and not by_signal

    def _run_to_end(self, runs: Sequence[SweepRun], *, is_requeued: bool) -> dict[int, RunEnd]:
        """Train until the runs have ended or Slurm ends the job; return the facts about their ends."""
        launcher = self.launcher
        if not launcher.trains_here:
            launcher = dataclasses.replace(launcher, prefix=IGNORE_WARNINGS)
        for run in runs:
            print(f"run {run.run_id} of {launcher.sweep.name}; output: {self._log(run)}", flush=True)

        def attend(process: RunProcess) -> None:
            if self._stop.is_made():
                process.stop(self._stop.signal, self.patience, SCHEDULER)

        def see() -> None:
            try:
                with closing(ProcessGuard()) as guard:
                    self._ends = train_in_series(
                        lambda left: launcher.start(left, guard, is_requeued=is_requeued),
                        runs,
                        attend,
                        self._stop.is_made,
                    )
            finally:
                self._is_running = False

        # A thread sees to the runs and the main thread only sleeps: a signal handler runs in the main thread
        # and waits for the run, so the code that it interrupts must not hold a lock of `subprocess`.
        self._is_running = True
        self._stop.listen([signal.SIGTERM])  # submitit handles the others
        try:
            threading.Thread(target=see, daemon=True).start()
            self._wait()
        finally:
            self._stop.close()
        if self._ends is None:
            raise RuntimeError("waiting for a run failed; see the traceback above")
        return self._ends

    def _wait(self) -> None:
        while self._is_running:
            time.sleep(POLL_SECONDS)


def make_report(sweep: Sweep, folder: Path) -> int:
    """Make the report, as the job behind the last run."""
    from rich.console import Console

    from ampcompare.sweeps.sweep_report import report

    console = Console(highlight=False, width=int(os.environ.get("COLUMNS", "110")))
    return report(console, sweep, folder)
