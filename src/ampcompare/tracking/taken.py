"""What W&B's sweep is told of a run that lost its machine before it began: that it wants to be started again.

Its server has handed the run out and would count it as crashed; only one that said that it is being preempted
is queued again. A program of its own, run in the place of the training: that was interrupted while it imported
modules, which cannot be gone on with.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

SECONDS = 4.0
_SOURCE = str(Path(__file__).resolve().parents[2])
_RUN = "import sys; sys.path.insert(0, sys.argv.pop()); from ampcompare.tracking.taken import main; main()"


def tell(number: int) -> None:
    """Become the program that tells W&B, and ends by the signal. Returns where no sweep of W&B's is to be told."""
    given = os.environ.get
    if given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID") and not given("AMPCOMPARE_LOCAL_SWEEP"):
        sys.stdout.flush()
        sys.stderr.flush()
        words = [sys.executable, "-c", _RUN, str(int(number)), _SOURCE]
        os.execv(sys.executable, words)


def main() -> None:
    """The program: its word is the signal's number."""
    number = int(sys.argv[1])
    import wandb

    from ampcompare.program.stopping import is_preemption, leave
    from ampcompare.tracking import stop_flag
    from ampcompare.wandb_client.service import end_service

    quiet: dict[str, Any] = {"console": "off", "silent": True, "show_errors": False}
    settings = wandb.Settings(init_timeout=SECONDS, finish_timeout=SECONDS, **quiet)
    try:
        # An earlier part of the run may have rows there.
        run = wandb.init(group=os.environ["WANDB_SWEEP_ID"], resume="allow", settings=settings)
        if is_preemption(128 + number) and not stop_flag.is_set(run):
            run.mark_preempting()
        run.finish(exit_code=255)
    except (wandb.errors.Error, TimeoutError, ConnectionError) as problem:
        sys.stderr.write(f"W&B could not be told: {problem}\n")
    end_service(SECONDS)
    leave(128 + number)
