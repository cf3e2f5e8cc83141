"""Submit a sweep to Slurm and return: `--cluster slurm` without `--wait`."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from ampcompare.errors import one_line
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import plural
from ampcompare.sweeps.driver import SweepDriver
from ampcompare.sweeps.executors.slurm import SlurmExecutor, array_of, jobs_folder
from ampcompare.sweeps.interim_looks import Look
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep

log = logging.getLogger(__name__)


def submit_and_leave(
    prepared: PreparedSweep,
    journal: Journal,
    executor: SlurmExecutor,
    stop: SweepStopRequest,
    look: Callable[[Sweep, Path, Sequence[SweepRun]], Look],
) -> int | None:
    """Submit the remaining runs, and a job for the report that depends on them.

    Returns:
        0 where jobs wait or run; None where all runs have ended, so that the report can be made here.

    Raises:
        UserError: If something cannot be submitted.
    """
    state, folder = journal.state, journal.folder
    quiet = SweepProgress(Console(quiet=True), prepared.sweep, state, folder, executor.slots)
    driver = SweepDriver(prepared, journal, executor, quiet, stop, look)
    waiting = state.count(RunState.RUNNING)
    submitted = driver.submit_free()
    jobs = sorted({array_of(run) for run in state.with_state(RunState.RUNNING) if "job" in run.process})
    total = driver.sweep.total() or 0
    parts = [f"{driver.sweep.name}: {driver.sweep.method}, {plural(total, 'run')}"]
    for run_state in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED):
        if count := state.count(run_state):
            parts.append(f"{count} {run_state}")
    if waiting:
        parts.append(f"{waiting} waiting or running")
    if not jobs:
        log.info(one_line(f"{', '.join(parts)}; no run is left"))
        return None
    if submitted:
        options = executor.options
        max_parallel = options.get("array_parallelism", len(submitted))
        at_a_time = f", {max_parallel} at a time" if max_parallel < len(submitted) else ""
        time_limit = f"time limit {options['additional_parameters'].get('time')}"
        job = array_of(state.runs[submitted[0].index])
        parts.append(f"{len(submitted)} submitted as job {job}{at_a_time}, {time_limit}")
        if (left := total - len(state.runs)) > 0:
            parts.append(f"{left} not submitted yet; run the same command later")
    else:
        parts.append("nothing new was submitted")
    log.info(one_line(", ".join(parts)))
    log.info(one_line(f"logs of the runs: {folder / 'logs'}; logs of the jobs: {jobs_folder(folder)}"))
    log.info(one_line(f"to follow: squeue -j {','.join(jobs)}, or: {prepared.command('--status')}"))
    if submitted or not executor.has_report_job():
        job = executor.submit_report(jobs)
        log.info(one_line(f"report: job {job} writes it to {folder / 'report'} after the last run"))
    return 0
