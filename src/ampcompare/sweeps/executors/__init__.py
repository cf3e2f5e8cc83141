"""Executors: where the runs of a sweep happen, and the options of the clusters.

The driver decides what runs. An executor starts the runs and reports how they end. There are three:
processes on this machine (local.py), job arrays of Slurm (slurm.py), tasks of Ray (ray.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ampcompare.config.load import parse_override
from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun

CLUSTERS = ("slurm", "ray")


@dataclass(frozen=True)
class RunEvent:
    """A change of a run that an executor reports.

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


def split_cluster_options(
    overrides: Sequence[str], cluster: str | None, *, any_cluster: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Split `key=value` words into options of the cluster and overrides of the runs.

    Options of a cluster have its name as prefix: `slurm.time=60`, `ray.num_gpus=0.5`.

    Args:
        overrides: The words.
        cluster: `slurm` or `ray`; None where the runs are processes of this machine.
        any_cluster: Whether to leave out the options of every cluster, because nothing is started.

    Returns:
        The options of the cluster by their name without prefix, and the overrides of the runs.

    Raises:
        UserError: For an option of a cluster that is not used.
    """
    cluster_options: dict[str, str] = {}
    run_overrides = []
    for override in overrides:
        key, value = parse_override(override)
        prefix, dot, name = key.partition(".")
        if not dot or prefix not in CLUSTERS:
            run_overrides.append(override)
        elif prefix == cluster:
            cluster_options[name] = str(value)
        elif not any_cluster:
            raise UserError(
                f"{override}: is an option of --cluster {prefix}; "
                f"add --cluster {prefix}, or leave the option out"
            )
    return cluster_options, run_overrides
