"""The course of `ampcompare sweep`, from the command to the report."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.console import messages_on, print_line
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.paths import shell_command
from ampcompare.sweeps.code_version import changed_files, note_code_version
from ampcompare.sweeps.driver import MAX_FIRST_FAILURES, SweepDriver, recover
from ampcompare.sweeps.executors import CLUSTERS, Executor, split_cluster_options
from ampcompare.sweeps.executors.local import LocalExecutor, visible_gpus
from ampcompare.sweeps.interim_looks import Look, check_can_be_decided, fill_first_look
from ampcompare.sweeps.journal import Journal, SeedGroup, SweepRun
from ampcompare.sweeps.machine_check import check_machine
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, make_output, prepare
from ampcompare.sweeps.progress import SweepProgress, print_best, print_failed
from ampcompare.sweeps.samplers import load_optuna
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_identity import continued_sweep, definition
from ampcompare.sweeps.training_options import recipe_line

log = logging.getLogger(__name__)

EXIT_FAILED_RUNS = 1


def run_sweep(file: str, overrides: Sequence[str], console: Console, options: SweepOptions) -> int:
    """Run the remaining runs of a sweep.

    Args:
        file: The sweep file, a path or the name of a bundled file.
        overrides: `key=value` words; `slurm.KEY=VALUE` and `ray.KEY=VALUE` are for the cluster.
        console: Where to print.
        options: Options of the command line.

    Returns:
        The exit code: 0 if every run finished or was stopped by hyperband; 1 if some failed or there is no
        report; 3 if they repeat a publication that is not reproduced; 128 + signal if stopped by Ctrl-C or a
        batch system.

    Raises:
        UserError: For a bad file, bad overrides, or a folder that cannot be used. Then nothing is started.
    """
    cluster_options, run_overrides = split_cluster_options(overrides, options.cluster)
    prepared = replace(prepare(file, run_overrides, options), all_overrides=tuple(overrides))
    return run_prepared(prepared, cluster_options, console)


def run_prepared(
    prepared: PreparedSweep,
    cluster_options: Mapping[str, str],
    console: Console,
    before_start: Callable[[PreparedSweep, Journal], PreparedSweep] = lambda prepared, journal: prepared,
) -> int:
    """Run the remaining runs of a prepared sweep.

    Args:
        cluster_options: Options of the cluster, by name.
        console: Where to print.
        before_start: Changes what is left to do before the first run starts, as `--rerun` does.

    Returns:
        The exit code, as `run_sweep`.

    Raises:
        UserError: As `run_sweep`.
    """
    sweep, options = prepared.sweep, prepared.options
    if sweep.learns:
        load_optuna()
    if prepared.looks:
        check_can_be_decided(sweep, prepared.looks)
    make_executor = _executor_factory(prepared, cluster_options)
    check_machine(prepared)
    folder = make_output(prepared.output)
    is_detached = options.cluster == "slurm" and not options.wait
    stop = SweepStopRequest()
    with open_journal(prepared, folder) as (journal, prepared):
        with (
            messages_on(console, logging.getLogger("ampcompare.sweeps")),
            nullcontext() if is_detached else stop,
            closing(make_executor(journal)) as executor,
        ):
            for line in prepared.messages:
                log.info(one_line(line))
            recover(prepared, journal, executor)
            _check_code(prepared, journal)
            if prepared.looks:
                check_can_be_decided(_with_seeds(prepared, journal), prepared.looks)
                fill_first_look(_with_seeds(prepared, journal), journal, prepared.looks)
            prepared = before_start(prepared, journal)
            if options.cluster != "slurm":
                _refuse_jobs_in_queue(journal)
            if is_detached:
                status = submit_and_leave(prepared, journal, executor, stop)
            else:
                status = run_to_completion(prepared, journal, executor, stop, console)
        return status if status is not None else finish(prepared, journal, console)


def run_to_completion(
    prepared: PreparedSweep, journal: Journal, executor: Executor, stop: SweepStopRequest, console: Console
) -> int | None:
    """Run the remaining runs until all have ended or a stop is requested.

    Returns:
        128 + signal after a stop request; EXIT_FAILED_RUNS if the first runs have failed with one message;
        None if all runs have ended.

    Raises:
        UserError: If the user's code changes meanwhile.
    """
    total = _with_seeds(prepared, journal).total()
    workers = min(executor.slots, max(1, total)) if total else executor.slots
    progress = SweepProgress(
        console, prepared.sweep, journal.state, journal.folder, workers, executor.max_signal_ends
    )
    driver = SweepDriver(prepared, journal, executor, progress, stop, _look_of(prepared), describe_first_run)
    for line in _start_messages(driver, workers):
        log.info(one_line(line))
    with progress:
        driver.run()
    if stop.signal:
        # --rerun would make new runs of the interrupted runs.
        options = replace(prepared.options, rerun=prepared.sweep.on_server)
        log.info(one_line(f"stopped; continue with: {replace(prepared, options=options).command()}"))
        return 128 + stop.signal
    if driver.failure:
        log.info(
            one_line(
                f"no further run was started, because the first {MAX_FIRST_FAILURES} failed with the same "
                f"message: {driver.failure}; their logs are in {journal.folder / 'logs'}; correct the "
                f"program or the sweep file, then repeat the failed runs with: {prepared.command('--rerun')}"
            )
        )
        return EXIT_FAILED_RUNS
    if driver.changed_code:
        raise code_changed_error(driver.changed_code, prepared, "while the sweep ran")
    return None


def submit_and_leave(
    prepared: PreparedSweep, journal: Journal, executor: Executor, stop: SweepStopRequest
) -> int | None:
    """Submit the remaining runs to Slurm, and a job for the report that depends on them.

    Returns:
        0 where jobs wait or run; None where all runs have ended, so that the report can be made here.

    Raises:
        UserError: If something cannot be submitted.
    """
    from ampcompare.sweeps.executors.slurm import SlurmExecutor, array_of, jobs_folder

    assert isinstance(executor, SlurmExecutor)
    state, folder = journal.state, journal.folder
    quiet = SweepProgress(Console(quiet=True), prepared.sweep, state, folder, executor.slots)
    driver = SweepDriver(prepared, journal, executor, quiet, stop, _look_of(prepared))
    waiting = state.count(RunState.RUNNING) + sum(map(len, executor.assigned))
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
        (first, *_), *_ = submitted
        runs = sum(map(len, submitted))
        tasks = f" with {plural(len(submitted), 'task')}" if runs > len(submitted) else ""
        parts.append(f"{runs} submitted as job {array_of(first)}{tasks}{at_a_time}, {time_limit}")
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


def _look_of(prepared: PreparedSweep) -> Callable[[Sweep, Path, Sequence[SweepRun]], Look]:
    """Return the function that makes an interim look, with the benchmark of the command line."""
    return partial(look_at_runs, bench=prepared.options.bench)


def look_at_runs(sweep: Sweep, folder: Path, runs: Sequence[SweepRun], bench: str | None = None) -> Look:
    """Make an interim look at the runs, with the report's analysis, which is imported only here."""
    from ampcompare.sweeps import sweep_report

    return sweep_report.look_at_runs(sweep, folder, runs, bench)


def describe_first_run(
    prepared: PreparedSweep, folder: Path, run: SweepRun, process_seconds: float | None
) -> list[str]:
    """Return what the first finished run tells of the others; the report's analysis is imported only here."""
    from ampcompare.sweeps import decision_plan

    return decision_plan.describe_first_run(prepared, folder, run, process_seconds)


def finish(prepared: PreparedSweep, journal: Journal, console: Console) -> int:
    """Print the results of a sweep that has ended, and make its report.

    Returns:
        The exit code, as `run_sweep`.
    """
    sweep, state, folder = _with_seeds(prepared, journal), journal.state, journal.folder
    print_best(console, sweep, state)
    total = sweep.total() or len(state.runs)
    print_failed(console, state, total, folder, prepared.command("--rerun"))
    status = 0
    if sweep.on_server:  # this folder has only the runs of this machine
        print_line(
            console, one_line(f"to compare the runs: {shell_command('ampcompare', 'report', prepared.file)}")
        )
    else:
        from ampcompare.sweeps.sweep_report import report

        status = report(console, sweep, folder, prepared.options.bench)
    return EXIT_FAILED_RUNS if state.with_state(RunState.FAILED) else status


@contextmanager
def open_journal(prepared: PreparedSweep, folder: Path) -> Iterator[tuple[Journal, PreparedSweep]]:
    """Open the journal of a new or continued sweep; yield the journal and the sweep as it began.

    Raises:
        UserError: If the folder belongs to another sweep, or has another driver.
    """
    # --rerun is not for a new sweep, except for one of W&B's server.
    begins = replace(prepared.options, rerun=prepared.sweep.on_server)
    words = replace(prepared, options=begins).words() if prepared.file else ()
    journal = Journal(folder, prepared.sweep.name, definition(prepared.sweep, prepared.overrides), words)
    try:
        state = journal.state
        sweep, more = continued_sweep(
            prepared.sweep,
            prepared.overrides,
            state.definition,
            state.added_seeds,
            str(folder),
            state.command,
        )
        journal.begin_driver()
        if more:
            journal.add_seeds(SeedGroup(more))
        yield journal, replace(prepared, sweep=sweep)
    finally:
        journal.close()


def _check_code(prepared: PreparedSweep, journal: Journal) -> None:
    """Refuse to mix two versions of the user's code.

    Raises:
        UserError: If a file has changed since runs were made with it.
    """
    if changed := changed_files(prepared.code_files, journal.state):
        raise code_changed_error(changed, prepared, "since runs of this sweep were made with it")
    note_code_version(journal, prepared.code_files)


def code_changed_error(files: Sequence[str], prepared: PreparedSweep, when: str) -> UserError:
    """Return the error for a sweep that continues with changed code."""
    own = [override for override in prepared.all_overrides if not override.startswith("output_dir=")]
    new = shell_command("ampcompare", "sweep", prepared.file, *own, f"output_dir={prepared.output}-2")
    return UserError(
        f"{', '.join(files)}: changed {when}; restore the old content to continue, "
        f"or start a new sweep: {new}"
    )


def _with_seeds(prepared: PreparedSweep, journal: Journal) -> Sweep:
    return replace(prepared.sweep, added=tuple(journal.state.added_seeds))


def _refuse_jobs_in_queue(journal: Journal) -> None:
    """Raise UserError where Slurm may be running runs that an earlier driver submitted."""
    running = journal.state.with_state(RunState.RUNNING)
    if jobs := sorted({str(run.process["job"]) for run in running if "job" in run.process}):
        raise UserError(
            f"{journal.folder}: runs of this sweep are Slurm jobs ({', '.join(jobs[:3])}); continue with "
            "--cluster slurm"
        )


def _executor_factory(
    prepared: PreparedSweep, cluster_options: Mapping[str, str]
) -> Callable[[Journal], Executor]:
    """Check the cluster's options, and return a function that makes the executor.

    Raises:
        UserError: If the cluster cannot be used, or cannot do what the sweep needs.
    """
    cluster, options = prepared.options.cluster, prepared.options
    if cluster not in (None, *CLUSTERS):
        raise UserError(f"--cluster {cluster!r}: expected one of {', '.join(CLUSTERS)}")
    if options.wait and cluster != "slurm":
        raise UserError("--wait: only --cluster slurm needs it; leave it out, this command always waits")
    if cluster == "slurm":
        from ampcompare.sweeps.executors.slurm import slurm_factory

        return slurm_factory(prepared, cluster_options)
    if cluster == "ray":
        from ampcompare.sweeps.executors.ray import ray_factory

        return ray_factory(prepared, cluster_options)

    def make_local(journal: Journal) -> Executor:
        gpus = [] if prepared.on_cpu else visible_gpus()
        return LocalExecutor(prepared.launcher(journal.folder), options.workers or max(1, len(gpus)), gpus)

    return make_local


def _start_messages(driver: SweepDriver, workers: int) -> Iterator[str]:
    """Yield the first lines: what runs here, and where."""
    prepared, sweep, executor = driver.prepared, driver.sweep, driver.executor
    total, done, failed = sweep.total(), driver.progress.done, driver.journal.state.count(RunState.FAILED)
    parts = [f"{sweep.name}: {sweep.method}"]
    parts.append(plural(total, "run") if total else "no run_cap: starts runs until Ctrl-C")
    if failed:
        parts.append(f"{done} ended before ({failed} failed)")
    elif done:
        parts.append(f"{done} already done")
    parts.append(f"{plural(workers, 'run')} at a time")
    if isinstance(executor, LocalExecutor) and workers > max(1, len(executor.gpus)):
        shared = plural(len(executor.gpus), "GPU") if executor.gpus else "this machine's processor"
        parts.append(f"which share {shared}, so their times cannot be compared")
    yield f"{', '.join(parts)}, in {driver.journal.folder}"
    if prepared.plan_summary:
        yield f"plan: {prepared.plan_summary}"
    if not done:
        from ampcompare.sweeps.decision_plan import describe_decision_plan

        yield from describe_decision_plan(prepared, prepared.options.bench)
    if line := recipe_line(sweep, prepared.overrides):
        yield line
