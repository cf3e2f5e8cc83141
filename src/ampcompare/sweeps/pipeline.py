"""The course of `ampcompare sweep`, from the command to the report."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ampcompare.config.recipes import RECIPE, describe_recipe
from ampcompare.config.run_series import NEEDS_VARIABLE
from ampcompare.errors import UserError, one_line
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.console import messages_on, print_line
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.paths import shell_command
from ampcompare.sweeps.code_version import changed_files, note_code_version
from ampcompare.sweeps.decisions import Look, Train, check_can_be_decided, next_step, seeds_for_first_look
from ampcompare.sweeps.driver import MAX_FIRST_FAILURES, SweepDriver, recover
from ampcompare.sweeps.executors import CLUSTERS, Executor
from ampcompare.sweeps.executors.local import LocalExecutor, visible_gpus
from ampcompare.sweeps.journal import Journal, SeedGroup, SweepRun
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, make_output, prepare
from ampcompare.sweeps.progress import SweepProgress, print_best, print_failed
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.samplers import load_optuna
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_identity import continued_sweep
from ampcompare.sweeps.training_options import machine_needs, starts_with_this_python

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
        UserError: For a bad file, bad overrides, a folder that cannot be used, or a machine that cannot train
            some runs. Then nothing is trained.
    """
    return run_prepared(prepare(file, overrides, options), console)


def run_prepared(
    prepared: PreparedSweep,
    console: Console,
    before_start: Callable[[PreparedSweep, Journal], PreparedSweep] = lambda prepared, journal: prepared,
) -> int:
    """Run the remaining runs of a prepared sweep.

    Args:
        console: Where to print.
        before_start: Changes what is left to do before the first run starts, as `--rerun` does.

    Returns:
        The exit code, as `run_sweep`.

    Raises:
        UserError: As `run_sweep`.
    """
    sweep, options = prepared.sweep, prepared.command.options
    if sweep.learns:
        load_optuna()
    if prepared.looks:
        check_can_be_decided(sweep, prepared.looks)
    make_executor = _executor_factory(prepared)
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
            records = RunRecords(folder, sweep.metric.name if sweep.metric else None)
            recover(prepared, journal, executor, records)
            _check_code(prepared, journal)
            if prepared.looks:
                present = prepared.sweep_now(journal.state)
                check_can_be_decided(present, prepared.looks)
                if group := seeds_for_first_look(present, prepared.looks):
                    journal.add_seeds(group)
            prepared = before_start(prepared, journal)
            if options.cluster != "slurm":
                _refuse_jobs_in_queue(journal)
            total = prepared.sweep_now(journal.state).total()
            workers = min(executor.slots, max(1, total)) if total else executor.slots
            limit, shown = executor.max_signal_ends, Console(quiet=True) if is_detached else console
            progress = SweepProgress(shown, prepared.sweep, journal.state, folder, workers, limit)
            look = partial(look_at_runs, bench=options.bench)
            driver = SweepDriver(
                prepared, journal, executor, records, progress, stop, look, describe_first_run
            )
            status = submit_and_leave(driver) if is_detached else run_to_completion(driver, workers)
        return status if status is not None else finish(prepared, journal, console)


def run_to_completion(driver: SweepDriver, workers: int) -> int | None:
    """Run the remaining runs until all have ended or a stop is requested.

    Args:
        workers: Number of runs at a time, for the first message.

    Returns:
        128 + signal after a stop request; EXIT_FAILED_RUNS if the first runs have failed with one message;
        None if all runs have ended.

    Raises:
        UserError: If the user's code changes meanwhile, or this machine cannot train some of the runs.
    """
    prepared, stop, folder = driver.prepared, driver.stop, driver.journal.folder
    for line in start_messages(driver, workers):
        log.info(one_line(line))
    with driver.progress:
        driver.run()
    if stop.signal:
        log.info(one_line(f"stopped; continue with: {prepared.continuing.text()}"))
        return 128 + stop.signal
    if driver.refusal:
        raise UserError(f"{prepared.sweep.name}: {driver.refusal}")
    if driver.failure:
        log.info(
            one_line(
                f"no further run was started, because the first {MAX_FIRST_FAILURES} failed with the same "
                f"message: {driver.failure}; their logs are in {folder / 'logs'}; correct the program or the "
                f"sweep file, then repeat the failed runs with: {prepared.command.text('--rerun')}"
            )
        )
        return EXIT_FAILED_RUNS
    if driver.changed_code:
        raise code_changed_error(driver.changed_code, prepared, "while the sweep ran")
    return None


def submit_and_leave(driver: SweepDriver) -> int | None:
    """Submit the remaining runs to Slurm, and a job for the report that depends on them.

    Returns:
        0 where jobs wait or run; None where all runs have ended, so that the report can be made here.

    Raises:
        UserError: If something cannot be submitted.
    """
    from ampcompare.sweeps.executors.slurm import SlurmExecutor, array_of, jobs_folder

    executor, state, folder = driver.executor, driver.journal.state, driver.journal.folder
    assert isinstance(executor, SlurmExecutor)
    waiting = state.count(RunState.RUNNING) + sum(map(len, executor.assigned))
    step = next_step(driver.situation())
    submitted = driver.train(step.groups) if isinstance(step, Train) else []
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
    log.info(
        one_line(f"to follow: squeue -j {','.join(jobs)}, or: {driver.prepared.command.text('--status')}")
    )
    if submitted or not executor.has_report_job():
        job = executor.submit_report(jobs)
        log.info(one_line(f"report: job {job} writes it to {folder / 'report'} after the last run"))
    return 0


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
    sweep, state, folder = prepared.sweep_now(journal.state), journal.state, journal.folder
    if not sweep.is_grid or sweep.seeds == 1:  # of repeats with several seeds the best is chance
        print_best(console, sweep, state)
    total = sweep.total() or len(state.runs)
    print_failed(console, state, total, folder, prepared.command.text("--rerun"))
    status = 0
    if sweep.on_server:  # this folder has only the runs of this machine
        print_line(
            console,
            one_line(f"to compare the runs: {shell_command('ampcompare', 'report', prepared.command.file)}"),
        )
    else:
        from ampcompare.sweeps.sweep_report import report

        status = report(console, sweep, folder, prepared.command.options.bench)
    return EXIT_FAILED_RUNS if state.with_state(RunState.FAILED) else status


@contextmanager
def open_journal(prepared: PreparedSweep, folder: Path) -> Iterator[tuple[Journal, PreparedSweep]]:
    """Open the journal of a new or continued sweep; yield the journal and the sweep as it began.

    Raises:
        UserError: If the folder belongs to another sweep, or has another driver.
    """
    command = prepared.continuing.data()
    journal = Journal(folder, prepared.sweep.name, prepared.definition, command)
    try:
        sweep, more = continued_sweep(prepared.sweep, prepared.definition, journal.state, str(folder))
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
    own = [word for word in prepared.command.overrides if not word.startswith("output_dir=")]
    new = shell_command("ampcompare", "sweep", prepared.command.file, *own, f"output_dir={prepared.output}-2")
    return UserError(
        f"{', '.join(files)}: changed {when}; restore the old content to continue, "
        f"or start a new sweep: {new}"
    )


def _refuse_jobs_in_queue(journal: Journal) -> None:
    """Raise UserError where Slurm may be running runs that an earlier driver submitted."""
    running = journal.state.with_state(RunState.RUNNING)
    if jobs := sorted({str(run.process["job"]) for run in running if "job" in run.process}):
        raise UserError(
            f"{journal.folder}: runs of this sweep are Slurm jobs ({', '.join(jobs[:3])}); continue with "
            "--cluster slurm"
        )


def _executor_factory(prepared: PreparedSweep) -> Callable[[Journal], Executor]:
    """Check the cluster's options, and return a function that makes the executor.

    Raises:
        UserError: If the cluster cannot be used, or cannot do what the sweep needs.
    """
    options = prepared.command.options
    if options.cluster not in (None, *CLUSTERS):
        raise UserError(f"--cluster {options.cluster!r}: expected one of {', '.join(CLUSTERS)}")
    if options.wait and options.cluster != "slurm":
        raise UserError("--wait: only --cluster slurm needs it; leave it out, this command always waits")
    if options.cluster == "slurm":
        from ampcompare.sweeps.executors.slurm import slurm_factory

        return slurm_factory(prepared, prepared.cluster_options)
    if options.cluster == "ray":
        from ampcompare.sweeps.executors.ray import ray_factory

        return ray_factory(prepared, prepared.cluster_options)

    def make_local(journal: Journal) -> Executor:
        launcher, gpus = prepared.launcher(journal.folder), [] if prepared.on_cpu else visible_gpus()
        has_succeeded = journal.state.count(RunState.FINISHED, RunState.STOPPED)
        config = prepared.config if starts_with_this_python(prepared.sweep) else None
        if config is not None and not prepared.sweep.on_server and not has_succeeded:
            # The first processes check that this machine can train all runs, before they train.
            needs = json.dumps(machine_needs(prepared.sweep, config))
            launcher = replace(launcher, environment={**launcher.environment, NEEDS_VARIABLE: needs})
        return LocalExecutor(launcher, options.workers or max(1, len(gpus)), gpus)

    return make_local


def start_messages(driver: SweepDriver, workers: int) -> Iterator[str]:
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

        yield from describe_decision_plan(prepared, prepared.command.options.bench)
    varied = {p.key for p in sweep.varied}
    config = prepared.config
    if config is not None and config.published.name is None and not varied & {RECIPE, "model.name"}:
        yield describe_recipe(config, varied)
