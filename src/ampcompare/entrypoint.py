"""The training's command line, of `ampcompare run` and `run_experiment.py`. Free of torch as it starts, and
of all else that takes long to import: what takes the machine away is heard from the first moment.
"""

import os
from collections.abc import Sequence

from ampcompare.errors import EXIT_BAD_INPUT, UserError, exit_with, show
from ampcompare.plugins import fault_of
from ampcompare.program.starting import loading
from ampcompare.program.stopping import EXIT_FAILED, EXIT_INTERRUPTED, TAKEN_AWAY, StopRequest


def main(words: Sequence[str], program: str = "python run_experiment.py", *, brief: bool = False) -> int:
    """Run; returns the exit code: 0 finished, 1 failed, 2 bad input, 128 + signal stopped. `brief` leaves
    out the lines at the end on where the record is.
    """
    if {"--help", "-h", "--help-all"} & set(words):
        from ampcompare.config.arguments import every, often

        try:
            print((every if "--help-all" in words else often)(program), flush=True)
        except BrokenPipeError:  # `... --help | head`
            os._exit(1)
        return 0
    stop = StopRequest()
    stop.listen(TAKEN_AWAY)  # while libraries load, too: the run that begins tells W&B so and ends
    try:
        return _run(words, brief, stop)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        stop.close()


def _run(words: Sequence[str], brief: bool, stop: StopRequest) -> int:
    from ampcompare.config.arguments import parse

    try:
        config = parse([*_resumed(), *words])
        from rich.console import Console

        from ampcompare.program.messages import messages_on

        with loading("ampcompare.experiment"):  # torch and W&B, now that the input is known to be good
            from ampcompare.experiment import run

        console = Console(highlight=False)
        with messages_on(console):
            return run(config, console, brief=brief, stop=stop).exit_code
    except UserError as problem:
        if problem.exit_code == EXIT_BAD_INPUT:
            from ampcompare.tracking.refusal import record_refusal

            record_refusal(problem)
        exit_with(problem)
    except (Exception, SystemExit) as problem:  # somebody's sys.exit(0) is no end of a training
        if fault := fault_of(problem):
            show(fault)
            return EXIT_FAILED
        raise


def _resumed() -> list[str]:
    """What a sweep that tries a run again says of `resume`, as the first word, so that any other wins.

    W&B's agent says nothing of it; a run that its server has queued again comes with the id of before.
    """
    from ampcompare.config.arguments import RESUME_VARIABLE

    given = os.environ.get
    by_agent = "auto" if given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID") else None
    value = given(RESUME_VARIABLE) or by_agent
    return [f"resume={value}"] if value else []
