"""The job of a Slurm array: one run, from its start to its end or to the preemption of the job.

submitit starts the job in its own process and calls `checkpoint` when Slurm sends its warning. When the
requeued job starts again, it runs what `checkpoint` returned: the same start of the run goes on. The training
is a child process. Slurm sends its signals to all processes of a step: to this process and to the training.
"""

import dataclasses
import os
import signal
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.runtime.signals import StopRequest
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_end import SCHEDULER, EndRules, RunEnd, end_file, read_end, state_of_end
from ampcompare.sweeps.run_process import POLL_SECONDS, RunLauncher
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.sweep import Sweep

REQUEUE_SECONDS = 120.0  # within which Slurm ends a job after its SIGTERM
# The warning would end a program without a handler at once, so other programs ignore it until they set one.
IGNORE_WARNINGS = ("sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh")


@dataclass
class SlurmTask:
    """One run of an array, sent to the job as a pickle.

    Attributes:
        launcher: Starts the run.
        patience: Seconds that the training has to save a checkpoint and end.
        code: Dates of the user's files that changed since the sweep began, for the run's record.
    """

    launcher: RunLauncher
    run: SweepRun
    patience: float
    code: dict[str, str]
    _stop: StopRequest = field(default_factory=StopRequest, init=False, repr=False)
    _is_running: bool = field(default=False, init=False, repr=False)
    _end: RunEnd | None = field(default=None, init=False, repr=False)

    def __call__(self) -> None:
        """Run, and end the job with the run's exit code."""
        facts = end_file(self.launcher.folder, self.run.run_id, self.run.last_start)
        known = read_end(facts)
        if known is not None and known.is_seen and not self._goes_on(known):
            return  # the warning came just after the run ended, so submitit requeued the job
        end = self._run_to_end(is_requeued=known is not None or self._log.exists())
        if self._stop.is_made() and self._goes_on(end):
            # Slurm has sent SIGTERM: it ends this job now, and may requeue it.
            time.sleep(REQUEUE_SECONDS)
            raise SystemExit(128 + signal.SIGTERM)
        print(f"run {self.run.run_id} ended with exit code {end.exit_code}", flush=True)
        if end.exit_code != 0:
            code = end.exit_code or 1
            raise SystemExit(code if code > 0 else 128 - code)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """End the run with a checkpoint after Slurm's warning; return the submission that continues it."""
        from submitit.helpers import DelayedSubmission

        # For our own training, SIGUSR2 means that the job is preempted.
        number = signal.SIGUSR2 if self.launcher.trains_here else signal.SIGTERM
        self._stop.request("Slurm's warning", number)
        self._wait()
        return DelayedSubmission(SlurmTask(self.launcher, self.run, self.patience, self.code))

    @property
    def _log(self) -> Path:
        return self.launcher.log_file(self.run.run_id)

    def _goes_on(self, end: RunEnd) -> bool:
        """Return whether this start of the run goes on when Slurm requeues the job."""
        records = RunRecords(self.launcher.folder)
        rules = EndRules(self.launcher.trains_here)
        state, by_signal = state_of_end(self.run, end, lambda: records.end(self.run.run_id), rules)
        return state is RunState.PREEMPTED and not by_signal

    def _run_to_end(self, *, is_requeued: bool) -> RunEnd:
        """Run until the run ends or Slurm ends it."""
        launcher = self.launcher
        if not launcher.trains_here:
            launcher = dataclasses.replace(launcher, prefix=IGNORE_WARNINGS)
        print(f"run {self.run.run_id} of {launcher.sweep.name}; output: {self._log}", flush=True)

        def see() -> None:
            try:
                with closing(ProcessGuard()) as guard:
                    self._end = self._run_once(launcher, guard, is_requeued=is_requeued)
            finally:
                self._is_running = False

        # A thread sees to the run and the main thread only sleeps: a signal handler runs in the main thread
        # and waits for the run, so the code that it interrupts must not hold a lock of `subprocess`.
        self._is_running = True
        self._stop.listen([signal.SIGTERM])  # submitit handles the others
        try:
            threading.Thread(target=see, daemon=True).start()
            self._wait()
        finally:
            self._stop.close()
        if self._end is None:
            raise RuntimeError("waiting for a run failed; see the traceback above")
        return self._end

    def _run_once(self, launcher: RunLauncher, guard: ProcessGuard, *, is_requeued: bool) -> RunEnd:
        process = launcher.start(self.run, guard, code=self.code, is_requeued=is_requeued)
        if process is None:
            return RunEnd(is_started=False)
        while (end := process.poll()) is None:
            if self._stop.is_made():
                process.stop(self._stop.signal, self.patience, SCHEDULER)
            time.sleep(POLL_SECONDS)
        return end

    def _wait(self) -> None:
        while self._is_running:
            time.sleep(POLL_SECONDS)


def make_report(sweep: Sweep, folder: Path) -> int:
    """Make the report, as the job behind the last run."""
    from rich.console import Console

    from ampcompare.sweeps.sweep_report import report

    console = Console(highlight=False, width=int(os.environ.get("COLUMNS", "110")))
    return report(console, sweep, folder)
