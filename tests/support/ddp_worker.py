"""run_experiment.py under torchrun, with processes that kill themselves.

$KILLS has a word for each start, `RANK:WHERE:STEP` or `-`: which process ends, in doing what, from which step
on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.checkpoint import keeper
from ampcompare.machine import processes
from ampcompare.machine.processes import CollectiveFlags, World
from ampcompare.program.stopping import leave
from ampcompare.train import build
from ampcompare.train.fit import Fit

PLACES: dict[str, tuple[Any, str]] = {
    "data": (build, "build_dataset"),
    "step": (Fit, "_log"),
    "evaluate": (World, "share_buffers"),  # of an evaluation, that comes first
    "save": (keeper, "capture"),
    "write": (os, "fsync"),  # the process that writes: everything is in a file, not under its name
}
now = 0  # the step under way


def dying(where: str, at: int) -> None:
    """Have this process die at a place."""
    owner, name = PLACES[where]
    before = getattr(owner, name)

    def die(*args: Any, **kwargs: Any) -> Any:
        if now >= at:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*args, **kwargs)

    setattr(owner, name, die)


def at(self: CollectiveFlags, step: int, *questions: Callable[[], bool]) -> list[bool]:
    global now
    now = step
    return asked(self, step, *questions)


processes.ASK_SECONDS = 1e9  # asked with the first step and as log intervals end, not by the clock
asked = CollectiveFlags.at
CollectiveFlags.at = at  # type: ignore[method-assign]
kills = os.environ.get("KILLS", "").split() + ["-"] * 9
rank, *rest = kills[int(os.environ["TORCHELASTIC_RESTART_COUNT"])].split(":")
if rank == os.environ["RANK"]:
    dying(rest[0], int(rest[1]))
leave(run_experiment.main(sys.argv[1:]))
