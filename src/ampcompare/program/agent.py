"""W&B's sweep agent as the process that has started this one: whether a SIGTERM can be of its own making.

The agent (wandb 0.31) sends SIGTERM to a run that W&B has stopped. With `--forward-signals` it hands on what
it gets itself, too. Without, a SIGTERM of the batch system, which goes to every process of a job, ends it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SECONDS = 1.0  # the processes of a job get a signal within milliseconds of each other


def is_of_agent() -> bool:
    """Whether a SIGTERM that came just now is the agent's own: it lives, and had it got one, it would not.

    False where that cannot be known: no agent is there, it hands signals on, or the system has no /proc.
    """
    parent = os.getppid()
    if not _is_agent(parent) or _catches(parent, signal.SIGTERM):
        return False
    until = time.monotonic() + SECONDS
    while os.getppid() == parent and _is_agent(
        parent
    ):  # of a dead one, not yet collected, there are no words
        if time.monotonic() > until:
            return True
        time.sleep(0.02)
    return False


def _is_agent(pid: int) -> bool:
    """Whether it is `wandb agent ...`, however it was started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    names = [word.rpartition(b"/")[2] for word in words]
    return b"agent" in names[1:] and any(name in (b"wandb", b"wb") for name in names[: names.index(b"agent")])


def _catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal, or ignores it. True if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return not masks or any(mask >> (number - 1) & 1 for mask in masks)
