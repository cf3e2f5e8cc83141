"""The task of Ray: one run or a series of runs, to their end or the cancellation of the task.

If the node sees the sweep's output folder, the runs work there, and continue from what another node left.
Elsewhere they work in a temporary folder, and their files return with the result.

`ray.cancel` interrupts the main thread of the task, as Ctrl-C does. The handler only sets a flag, so a
process that was just started is not lost.
"""

import hashlib
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.leftovers import end_leftovers
from ampcompare.sweeps.process_guard import ProcessGuard, write_end
from ampcompare.sweeps.run_end import (
    DRIVER,
    ENDS,
    EndRules,
    RunEnd,
    end_file,
    lost_end,
    read_end,
    state_of_end,
)
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.run_process import STOP_SECONDS
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.series_process import SeriesProcess, end_file_of, train_in_series
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.wandb_client.record_folders import find_record_folders, parse_start

TOKEN = Path("cluster") / "ray" / "token"  # in the output folder


@dataclass(frozen=True)
class WorkingFolder:
    """The folder for a run's relative paths, and the user's files that it must have.

    Attributes:
        path: The driver's working folder; None where Ray's `runtime_env` has one.
        hashes: SHA-256 of each of the user's files, by its path.
    """

    path: str | None
    hashes: Mapping[str, str]

    def enter(self) -> str:
        """Change to the folder; return a message about a missing file, or an empty text."""
        folder = Path(self.path) if self.path else Path.cwd()
        for name, digest in self.hashes.items():
            content = None
            with suppress(OSError):
                content = (folder / name).read_bytes()
            if content is None or hashlib.sha256(content).hexdigest() != digest:
                state = "is not there" if content is None else "has different content there"
                return (
                    f"node {socket.gethostname()}: {folder / name} {state}; "
                    """send it to the nodes with ray.runtime_env='{"working_dir": "."}'"""
                )
        # A sweep without files of the user can run where the driver's folder does not exist.
        if self.path and folder.is_dir():
            os.chdir(folder)
        return ""


@dataclass(frozen=True)
class RayTask:
    """The runs of a task, sent to the task as a pickle.

    Attributes:
        launcher: Starts the runs.
        runs: The runs in their order; more than one with several seeds in a process.
        token: Content of a file with which a node checks that it sees the driver's output folder.
        working_folder: The folder for the relative paths of the runs.
        needs_shared_folder: Whether the driver has to read the record while the run is running.
        gpu: Value of CUDA_VISIBLE_DEVICES; None keeps Ray's value.
        code: Dates of the user's files that changed since the sweep began, for the records of the runs.
    """

    launcher: RunLauncher
    runs: tuple[SweepRun, ...]
    token: str
    working_folder: WorkingFolder
    needs_shared_folder: bool = False
    gpu: str | None = None
    code: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult:
    """What a task returns. How each run ended is in the facts about its end.

    Attributes:
        problem: Why no run could start; empty if one started.
        files: The files of each run, by the run's id and by their path in the output folder, if the node does
            not see that folder.
    """

    problem: str = ""
    files: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


def run_task(task: RayTask) -> TaskResult:
    """Train until the runs have ended.

    A first `ray.cancel` ends the run that is under way in order, a second one kills it. No other run begins.
    """
    with closing(SweepStopRequest()) as stop:
        stop.listen([signal.SIGINT])  # the signal of `ray.cancel`; Ray handles the others
        return _run_where_possible(task, stop)


def _run_where_possible(task: RayTask, stop: SweepStopRequest) -> TaskResult:
    launcher = task.launcher
    if missing := task.working_folder.enter():
        return TaskResult(missing)
    if sees_token(launcher.folder / TOKEN, task.token):
        _run_in_shared_folder(task, stop)
        return TaskResult()
    if task.needs_shared_folder:
        return TaskResult(
            f"node {socket.gethostname()} does not see output_dir={launcher.folder}, but early_terminate "
            "needs the records of running runs"
        )
    with tempfile.TemporaryDirectory(prefix="ampcompare-", ignore_cleanup_errors=True) as folder:
        _train(_launcher_into(launcher, Path(folder).resolve()), task.runs, task, stop)
        return TaskResult(files={run.run_id: read_files(Path(folder), run.run_id) for run in task.runs})


def _run_in_shared_folder(task: RayTask, stop: SweepStopRequest) -> None:
    if any(run.starts for run in task.runs):
        # Ray may have lost the node or the worker of the start before. A worker that was killed on this
        # machine has left the run to its guard, which may be ending it now.
        end_leftovers_here(task.runs, task.launcher.folder)
    _train(task.launcher, [run for run in task.runs if not _has_finished(run, task.launcher)], task, stop)


def _has_finished(run: SweepRun, launcher: RunLauncher) -> bool:
    """Return whether an earlier start of the run has finished, after the driver had heard of its loss."""
    if not run.starts:
        return False
    before = read_end(end_file(launcher.folder, run.run_id, run.starts))
    records, rules = RunRecords(launcher.folder), EndRules(launcher.trains_here)
    end = lost_end(before, has_lost_driver=False)
    state, _ = state_of_end(run, end, lambda: records.end(run.run_id), rules)
    if state is RunState.FINISHED:
        write_end(end_file_of(launcher.folder, run), RunEnd(0).facts())
        return True
    with launcher.log_file(run.run_id).open("a") as log:
        print(f"start {run.last_start} on {socket.gethostname()}", file=log)
    return False


def _train(launcher: RunLauncher, runs: Sequence[SweepRun], task: RayTask, stop: SweepStopRequest) -> None:
    with closing(ProcessGuard()) as guard:

        def start(left: Sequence[SweepRun]) -> SeriesProcess | None:
            with _sigint_unblocked():
                return launcher.start(left, guard, task.gpu, task.code)

        def attend(process: SeriesProcess) -> None:
            if stop.is_made():
                process.stop(signal.SIGTERM, STOP_SECONDS, DRIVER)
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


def _launcher_into(launcher: RunLauncher, folder: Path) -> RunLauncher:
    """Return the launcher with another output folder."""
    there, here = f"output_dir={launcher.folder}", f"output_dir={folder}"
    overrides = tuple(here if word == there else word for word in launcher.overrides)
    return replace(launcher, folder=folder, overrides=overrides)


def sees_token(path: Path, token: str) -> bool:
    """Return whether the file has this content here."""
    with suppress(OSError, ValueError):
        return path.read_text() == token
    return False


def end_leftovers_here(runs: Sequence[SweepRun], folder: Path) -> None:
    """End the processes that a killed driver or worker left of these runs on this machine."""
    end_leftovers(runs, folder)


def read_files(folder: Path, run_id: str) -> dict[str, bytes]:
    """Return a run's log, records and facts about its end by their path in the folder, without links."""
    paths = [folder / "logs" / f"{run_id}.log", *(folder / ENDS).glob(f"{run_id}-*.json")]
    for record in find_record_folders(folder, run_id):
        paths += sorted(record.rglob("*"))
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_files(folder: Path, run_id: str, files: Mapping[str, bytes]) -> None:
    """Write files that `read_files` returned on another machine; append the log to that of earlier starts.

    Raises:
        ValueError: For a path that is not one of the run's.
        OSError: If a file cannot be written.
    """
    log = f"logs/{run_id}.log"
    for name in files:
        parts = Path(name).parts
        is_record = len(parts) > 2 and parts[0] == "wandb" and parse_start(parts[1], run_id) is not None
        is_end = re.fullmatch(rf"{ENDS}/{re.escape(run_id)}-\d+\.json", name) is not None
        is_inside = (folder / name).resolve().is_relative_to(folder.resolve())
        if not is_inside or ".." in parts or not (is_record or is_end or name == log):
            raise ValueError(f"{name!r} is not a file of run {run_id}")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if name == log else "wb") as file:
            file.write(content)
