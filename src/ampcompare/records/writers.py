"""Whether anyone is still writing a record: what its file alone does not tell."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

from ampcompare.records.run import RunRecord
from ampcompare.records.system import hashed

PROCESSES = Path("/proc")  # Linux; elsewhere the time of the last write has to do


def is_going_on(run: RunRecord) -> bool:
    """Whether a run without an end goes on still.

    On the machine that the record is from, somebody has its file open as long as it does: a run that was
    killed a second ago is none, and a slow step no end. Of another machine's record, or of a run on W&B's
    server, `state` is all there is: it goes by the last write.
    """
    if run.exit_code is not None:
        return False
    if run.paths and _is_from_here(run) and (opened := _opened()) is not None:
        return any(os.path.realpath(path) in opened for path in run.paths)
    return run.state == "running"


def _is_from_here(run: RunRecord) -> bool:
    machine = run.machine.facts.get("machine")
    host = machine.get("host") if isinstance(machine, dict) else None
    return host is not None and host == hashed(platform.node())


def _opened() -> frozenset[str] | None:
    """The records that processes of this user have open; None where the system does not say."""
    if not PROCESSES.is_dir():
        return None
    return frozenset(target for target in _targets() if target.endswith(".wandb"))


def _targets() -> Iterable[str]:
    for folder in PROCESSES.glob("[0-9]*/fd"):
        try:
            for entry in os.scandir(folder):
                yield os.readlink(entry.path)
        except OSError:  # another user's, or it has ended by now
            continue
