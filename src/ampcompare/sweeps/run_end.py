"""What became of a run: the facts that are left about its end, and their one interpretation.

Whoever executes a run leaves a file `ends/RUN-START.json` when the run ends: a process of this machine, the
job of Slurm and the task of Ray write it by `RunProcess`, the guard of a killed process by `note_stop`. The
file belongs to one start of the run. A job that Slurm requeues is the same start.

`state_of_end` is the only function that says which state an end means. `reconcile` compares the journal's
runs with the facts and with what is alive: one answer for a new driver, for a running driver and for
`--status`. It changes nothing.
"""

import json
import math
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import CLOCK_TICK_SECONDS

MAX_SIGNAL_ENDS = 3  # after this number of ends by a signal, a run has failed
# By the machine (out of memory), by a scheduler, by hand. A shell reports signal N as exit code 128 + N.
_SIGNALS = [getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")]
SIGNAL_CODES = frozenset(code for number in _SIGNALS for code in (-number, 128 + number))
ENDS = "ends"  # folder in the sweep's output folder
DRIVER, SCHEDULER = "driver", "scheduler"  # who asked a run to end, beside the guard


@dataclass(frozen=True)
class RunEnd:
    """The facts about the end of one start of a run.

    Attributes:
        exit_code: Of its process; negative for a signal. None: the end was not observed.
        asked_at: When it was asked to end (seconds since 1970); None: it was not.
        asked_by: Who asked: DRIVER, SCHEDULER, or GUARD because the process that watched the run was killed.
        is_started: Whether the process could be started.
        has_lost_driver: Whether the end was not observed because the driver that executed the run was killed.
    """

    exit_code: int | None = None
    asked_at: float | None = None
    asked_by: str | None = None
    is_started: bool = True
    has_lost_driver: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended the run; None if none of those that come from outside the program did."""
        if self.exit_code is None or self.exit_code not in SIGNAL_CODES:
            return None
        return -self.exit_code if self.exit_code < 0 else self.exit_code - 128

    @property
    def is_seen(self) -> bool:
        """Return whether the end was observed, or that the run could not begin."""
        return self.exit_code is not None or not self.is_started

    def facts(self) -> dict[str, object]:
        """Return the facts as they are written: those that differ from the defaults."""
        known = {fact.name: getattr(self, fact.name) for fact in fields(self)}
        return {fact.name: known[fact.name] for fact in fields(self) if known[fact.name] != fact.default}


@dataclass(frozen=True)
class RecordEnd:
    """What the newest record of a run tells about its end.

    Attributes:
        exit_code: The exit code in the record; None if there is no record or it has no end.
        written_at: When the record was last written (seconds since 1970).
        is_preempting: Whether the program called W&B's `mark_preempting()`.
    """

    exit_code: int | None = None
    written_at: float = -math.inf
    is_preempting: bool = False


@dataclass(frozen=True)
class EndRules:
    """What the meaning of an end depends on, beside the end.

    Attributes:
        trains_here: Whether the runs are our own training. It ends its record, and its process, with 0 only
            when it has finished. Other programs may do so when they are interrupted.
        max_signal_ends: After this number of ends by a signal a run has failed; None: never.
    """

    trains_here: bool
    max_signal_ends: int | None = MAX_SIGNAL_ENDS


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
        is_lost: Whether it ended without a process that observed it.
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


def end_file(folder: Path, run_id: str, start: int) -> Path:
    """Return the file with the facts about the end of a start of a run; the first start is 1."""
    return folder / ENDS / f"{run_id}-{start}.json"


def read_end(file: Path) -> RunEnd | None:
    """Return the facts in a file; None if there are none, or if a killed process was writing them."""
    with suppress(OSError, ValueError):
        content = json.loads(file.read_bytes())
        return RunEnd(**{fact.name: content[fact.name] for fact in fields(RunEnd) if fact.name in content})
    return None


def state_of_end(
    run: SweepRun, end: RunEnd, read_record: Callable[[], RecordEnd], rules: EndRules
) -> tuple[RunState, bool]:
    """Return the state of a run that has ended.

    Args:
        run: The run, as the journal has it before this end.
        end: The facts about the end.
        read_record: Returns what the run's record tells. It is called only where the facts do not suffice.
        rules: What the meaning depends on.

    Returns:
        The state, PREEMPTED if the run has to continue; and whether the end counts as one by a signal that
        the sweep did not send.
    """
    if run.is_stopped_early:
        return RunState.STOPPED, False
    if not end.is_started:
        return RunState.FAILED, False
    was_asked = end.asked_at is not None
    if end.exit_code == 0:
        # Other programs may end with 0 when they are interrupted, without having finished.
        is_interrupted = was_asked and not rules.trains_here
        return RunState.PREEMPTED if is_interrupted else RunState.FINISHED, False
    is_ended_by_signal = end.exit_code is None or end.signal is not None
    # The signal may have come between the end of the record and the end of the process.
    if is_ended_by_signal and _has_finished(run, end, read_record(), rules):
        return RunState.FINISHED, False
    was_asked_by_sweep = was_asked and end.asked_by in (DRIVER, SCHEDULER)
    if was_asked_by_sweep or end.has_lost_driver or _is_preempting(run, end, read_record):
        return RunState.PREEMPTED, False
    if is_ended_by_signal:
        is_last = rules.max_signal_ends is not None and run.signal_ends + 1 >= rules.max_signal_ends
        return RunState.FAILED if is_last else RunState.PREEMPTED, True
    return RunState.FAILED, False


def _has_finished(run: SweepRun, end: RunEnd, record: RecordEnd, rules: EndRules) -> bool:
    """Return whether the record of this start was complete before the run was asked to end."""
    if record.exit_code != 0:
        return False
    if rules.trains_here:
        return True
    asked_at = math.inf if end.asked_at is None else end.asked_at
    return run.queued_at <= record.written_at <= asked_at + CLOCK_TICK_SECONDS


def _is_preempting(run: SweepRun, end: RunEnd, read_record: Callable[[], RecordEnd]) -> bool:
    """Return whether the program asked to be started again, as W&B's server would do."""
    if end.exit_code is None:
        return False
    record = read_record()
    return record.is_preempting and run.queued_at <= record.written_at


def lost_end(end: RunEnd | None, *, has_lost_driver: bool) -> RunEnd:
    """Return the facts about an end that was not observed.

    Args:
        end: What is known nevertheless: that the run was asked to end.
        has_lost_driver: Whether the driver that executed it was killed.
    """
    return replace(end or RunEnd(), has_lost_driver=has_lost_driver)


def reconcile(
    runs: Iterable[SweepRun], alive: Alive, facts: Facts, rules: EndRules, *, has_lost_driver: bool
) -> list[RunChange]:
    """Return what became of runs, as far as the journal does not have it.

    A run whose end is known has ended, also if the list of what is alive is older. One that was interrupted
    and is alive goes on: Slurm has requeued its job. One that is not alive has ended unobserved.

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
