"""The task of Ray: one run or a series of runs, to their end or the cancellation of the task.

The runs work in the sweep's output folder, which all nodes share, and continue from what another node left.

`ray.cancel` interrupts the main thread of the task, as Ctrl-C does. The handler only sets a flag, so a
process that was just started is not lost.
"""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import EVENTS_FILE, SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard, write_end
from ampcompare.sweeps.run_end import RunEnd, end_file, end_file_of, read_end, state_of_end
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.run_process import RunProcess, end_leftovers, train_in_series
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.stop_request import SweepStopRequest

SHARE_FOLDER = "use a folder on a drive that all nodes share"


@dataclass(frozen=True)
class RayTask:
    """The runs of a task, sent to the task as a pickle.

    Attributes:
        launcher: Starts the runs.
        runs: The runs in their order; more than one with several seeds in a process.
        working_folder: The folder for the relative paths of the runs; None where Ray's `runtime_env` has one.
        gpu: Value of CUDA_VISIBLE_DEVICES; None keeps Ray's value.
    """

    launcher: RunLauncher
    runs: tuple[SweepRun, ...]
    working_folder: str | None
    gpu: str | None = None


def run_task(task: RayTask) -> str:
    """Train until the runs have ended. How each run ended is in the facts about its end.

    A first `ray.cancel` ends the run that is under way in order, a second one kills it. No other run begins.

    Returns:
        Why no run could start; empty if one started.
    """
    folder = task.launcher.folder
    if not _has_run(folder, task.runs[0]):
        return f"node {socket.gethostname()} does not see output_dir={folder}; {SHARE_FOLDER}"
    # A sweep without files of the user can run where the driver's folder does not exist.
    if task.working_folder and Path(task.working_folder).is_dir():
        os.chdir(task.working_folder)
    with closing(SweepStopRequest()) as stop:
        stop.listen([signal.SIGINT])  # the signal of `ray.cancel`; Ray handles the others
        _run_in_output_folder(task, stop)
    return ""


def _has_run(folder: Path, run: SweepRun) -> bool:
    """Return whether the journal in this folder has the run: a node may have a folder of its own there."""
    with suppress(OSError):
        return run.run_id.encode() in (folder / EVENTS_FILE).read_bytes()
    return False


def _run_in_output_folder(task: RayTask, stop: SweepStopRequest) -> None:
    if any(run.starts for run in task.runs):
        # Ray may have lost the node or the worker of the start before. A worker that was killed on this
        # machine has left the run to its guard, which may be ending it now.
        end_leftovers(task.runs, task.launcher.folder)
    _train(task, [run for run in task.runs if not _has_finished(run, task.launcher)], stop)


def _has_finished(run: SweepRun, launcher: RunLauncher) -> bool:
    """Return whether an earlier start of the run has finished, after the driver had heard of its loss."""
    if not run.starts:
        return False
    before = read_end(end_file(launcher.folder, run.run_id, run.starts)) or RunEnd()
    records = RunRecords(launcher.folder)
    ours = launcher.trains_here
    state, _ = state_of_end(run, before, lambda: records.record(run), trains_here=ours)
    if state is RunState.FINISHED:
        write_end(end_file_of(launcher.folder, run), RunEnd(0).facts())
        return True
    with launcher.log_file(run.run_id).open("a") as log:
        print(f"start {run.last_start} on {socket.gethostname()}", file=log)
    return False


def _train(task: RayTask, runs: Sequence[SweepRun], stop: SweepStopRequest) -> None:
    with closing(ProcessGuard()) as guard:

        def start(left: Sequence[SweepRun]) -> RunProcess | None:
            with _sigint_unblocked():
                return task.launcher.start(left, guard, task.gpu)

        def attend(process: RunProcess) -> None:
            if stop.is_made():
                process.stop()
            if stop.is_at_once:
                process.kill()

        train_in_series(start, runs, attend, stop.is_made)


@contextmanager
def _sigint_unblocked() -> Iterator[None]:
    """Unblock SIGINT, which Ray blocks in its workers, for a program that is started here."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sees_token(path: Path, token: str) -> bool:
    """Return whether the file has this content here."""
    with suppress(OSError, ValueError):
        return path.read_text() == token
    return False
