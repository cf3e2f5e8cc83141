"""What the sweep of W&B's server says of this run's point: is it a run of its own?

Asked in a process of its own, which reads the sweep's configuration as `ampcompare sweep` does: the training
loads nothing of that, and W&B's client begins in it as if nothing had been asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ampcompare
from ampcompare.errors import UserError, one_line

MODULE = "ampcompare.sweeps.holes.once"
SECONDS = 60.0  # for the process, which gives the server less


class Again(UserError):
    """The run is that of another point of the sweep, which trains; this one does not."""


@dataclass(frozen=True)
class Standing:
    """Why another point stands for this one (empty: none does), and whether it is one that cannot run."""

    again: str = ""
    cannot_run: bool = False


def standing() -> Standing:
    """Where this run stands in its sweep. What cannot be told makes it a run of its own, and is said."""
    package = str(Path(ampcompare.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", MODULE]
    try:
        asked = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=SECONDS,
            check=True,
        )
        told = json.loads(asked.stdout.splitlines()[-1])
        return Standing(str(told["again"]), told["cannot_run"] is True)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as problem:
        sys.stderr.write(f"warning: the sweep's configuration is not known: {one_line(problem)}\n")
        return Standing()


def check_once() -> None:
    """Raise Again where another point of the sweep is the same run and stands for both."""
    if again := standing().again:
        raise Again(again)


def passes_over(problem: UserError) -> bool:
    """Whether a run that was refused is a point that its sweep can do without: one that another stands for,
    or one of those that cannot run while others can. It is said in one line then; else the sweep itself may
    be wrong, and W&B's agent is to count it as a failure.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun has an exit code of its own
        return False
    if not isinstance(problem, Again) and not standing().cannot_run:
        return False
    sys.stderr.write(f"not run: {one_line(problem)}\n")
    return True
