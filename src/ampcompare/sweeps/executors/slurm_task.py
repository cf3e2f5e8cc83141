"""The job of a Slurm array: one run, from its start to its end or to the preemption of the job.

submitit starts the job in its own process and calls `checkpoint` when Slurm sends its warning. When the
requeued job starts again, it runs what `checkpoint` returned. The training is a child process. Slurm sends
its signals to all processes of a step: to this process and to the training.
"""

import dataclasses
import json
import os
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import replacing
from ampcompare.runtime.signals import StopRequest
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_process import (
    POLL_SECONDS,
    SAME_SIGNAL_SECONDS,
    SIGNAL_CODES,
    RunLauncher,
    end_state,
)
from ampcompare.sweeps.sweep import Sweep

REQUEUE_SECONDS = 120.0  # within which Slurm ends a job after its SIGTERM
# The warning would end a program without a handler at once, so other programs ignore it until they set one.
IGNORE_WARNINGS = ("sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh")


@dataclass
class SlurmTask:
    """One run of an array, sent to the job as a pickle.

    Attributes:
        launcher: Starts the run.
        run: The run.
        patience: Seconds that the training has to save a checkpoint and end.
        code: Dates of the user's files that changed since the sweep began, for the run's record.
    """

    launcher: RunLauncher
    run: SweepRun
    patience: float
    code: dict[str, str]
    _stop: StopRequest = field(default_factory=StopRequest, init=False, repr=False)
    _is_running: bool = field(default=False, init=False, repr=False)
    _event: RunEvent | None = field(default=None, init=False, repr=False)

    def __call__(self) -> None:
        """Run, note how the run ended, and end the job with the run's exit code."""
        if read_end(self.launcher.folder, self.run):
            return  # the warning came just after the run finished, so submitit requeued the job
        event = self._run_to_end()
        if event.state is RunState.PREEMPTED:
            # Slurm has sent SIGTERM: it ends this job now, and may requeue it.
            time.sleep(REQUEUE_SECONDS)
            raise SystemExit(128 + signal.SIGTERM)
        note_end(self.launcher.folder, self.run.run_id, event)
        print(f"run {self.run.run_id} {event.state}, exit code {event.exit_code}", flush=True)
        if event.state is not RunState.FINISHED:
            code = event.exit_code or 1
            raise SystemExit(code if code > 0 else 128 - code)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """End the run with a checkpoint after Slurm's warning; return the submission that continues it."""
        from submitit.helpers import DelayedSubmission

        # For our own training, SIGUSR2 means that the job is preempted.
        number = signal.SIGUSR2 if self.launcher.trains_here else signal.SIGTERM
        self._stop.request("Slurm's warning", number)
        self._wait()
        if self._event and self._event.state is RunState.FINISHED:
            note_end(self.launcher.folder, self.run.run_id, self._event)
        run = dataclasses.replace(self.run, starts=self.run.starts + 1)
        return DelayedSubmission(SlurmTask(self.launcher, run, self.patience, self.code))

    def _run_to_end(self) -> RunEvent:
        """Run, again after a signal that is not for this job, until the run ends or Slurm ends it."""
        launcher = self.launcher
        if not launcher.trains_here:
            launcher = dataclasses.replace(launcher, prefix=IGNORE_WARNINGS)
        log = launcher.log_file(self.run.run_id)
        print(
            f"run {self.run.run_id} of {launcher.sweep.name}; output: {launcher.log_file(self.run.run_id)}",
            flush=True,
        )
        run = self.run
        if log.exists():  # Slurm has started this job before
            run = dataclasses.replace(run, starts=max(1, run.starts))

        def see() -> None:
            nonlocal run
            try:
                with closing(ProcessGuard()) as guard:
                    while True:
                        event = self._run_once(launcher, run, guard)
                        if event.state is not RunState.PREEMPTED or self._stop.is_made():
                            break
                        ends = run.signal_ends + event.by_signal
                        run = dataclasses.replace(run, starts=run.starts + 1, signal_ends=ends)
                self._event = event
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
        if self._event is None:
            raise RuntimeError("waiting for a run failed; see the traceback above")
        return self._event

    def _run_once(self, launcher: RunLauncher, run: SweepRun, guard: ProcessGuard) -> RunEvent:
        process = launcher.start(run, guard, code=self.code)
        if process is None:
            return RunEvent(run.index, RunState.FAILED)
        while (exit_code := process.poll()) is None:
            if self._stop.is_made():
                process.stop(self._stop.signal, self.patience)
            time.sleep(POLL_SECONDS)
        was_asked = process.was_interrupted
        if exit_code in SIGNAL_CODES and not was_asked:
            was_asked = self._is_stopped_within(SAME_SIGNAL_SECONDS)
        state, by_signal = end_state(launcher, run, exit_code, was_asked=was_asked)
        return RunEvent(run.index, state, exit_code, by_signal)

    def _is_stopped_within(self, seconds: float) -> bool:
        """Return whether Slurm ends this job: its signal may reach the run before it reaches this process."""
        self._stop.wait(seconds)
        return self._stop.is_made()

    def _wait(self) -> None:
        while self._is_running:
            time.sleep(POLL_SECONDS)


def note_end(folder: Path, run_id: str, event: RunEvent) -> None:
    """Write down how a run ended, for the driver."""
    content = {"state": event.state, "exit_code": event.exit_code, "by_signal": event.by_signal}
    with replacing(_end_file(folder, run_id)) as file:
        file.write(json.dumps(content).encode())


def read_end(folder: Path, run: SweepRun) -> RunEvent | None:
    """Return how a run ended by its job's note; None if it has none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(_end_file(folder, run.run_id).read_bytes())
        return RunEvent(run.index, RunState(content["state"]), content["exit_code"], content["by_signal"])
    return None


def _end_file(folder: Path, run_id: str) -> Path:
    return folder / "cluster" / "ends" / f"{run_id}.json"


def make_report(sweep: Sweep, folder: Path) -> int:
    """Make the report, as the job behind the last run."""
    from rich.console import Console

    from ampcompare.sweeps.sweep_report import report

    console = Console(highlight=False, width=int(os.environ.get("COLUMNS", "110")))
    return report(console, sweep, folder)
