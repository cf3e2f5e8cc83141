"""What W&B's sweep is told of a run that lost its machine and cannot say so itself: that it wants to be
started again. Its server has handed the run out and would count it as crashed; only one that said that it is
being preempted is queued again.

A program of its own, as two kinds of runs need it: one that was interrupted while it imported modules, which
cannot be gone on with, and one whose client's service is gone. That ends at once on a SIGTERM, which batch
systems send to every process (wandb 0.31; SIGUSR1 and SIGUSR2 do nothing to it).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ampcompare.program.stopping import TAKEN_AWAY, is_preemption, leave

SECONDS = 4.0
_SOURCE = str(Path(__file__).resolve().parents[2])
_RUN = "import sys; sys.path.insert(0, sys.argv.pop()); from ampcompare.tracking.taken import main; main()"


def tell(number: int) -> None:
    """Become the program that tells W&B, and ends by the signal. Returns where no sweep is to be told."""
    if _is_of_sweep():
        os.execve(sys.executable, _words(number), _environment())  # noqa: S606 - our own words


def tell_beside(seconds: float = 2 * SECONDS) -> bool:
    """Have W&B told by a process beside this one, within so long; whether it was."""
    if not _is_of_sweep():
        return False
    import subprocess

    def outlive() -> None:  # what is sent to every process of the job once more
        for number in TAKEN_AWAY:
            signal.signal(number, signal.SIG_IGN)

    words = _words(signal.SIGUSR1)
    try:
        done = subprocess.run(words, env=_environment(), timeout=seconds, check=False, preexec_fn=outlive)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == -signal.SIGUSR1


def _is_of_sweep() -> bool:
    given = os.environ.get
    return bool(given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID") and not given("AMPCOMPARE_LOCAL_SWEEP"))


def _environment() -> dict[str, str]:
    """Without the service of this process, which is gone or ends with it."""
    return {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}


def _words(number: int) -> list[str]:
    return [sys.executable, "-c", _RUN, str(int(number)), _SOURCE]


def main() -> None:
    """The program: its word is the signal's number."""
    number = int(sys.argv[1])
    import wandb

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
    except Exception as problem:  # whatever it is, the end is that of the signal
        sys.stderr.write(f"W&B could not be told: {problem}\n")
    end_service(SECONDS)
    leave(128 + number)
