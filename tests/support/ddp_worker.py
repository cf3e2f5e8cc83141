"""run_experiment.py under torchrun, with processes that kill themselves.

$KILLS has a word for each start, `RANK:WHERE:STEP` or `-`: which process ends, in doing what, from which step
on. With `RANK:WHERE:STEP:SIGUSR1` it is sent that signal instead. Each process says its exit code.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.runtime.signals import exit_process
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.evaluation import Evaluation
from ampcompare.training.metrics_logger import MetricsLogger

PLACES: dict[str, tuple[Any, str]] = {
    "step": (MetricsLogger, "end_interval"),
    "evaluate": (DistributedContext, "broadcast_buffers"),  # of an evaluation, that comes first
    "batch": (Evaluation, "add"),
    "write": (os, "fsync"),  # the process that writes: everything is in a file, not under its name
}
now = 0  # the step under way


def dying(where: str, at: int, of: str = "SIGKILL") -> None:
    """Have this process die at a place, or send it another signal there."""
    owner, name = PLACES[where]
    before = getattr(owner, name)

    def die(*args: Any, **kwargs: Any) -> Any:
        if now >= at:
            os.kill(os.getpid(), signal.Signals[of])
        return before(*args, **kwargs)

    setattr(owner, name, die)


def step(self: MetricsLogger, number: int, *more: Any) -> None:
    global now
    now = number
    taken(self, number, *more)


taken = MetricsLogger.log_step
MetricsLogger.log_step = step  # type: ignore[method-assign]
kills = os.environ.get("KILLS", "").split() + ["-"] * 9
rank, *rest = kills[int(os.environ["TORCHELASTIC_RESTART_COUNT"])].split(":")
if rank == os.environ["RANK"]:
    dying(rest[0], int(rest[1]), *rest[2:])
code = run_experiment.main(sys.argv[1:])
print(f"process {os.environ['RANK']} ends with {code}", flush=True)
exit_process(code)
