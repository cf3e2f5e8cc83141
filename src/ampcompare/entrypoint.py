"""The command line of a training, for `ampcompare run` and `run_experiment.py`.

It loads neither torch nor other large libraries at first, so preemption signals are handled from the first
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampcompare.config.run_series import (
    FLAG,
    SeriesProgress,
    check_only_seeds_differ,
    read_runs,
    take_runs_file,
)
from ampcompare.errors import EXIT_BAD_INPUT, UserError, print_error, take_debug_flag
from ampcompare.plugins import find_plugin_error
from ampcompare.runtime.signals import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    PREEMPTION_SIGNALS,
    StopRequest,
    exit_with,
)
from ampcompare.runtime.startup import import_without_collection

if TYPE_CHECKING:
    from ampcompare.config.load import Config
    from ampcompare.experiment import ProcessHistory


def main(
    arguments: Sequence[str],
    program: str = "python run_experiment.py",
    *,
    brief: bool = False,
    stop: StopRequest | None = None,
    on_step: Callable[[int], None] | None = None,
) -> int:
    """Run a training and return its exit code: 0, 1 failed, 2 bad input, 128 + signal stopped.

    Args:
        arguments: The overrides, or a request for help.
        program: The name of the program in help texts.
        brief: Whether to leave out the lines about the record at the end.
        stop: A request to stop, for a program that asks itself; None: a new one.
        on_step: Called with the number of each step after it, as in `experiment.run`.
    """
    if {"--help", "-h", "--help-all"} & set(arguments):
        from ampcompare.config.option_help import option_help, short_help

        try:
            print(option_help(program) if "--help-all" in arguments else short_help(program), flush=True)
        except BrokenPipeError:  # the reader has closed the pipe: `--help | head`
            return EXIT_FAILED
        return 0
    arguments = take_debug_flag(arguments)
    stop = StopRequest() if stop is None else stop
    # Libraries take seconds to load. A preemption signal meanwhile becomes a request that the run finds.
    stop.listen(PREEMPTION_SIGNALS)
    try:
        return _run(arguments, partial(_run_one, brief=brief, stop=stop, on_step=on_step), stop)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        stop.close()


def _run(arguments: Sequence[str], run_one: Callable[..., int], stop: StopRequest) -> int:
    try:
        arguments, runs_file = take_runs_file(arguments)
    except UserError as problem:
        exit_with(problem)
    if runs_file is None:
        return run_one(lambda: _load_config(arguments))
    return _run_series(arguments, runs_file, run_one, stop)


def _load_config(arguments: Sequence[str]) -> Config:
    from ampcompare.config.load import config_from_cli

    return config_from_cli([*_resumed(), *arguments])


def _run_one(
    load: Callable[[], Config],
    *,
    brief: bool,
    stop: StopRequest,
    on_step: Callable[[int], None] | None,
    history: ProcessHistory | None = None,
) -> int:
    """Train one run and return its exit code.

    Args:
        load: Returns the options of the run, or raises UserError.
        brief: Whether to leave out the lines about the record at the end.
        history: The runs of this process; None: this is the only one.
    """
    try:
        config = load()
        with import_without_collection():  # torch and W&B, now that the input is known to be valid
            from rich.console import Console

            from ampcompare.experiment import run
            from ampcompare.runtime.console import messages_on

        console = Console(highlight=False)
        with messages_on(console):
            done = run(config, console, brief=brief, stop=stop, history=history, on_step=on_step)
        return done.exit_code
    except UserError as problem:
        if problem.exit_code == EXIT_BAD_INPUT:
            from ampcompare.tracking.rejected_run import record_rejected_run

            record_rejected_run(problem)
        exit_with(problem)
    except (Exception, SystemExit) as problem:  # sys.exit(0) in user code does not end a training
        if fault := find_plugin_error(problem):
            print_error(fault)
            return EXIT_FAILED
        raise


def _keep(config: Config) -> Config:
    return config


def _run_series(
    arguments: Sequence[str], runs_file: Path, run_one: Callable[..., int], stop: StopRequest
) -> int:
    """Train the runs of a file, and return the exit code of the first that did not finish.

    `run_series` describes the file. What a run leaves in the process (switches, random states, environment)
    is reset before the next one.
    """
    try:
        runs = read_runs(runs_file)
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise UserError(
                f"{FLAG} {runs_file}: a series of runs needs a single process; start each run by itself"
            )
        configs = []
        for run in runs:
            with run.environment_set():
                configs.append(_load_config([*arguments, *run.overrides]))
        check_only_seeds_differ(configs, runs_file)
        progress = SeriesProgress(runs_file)
    except UserError as problem:
        exit_with(problem)
    with import_without_collection():
        from ampcompare.experiment import ProcessHistory
        from ampcompare.system.process_state import restored_process_state
    history = ProcessHistory()
    for number, (run, config) in enumerate(zip(runs, configs, strict=True)):
        if stop.is_made():
            return stop.exit_code
        if history.has_kept_network():
            exit_with(
                UserError(
                    f"{FLAG} {runs_file}: the code of model.name={config.model.name!r} keeps the network "
                    f"that it returned, so entry {number} would train it further; let it build a new network "
                    "in each call, or start each run by itself"
                )
            )
        run.redirect_output()
        progress.begin(number)
        with restored_process_state(), run.environment_set():
            exit_code = run_one(partial(_keep, config), history=history)
        if exit_code:
            return exit_code
        progress.end(number)
    return 0


def _resumed() -> list[str]:
    """Return the override `resume=...` of a sweep that starts a run again; later words override it.

    W&B's agent does not set it. A run that W&B's server has queued again has its earlier id.
    """
    from ampcompare.config.load import RESUME_VARIABLE

    getenv = os.environ.get
    by_agent = "auto" if getenv("WANDB_SWEEP_ID") and getenv("WANDB_RUN_ID") else None
    value = getenv(RESUME_VARIABLE) or by_agent
    return [f"resume={value}"] if value else []
