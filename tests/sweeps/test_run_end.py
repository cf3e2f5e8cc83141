"""What the end of a run means, and what a driver concludes from the facts that are left."""

import math

import pytest

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import CLOCK_TICK_SECONDS, GUARD
from ampcompare.sweeps.run_end import (
    DRIVER,
    SCHEDULER,
    EndRules,
    RecordEnd,
    RunChange,
    RunEnd,
    reconcile,
    state_of_end,
)

OTHER, OURS = EndRules(trains_here=False), EndRules(trains_here=True)
FINISHED, FAILED = (RunState.FINISHED, False), (RunState.FAILED, False)
STOPPED, PREEMPTED, BY_SIGNAL = (
    (RunState.STOPPED, False),
    (RunState.PREEMPTED, False),
    (RunState.PREEMPTED, True),
)
QUEUED_AT = 100.0


@pytest.mark.parametrize(
    ("end", "rules", "record", "expected"),
    [
        # A signal after the record was complete: the run has finished, and the signal does not count.
        (RunEnd(-9), OTHER, RecordEnd(0, 150.0), FINISHED),
        (RunEnd(-9), OURS, RecordEnd(0, 150.0), FINISHED),
        (RunEnd(None), OTHER, RecordEnd(0, 150.0), FINISHED),
        (RunEnd(137, asked_at=150.0, asked_by=GUARD), OTHER, RecordEnd(0, 150.0), FINISHED),
        (RunEnd(-15, 150.0, DRIVER), OTHER, RecordEnd(0, 150.0 + CLOCK_TICK_SECONDS), FINISHED),
        # The record is of an earlier start, or was completed after the request, or has another end.
        (RunEnd(-9), OTHER, RecordEnd(0, QUEUED_AT - 0.5), BY_SIGNAL),
        (RunEnd(-9), OURS, RecordEnd(0, QUEUED_AT - 0.5), FINISHED),  # 0 only when it has finished
        (RunEnd(-9), OTHER, RecordEnd(0, QUEUED_AT), FINISHED),
        (RunEnd(-15, 150.0, DRIVER), OTHER, RecordEnd(0, 151.0), PREEMPTED),
        (RunEnd(-9), OURS, RecordEnd(1, 150.0), BY_SIGNAL),
        (RunEnd(-9), OURS, RecordEnd(None, 150.0), BY_SIGNAL),
        # Who asked: an end that the sweep or the scheduler caused does not count against the run.
        (RunEnd(3, 150.0, DRIVER), OTHER, RecordEnd(), PREEMPTED),
        (RunEnd(3, 150.0, SCHEDULER), OURS, RecordEnd(), PREEMPTED),
        (RunEnd(-9, 150.0, GUARD), OTHER, RecordEnd(), BY_SIGNAL),
        (RunEnd(3, 150.0, GUARD), OTHER, RecordEnd(), FAILED),
        (RunEnd(None, has_lost_driver=True), OTHER, RecordEnd(), PREEMPTED),
        (RunEnd(None), OTHER, RecordEnd(), BY_SIGNAL),
        # Exit code 0 of another program that was interrupted is no end.
        (RunEnd(0, 150.0, DRIVER), OTHER, RecordEnd(), PREEMPTED),
        (RunEnd(0, 150.0, DRIVER), OURS, RecordEnd(), FINISHED),
        (RunEnd(0, 0.0, GUARD), OTHER, RecordEnd(), PREEMPTED),
        # `mark_preempting` of this start, of an earlier one, and of an end that nobody has seen.
        (RunEnd(1), OTHER, RecordEnd(1, QUEUED_AT, is_preempting=True), PREEMPTED),
        (RunEnd(1), OTHER, RecordEnd(1, QUEUED_AT - 0.5, is_preempting=True), FAILED),
        (RunEnd(None), OTHER, RecordEnd(1, 150.0, is_preempting=True), BY_SIGNAL),
        # A process that could not be started.
        (RunEnd(None, is_started=False), OTHER, RecordEnd(0, 150.0), FAILED),
    ],
)
def test_an_end_means(end: RunEnd, rules: EndRules, record: RecordEnd, expected: tuple[RunState, bool]):
    run = SweepRun(0, "r0", state=RunState.RUNNING, starts=1, queued_at=QUEUED_AT)
    assert state_of_end(run, end, lambda: record, rules) == expected


def test_the_last_allowed_end_by_a_signal_fails_and_without_a_limit_none_does():
    ended = {}
    for limit in (1, 3, None):
        for before in (0, 1, 2, 50):
            run = SweepRun(0, "r0", starts=1, signal_ends=before)
            state, by_signal = state_of_end(run, RunEnd(-9), RecordEnd, EndRules(False, limit))
            assert by_signal
            ended[limit, before] = state is RunState.FAILED
    assert [key for key, failed in ended.items() if failed] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 50),
        (3, 2),
        (3, 50),
    ]


def test_a_run_that_hyperband_stopped_is_stopped_whatever_its_end():
    run = SweepRun(0, "r0", starts=1, is_stopped_early=True)
    for end in (RunEnd(0), RunEnd(-9), RunEnd(3), RunEnd(None, is_started=False)):
        assert state_of_end(run, end, lambda: RecordEnd(0, math.inf), OTHER) == STOPPED


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        *[(-9, 9), (137, 9), (-15, 15), (143, 15), (130, 2), (-1, 1), (-10, 10), (140, 12)],
        *[(None, None), (0, None), (1, None), (-11, None), (139, None), (128, None), (255, None)],
    ],
)
def test_the_signals_of_an_end_are_those_from_outside_the_program(code: int | None, signal: int | None):
    assert RunEnd(code).signal == signal
    assert RunEnd(code).is_seen is (code is not None)
    assert RunEnd(code, is_started=False).is_seen


class Left:
    """What is left of runs: the facts of their ends and of their records, by index."""

    def __init__(self, ends: dict[int, RunEnd], records: dict[int, RecordEnd]) -> None:
        self.ends, self.records = ends, records

    def end(self, run: SweepRun) -> RunEnd | None:
        return self.ends.get(run.index)

    def record(self, run: SweepRun) -> RecordEnd:
        return self.records.get(run.index, RecordEnd())


RUNNING = SweepRun(0, "r0", state=RunState.RUNNING, starts=1, process={"pid": 7})
ON_SLURM = SweepRun(0, "r0", state=RunState.RUNNING, starts=1, process={"job": "5"})
QUEUED = SweepRun(0, "r0")
WELL = RecordEnd(0, 150.0)


def ended(
    state: RunState, code: int | None = None, *, by_signal: bool = False, lost: bool = False
) -> RunChange:
    return RunChange(0, state, code, by_signal, is_lost=lost)


def started(**process: object) -> RunChange:
    return RunChange(0, RunState.RUNNING, process=process)


@pytest.mark.parametrize(
    ("run", "is_alive", "end", "record", "expected"),
    [
        # A run that the journal has as running.
        (RUNNING, True, None, RecordEnd(), []),
        (RUNNING, True, RunEnd(asked_at=1.0, asked_by=DRIVER), RecordEnd(), []),  # asked, and not yet ended
        (RUNNING, True, RunEnd(0), RecordEnd(), [ended(RunState.FINISHED, 0)]),  # the list is older
        (RUNNING, True, RunEnd(-15, 1.0, SCHEDULER), RecordEnd(), []),  # Slurm has requeued its job
        (RUNNING, True, RunEnd(3), RecordEnd(), [ended(RunState.FAILED, 3)]),
        (RUNNING, True, RunEnd(-9), RecordEnd(), [ended(RunState.PREEMPTED, -9, by_signal=True)]),
        (RUNNING, False, RunEnd(3), RecordEnd(), [ended(RunState.FAILED, 3)]),
        (RUNNING, False, None, RecordEnd(), [ended(RunState.PREEMPTED, lost=True)]),
        (RUNNING, False, None, WELL, [ended(RunState.FINISHED, lost=True)]),
        (ON_SLURM, False, None, RecordEnd(), [ended(RunState.PREEMPTED, by_signal=True, lost=True)]),
        # A run that waits for its start. Its driver may have been killed before it wrote the start down.
        (QUEUED, True, None, RecordEnd(), [started(pid=7)]),
        (QUEUED, True, RunEnd(0), RecordEnd(), [started(pid=7), ended(RunState.FINISHED, 0)]),
        (QUEUED, True, RunEnd(-15, 1.0, DRIVER), RecordEnd(), [started(pid=7)]),
        (QUEUED, False, None, RecordEnd(), []),
        (QUEUED, False, None, WELL, [started(), ended(RunState.FINISHED, lost=True)]),
        (QUEUED, False, RunEnd(3), RecordEnd(), [started(), ended(RunState.FAILED, 3)]),
        # What has ended stays so, and other people's runs are not looked at.
        (SweepRun(0, state=RunState.FAILED, starts=1), False, RunEnd(0), WELL, []),
        (SweepRun(0, state=RunState.FINISHED, starts=1), True, None, WELL, []),
        (SweepRun(0, is_external=True), True, RunEnd(0), WELL, []),
    ],
)
def test_a_driver_concludes(run, is_alive, end, record, expected):
    facts = Left({} if end is None else {0: end}, {0: record})
    alive = {0: {"pid": 7}} if is_alive else {}
    assert reconcile([run], alive, facts, OTHER, has_lost_driver=True) == expected


def test_a_lost_run_counts_as_ended_by_a_signal_only_while_its_driver_lives():
    (change,) = reconcile([RUNNING], {}, Left({}, {}), OTHER, has_lost_driver=False)
    assert change == ended(RunState.PREEMPTED, by_signal=True, lost=True)
