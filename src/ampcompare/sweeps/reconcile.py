"""What became of the runs of a sweep: one answer for a new driver, for a running driver and for `--status`.

`reconcile` reads the journal's runs, the facts about their ends and what is alive, and changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_end import EndRules, RecordEnd, RunEnd, end_file, lost_end, read_end, state_of_end
from ampcompare.sweeps.run_records import RunRecords

# Where each run that is alive was started, by its index: `host`, `pid`, `process_started` and `gpu`; the
# `job` of Slurm; or the `ray` task.
Alive = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class RunChange:
    """A change of a run that is not in the journal yet.

    Attributes:
        index: Number of the run's point in the sweep.
        state: RUNNING if it was started; else how it ended.
        exit_code: Of its process; negative for a signal. None: not known.
        by_signal: Whether the end counts as one by a signal that the sweep did not send.
        process: Where it was started.
        is_lost: Whether it ended and nobody saw it.
    """

    index: int
    state: RunState
    exit_code: int | None = None
    by_signal: bool = False
    process: Mapping[str, Any] = field(default_factory=dict)
    is_lost: bool = False


class Facts(Protocol):
    """What is left of runs that have ended."""

    def end(self, run: SweepRun) -> RunEnd | None:
        """Return the facts about the end of the run's last start; None if there are none."""

    def record(self, run: SweepRun) -> RecordEnd:
        """Return what the run's record tells about its end."""


class FolderFacts:
    """The facts in the output folder of a sweep.

    Args:
        folder: The folder.
        records: The records in it.
    """

    def __init__(self, folder: Path, records: RunRecords) -> None:
        self._folder, self._records = folder, records

    def end(self, run: SweepRun) -> RunEnd | None:
        """Return the facts about the end of the run's last start; None if there are none."""
        return read_end(end_file(self._folder, run.run_id, run.last_start))

    def record(self, run: SweepRun) -> RecordEnd:
        """Return what the run's record tells about its end."""
        return self._records.end(run.run_id)


def reconcile(
    runs: Iterable[SweepRun], alive: Alive, facts: Facts, rules: EndRules, *, has_lost_driver: bool
) -> list[RunChange]:
    """Return what became of runs, as far as the journal does not have it.

    A run whose end is known has ended, also if the list of what is alive is older. One that was interrupted
    and is alive goes on: Slurm has requeued its job. One that is not alive has ended, though nobody saw it.

    A driver may have been killed before it wrote down that it started a run. So runs that wait for a start
    are looked at, too.

    Args:
        runs: Runs of the journal that are not external.
        alive: What runs, or waits in a queue.
        facts: What is left of runs that have ended.
        rules: What the meaning of an end depends on.
        has_lost_driver: Whether the driver that started the runs has gone. Jobs of Slurm do not end with it.

    Returns:
        The changes in the order of the runs. A start that is not in the journal comes before its end.
    """
    changes: list[RunChange] = []
    for run in runs:
        is_running = run.state is RunState.RUNNING
        if not (is_running or run.is_startable):
            continue
        known = facts.end(run)
        is_alive = run.index in alive
        if is_alive and (known is None or not known.is_seen):
            if not is_running:
                changes.append(RunChange(run.index, RunState.RUNNING, process=alive[run.index]))
            continue
        end = known
        if end is None or not end.is_seen:
            end = lost_end(known, has_lost_driver=has_lost_driver and "job" not in run.process)
        state, by_signal = state_of_end(run, end, partial(facts.record, run), rules)
        is_interrupted = state in (RunState.PREEMPTED, RunState.STOPPED) and not by_signal
        goes_on = is_alive and is_interrupted
        if not is_running:
            # Facts of the next start mean that it has begun. Without them, its record may have a good end.
            if known is None and state is not RunState.FINISHED:
                continue
            changes.append(RunChange(run.index, RunState.RUNNING, process=alive.get(run.index, {})))
        if not goes_on:
            change = RunChange(run.index, state, end.exit_code, by_signal, is_lost=not end.is_seen)
            changes.append(change)
    return changes
