"""End what runs, or a driver that was killed, have left running on this machine."""

import logging
import os
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import note_stop
from ampcompare.sweeps.run_end import DRIVER, end_file_of
from ampcompare.sweeps.run_process import (
    LEFTOVER_SECONDS,
    POLL_SECONDS,
    SERIES_VARIABLE,
    STOP_SECONDS,
    has_ended,
)

log = logging.getLogger(__name__)


def end_leftovers(runs: Sequence[SweepRun], folder: Path, *, announces: bool = False) -> None:
    """End the processes that runs or a killed driver left on this machine, and wait for their end.

    The programs in the journal get SIGTERM and have STOP_SECONDS to save a checkpoint. Processes that they
    started (with the run's id and this folder in their environment) have LEFTOVER_SECONDS more: W&B's
    service completes the record. Then all are killed. The facts about the end of each run say that it was
    asked to end.

    Args:
        folder: Output folder of the sweep.
        announces: Whether to tell the user about the wait.
    """
    asked_at = time.time()
    started = {(run.process.get("pid"), run.process.get("process_started")) for run in runs}
    found = _processes_of(runs, folder, started)
    alive = {None, *(process.pid for process in found)}
    for run in runs:
        is_running = run.state is RunState.RUNNING and run.process.get("pid") in alive
        has_begun = run.is_startable and run.run_id in found.values()  # though the journal does not say so
        if is_running or has_begun:
            note_stop(end_file_of(folder, run), asked_at, DRIVER)
    left = [*found]
    if not left:
        return
    if announces:
        processes = "1 process" if len(left) == 1 else f"{len(left)} processes"
        log.info(f"waiting for {processes} left over from a sweep command that was killed")
    # By the pid alone: when the machine's clock is set, the start times of processes change.
    programs = [process for process in left if process.pid in {pid for pid, _ in started}]
    for process in programs:
        with suppress(psutil.Error):
            process.terminate()
    _wait_for(programs, STOP_SECONDS)
    left = _wait_for(left, LEFTOVER_SECONDS)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait_for(left, LEFTOVER_SECONDS)


def _processes_of(
    runs: Sequence[SweepRun], folder: Path, started: Container[tuple[Any, Any]]
) -> dict[psutil.Process, str | None]:
    """Return the processes of runs on this machine, with the id of the run in their environment."""
    run_ids = {run.run_id for run in runs}
    found: dict[psutil.Process, str | None] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_program = (process.pid, process.create_time()) in started
            environment = {} if is_program else process.environ()
            run_id = environment.get("WANDB_RUN_ID")
            marks = {run_id, *environment.get(SERIES_VARIABLE, "").split(",")}
            is_marked = run_ids & marks and environment.get("WANDB_DIR") == str(folder)
            if (is_program or is_marked) and process.pid != os.getpid() and not has_ended(process):
                found[process] = run_id
    return found


def _wait_for(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for the end of these processes, at most `seconds`; return those that still run."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if not has_ended(p)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left
