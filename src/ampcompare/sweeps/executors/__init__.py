"""Executors: where the runs of a sweep happen.

The driver decides what runs. An executor starts the runs and reports what becomes of them. There are three:
processes on this machine (local.py), job arrays of Slurm (slurm.py), tasks of Ray (ray.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun


@dataclass(frozen=True)
class RunEvent:
    """What an executor reports of a run.

    Attributes:
        index: Number of the run's point in the sweep.
        state: RUNNING when it was started; else how it ended.
        exit_code: Of its process; negative for a signal. None where there was no process.
        by_signal: Whether a signal ended it that this sweep did not send.
        process: Where it was started: `host`, `pid`, `process_started` and `gpu`, or the `job`.
    """

    index: int
    state: RunState
    exit_code: int | None = None
    by_signal: bool = False
    process: dict[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Starts runs, reports how they go, ends them.

    Attributes:
        slots: How many runs it takes at a time.
        has_live_records: Whether the records of runs can be read here while they run. Hyperband needs that.
    """

    slots: int
    has_live_records: bool

    def submit(self, runs: Sequence[SweepRun]) -> None:
        """Start these runs, or queue them where the executor has a queue.

        Raises:
            UserError: If they cannot be submitted.
        """

    def poll(self, seconds: float) -> list[RunEvent]:
        """Wait up to `seconds` for news and return them, each run's in their order."""

    def cancel(self, run: SweepRun, *, at_once: bool = False) -> None:
        """Ask a run to end in order, with a checkpoint; `at_once`: kill it.

        Its end comes from `poll` like any other.
        """

    def close(self) -> None:
        """Let go of everything. No run may be left that the executor has to end."""


Say = Callable[[str], None]  # prints a line for the user
