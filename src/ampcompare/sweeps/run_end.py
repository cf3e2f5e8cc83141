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
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ampcompare.errors import EXIT_UNSUITABLE
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import CLOCK_TICK_SECONDS

MAX_SIGNAL_ENDS = 3  # after this number of ends by a signal, a run has failed
# What comes from outside: by the machine (out of memory), by a scheduler, by hand.
SIGNALS = {getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")}
NOT_STARTED = 127  # the exit code of a process that could not be started, as of a shell
ENDS = "ends"  # folder in the sweep's output folder
DRIVER, SCHEDULER = "driver", "scheduler"  # who asked a run to end, beside the guard


@dataclass(frozen=True)
class RunEnd:
    """The facts about the end of one start of a run.

    Attributes:
        exit_code: Of its process (`exit_code_of`). None: the end was not observed.
        asked_at: When it was asked to end (seconds since 1970); None: it was not.
        asked_by: Who asked: DRIVER, SCHEDULER, or GUARD because the process that watched the run was killed.
    """

    exit_code: int | None = None
    asked_at: float | None = None
    asked_by: str | None = None

    @property
    def is_by_signal(self) -> bool:
        """Return whether a signal from outside the program ended the run."""
        return self.exit_code is not None and -self.exit_code in SIGNALS

    def facts(self) -> dict[str, object]:
        """Return the facts as they are written: those that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def exit_code_of(returncode: int) -> int:
    """Return the exit code of a process in its one form: minus the signal if one from outside ended it.

    A shell, and a program that handles a signal, report signal N as 128 + N.
    """
    return 128 - returncode if returncode - 128 in SIGNALS else returncode


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


# Where each run that is alive was started, by its index: `host`, `pid`, `process_started` and `gpu`; the
# `job` of Slurm; or the `ray` task.
Alive = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class RunChange:
    """A change of a run that is not in the journal yet.

    Attributes:
        run: The run, as the journal has it.
        state: RUNNING if it was started; else how it ended.
        end: The facts about its end; None for a start.
        by_signal: Whether the end counts as one by a signal that the sweep did not send.
        process: Where it was started.
    """

    run: SweepRun
    state: RunState
    end: RunEnd | None = None
    by_signal: bool = False
    process: Mapping[str, Any] = field(default_factory=dict)


class Facts(Protocol):
    """What is left of runs that have ended."""

    def end(self, run: SweepRun) -> RunEnd | None:
        """Return the facts about the end of the run's last start; None if there are none."""

    def record(self, run: SweepRun) -> RecordEnd:
        """Return what the run's record tells about its end."""


def end_file(folder: Path, run_id: str, start: int) -> Path:
    """Return the file with the facts about the end of a start of a run; the first start is 1."""
    return folder / ENDS / f"{run_id}-{start}.json"


def end_file_of(folder: Path, run: SweepRun) -> Path:
    """Return the file with the facts about the end of a run's last start, or of the one that comes next."""
    return end_file(folder, run.run_id, run.last_start)


def read_end(file: Path) -> RunEnd | None:
    """Return the facts in a file; None if there are none, or if a killed process was writing them."""
    with suppress(OSError, ValueError):
        content = json.loads(file.read_bytes())
        return RunEnd(**{fact.name: content[fact.name] for fact in fields(RunEnd) if fact.name in content})
    return None


def runs_left(runs: Iterable[SweepRun], folder: Path) -> list[SweepRun]:
    """Return the runs of a job or task that have not ended, by the facts that it leaves.

    The first of them is under way, or comes next: a job trains its runs in their order. A run that was asked
    to end is left, because it goes on when its job is queued again.
    """
    ends = [(run, read_end(end_file_of(folder, run))) for run in runs]
    return [run for run, end in ends if end is None or end.exit_code is None or end.asked_at is not None]


def state_of_end(
    run: SweepRun,
    end: RunEnd,
    read_record: Callable[[], RecordEnd],
    max_signal_ends: int | None = MAX_SIGNAL_ENDS,
    *,
    trains_here: bool = False,
    has_lost_driver: bool = False,
) -> tuple[RunState, bool]:
    """Return the state of a run that has ended.

    Args:
        run: The run, as the journal has it before this end.
        end: The facts about the end.
        read_record: Returns what the run's record tells. It is called only where the facts do not suffice.
        max_signal_ends: After this number of ends by a signal a run has failed; None: never.
        trains_here: Whether the run is our own training. It ends with 0 only when it has finished, and with
            EXIT_UNSUITABLE before it has trained.
        has_lost_driver: Whether the end was not observed because the driver that executed the run was killed.

    Returns:
        The state, PREEMPTED if the run has to continue; and whether the end counts as one by a signal that
        the sweep did not send.
    """
    if run.is_stopped_early:
        return RunState.STOPPED, False
    if end.exit_code == 0 and (trains_here or end.asked_at is None):
        return RunState.FINISHED, False
    if trains_here and end.exit_code == EXIT_UNSUITABLE:
        return RunState.PREEMPTED, False
    is_by_signal = end.exit_code is None or end.is_by_signal
    # The signal may have come between the end of the record and the end of the process.
    may_have_finished = is_by_signal or end.exit_code == 0
    if may_have_finished and _has_finished(run, end, read_record(), trains_here=trains_here):
        return RunState.FINISHED, False
    if end.exit_code == 0:  # of another program that was interrupted
        return RunState.PREEMPTED, False
    if has_lost_driver or end.asked_by in (DRIVER, SCHEDULER) or _is_preempting(run, end, read_record):
        return RunState.PREEMPTED, False
    if is_by_signal:
        is_last = max_signal_ends is not None and run.signal_ends + 1 >= max_signal_ends
        return RunState.FAILED if is_last else RunState.PREEMPTED, True
    return RunState.FAILED, False


def _has_finished(run: SweepRun, end: RunEnd, record: RecordEnd, *, trains_here: bool) -> bool:
    """Return whether the record of this start says that the run finished.

    That of another program must have been complete before the program was asked to end.
    """
    if record.exit_code != 0:
        return False
    asked_at = math.inf if end.asked_at is None or trains_here else end.asked_at
    return run.queued_at <= record.written_at <= asked_at + CLOCK_TICK_SECONDS


def _is_preempting(run: SweepRun, end: RunEnd, read_record: Callable[[], RecordEnd]) -> bool:
    """Return whether the program asked to be started again, as W&B's server would do."""
    if end.exit_code is None:
        return False
    record = read_record()
    return record.is_preempting and run.queued_at <= record.written_at


def reconcile(
    runs: Iterable[SweepRun],
    alive: Alive,
    facts: Facts,
    max_signal_ends: int | None = MAX_SIGNAL_ENDS,
    *,
    trains_here: bool = False,
    has_lost_driver: bool,
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
        max_signal_ends: As in `state_of_end`.
        trains_here: As in `state_of_end`.
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
        is_seen = known is not None and known.exit_code is not None
        is_alive = run.index in alive
        if is_alive and not is_seen:
            if not is_running:
                changes.append(RunChange(run, RunState.RUNNING, process=alive[run.index]))
            continue
        end = known or RunEnd()
        is_lost = not is_seen and has_lost_driver and "job" not in run.process
        state, by_signal = state_of_end(
            run,
            end,
            partial(facts.record, run),
            max_signal_ends,
            trains_here=trains_here,
            has_lost_driver=is_lost,
        )
        if not is_running:
            # Facts of the next start mean that it has begun. Without them, its record may have a good end.
            if known is None and state is not RunState.FINISHED:
                continue
            changes.append(RunChange(run, RunState.RUNNING, process=alive.get(run.index, {})))
        is_interrupted = state in (RunState.PREEMPTED, RunState.STOPPED) and not by_signal
        if not (is_alive and is_interrupted):  # else it goes on
            changes.append(RunChange(run, state, end, by_signal))
    return changes
