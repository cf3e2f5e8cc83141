"""The command line of a training, for `ampcompare run` and `run_experiment.py`.

It loads neither torch nor other large libraries at first, so preemption signals are handled from the first
moment.
"""

import os
from collections.abc import Sequence

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


def main(arguments: Sequence[str], program: str = "python run_experiment.py", *, brief: bool = False) -> int:
    """Run a training and return its exit code: 0, 1 failed, 2 bad input, 128 + signal stopped.

    Args:
        arguments: The overrides, or a request for help.
        program: The name of the program in help texts.
        brief: Whether to leave out the lines about the record at the end.
    """
    if {"--help", "-h", "--help-all"} & set(arguments):
        from ampcompare.config.option_help import option_help, short_help

        try:
            print(option_help(program) if "--help-all" in arguments else short_help(program), flush=True)
        except BrokenPipeError:  # the reader has closed the pipe: `--help | head`
            return EXIT_FAILED
        return 0
    arguments = take_debug_flag(arguments)
    stop = StopRequest()
    # Libraries take seconds to load. A preemption signal meanwhile becomes a request that the run finds.
    stop.listen(PREEMPTION_SIGNALS)
    try:
        return _run(arguments, brief, stop)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        stop.close()


def _run(arguments: Sequence[str], brief: bool, stop: StopRequest) -> int:
    from ampcompare.config.load import config_from_cli

    try:
        config = config_from_cli([*_resumed(), *arguments])
        with import_without_collection():  # torch and W&B, now that the input is known to be valid
            from rich.console import Console

            from ampcompare.experiment import run
            from ampcompare.runtime.console import messages_on

        console = Console(highlight=False)
        with messages_on(console):
            return run(config, console, brief=brief, stop=stop).exit_code
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


def _resumed() -> list[str]:
    """Return the override `resume=...` of a sweep that starts a run again; later words override it.

    W&B's agent does not set it. A run that W&B's server has queued again has its earlier id.
    """
    from ampcompare.config.load import RESUME_VARIABLE

    getenv = os.environ.get
    by_agent = "auto" if getenv("WANDB_SWEEP_ID") and getenv("WANDB_RUN_ID") else None
    value = getenv(RESUME_VARIABLE) or by_agent
    return [f"resume={value}"] if value else []
