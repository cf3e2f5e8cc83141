"""Executors: where the runs of a sweep happen, and the options of the clusters.

The driver decides what runs. An executor starts runs, knows which are alive and ends them. There are three:
processes on this machine (local.py), job arrays of Slurm (slurm.py), tasks of Ray (ray.py). How a run ended
is not an executor's business: the run leaves facts about its end (run_end.py).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ampcompare.config.load import parse_override
from ampcompare.errors import UserError
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_end import Alive

CLUSTERS = ("slurm", "ray")


class Executor(Protocol):
    """Starts runs, knows which are alive, ends them.

    Attributes:
        slots: How many processes it takes at a time.
        poll_seconds: Time between two questions for what is alive.
        max_signal_ends: After this number of ends by a signal a run has failed; None: never.
    """

    slots: int
    poll_seconds: float
    max_signal_ends: int | None

    @property
    def assigned(self) -> Sequence[Sequence[int]]:
        """The runs that wait in each process that lives, or waits in a queue, behind its first run.

        `submit` and `alive` bring them up to date.
        """

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, Any]]:
        """Start a process for each of these groups, or queue it where the executor has a queue.

        Args:
            groups: The runs of each process, which trains them one after the other.

        Returns:
            Where each process was started, for the journal.

        Raises:
            UserError: If they cannot be submitted.
        """

    def alive(self) -> Alive:
        """Return the run that is under way in each process, or waits in the executor's queue.

        A run that was among them and is not any more has ended, and the facts about its end are there if
        it was observed. Runs that wait for their turn in a process are in `assigned`.
        """

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Ask runs to end in order, with a checkpoint; `at_once`: kill them.

        Runs that wait in the process of such a run do not begin there.

        Raises:
            UserError: If they cannot be asked.
        """

    def close(self) -> None:
        """Let go of everything. No run may be left that the executor has to end."""


def split_cluster_options(overrides: Sequence[str], cluster: str | None) -> tuple[dict[str, str], list[str]]:
    """Split `key=value` words into options of the cluster and overrides of the runs.

    Options of a cluster have its name as prefix: `slurm.time=60`, `ray.num_gpus=0.5`.

    Args:
        overrides: The words.
        cluster: `slurm` or `ray`; None where the runs are processes of this machine.

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
        else:
            raise UserError(
                f"{override}: is an option of --cluster {prefix}; "
                f"add --cluster {prefix}, or leave the option out"
            )
    return cluster_options, run_overrides
