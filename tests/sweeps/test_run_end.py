"""What the end of a run means, and what a driver concludes from the facts that are left."""

import pytest

from ampcompare.errors import EXIT_UNSUITABLE
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import CLOCK_TICK_SECONDS, GUARD
from ampcompare.sweeps.run_end import (
    DRIVER,
    NOT_STARTED,
    RecordEnd,
    RunEnd,
    exit_code_of,
    state_of_end,
)

FINISHED, FAILED = (RunState.FINISHED, False), (RunState.FAILED, False)
PREEMPTED, BY_SIGNAL = (RunState.PREEMPTED, False), (RunState.PREEMPTED, True)
QUEUED_AT = 100.0


@pytest.mark.parametrize(
    ("end", "record", "expected"),
    [
        # A signal after the record was complete: the run has finished, and the signal does not count.
        (RunEnd(-9), RecordEnd(0, 150.0), FINISHED),
        (RunEnd(-9, asked_at=150.0, asked_by=GUARD), RecordEnd(0, 150.0), FINISHED),
        (RunEnd(-15, 150.0, DRIVER), RecordEnd(0, 150.0 + CLOCK_TICK_SECONDS), FINISHED),
        # The record is of an earlier start, or was completed after the request, or has another end.
        (RunEnd(-9), RecordEnd(0, QUEUED_AT - 0.5), BY_SIGNAL),
        (RunEnd(-15, 150.0, DRIVER), RecordEnd(0, 151.0), PREEMPTED),
        (RunEnd(-9), RecordEnd(None, 150.0), BY_SIGNAL),
        # Who asked: an end that the sweep or the scheduler caused does not count against the run.
        (RunEnd(3, 150.0, DRIVER), RecordEnd(), PREEMPTED),
        (RunEnd(-9, 150.0, GUARD), RecordEnd(), BY_SIGNAL),
        (RunEnd(3, 150.0, GUARD), RecordEnd(), FAILED),
        (RunEnd(None), RecordEnd(), BY_SIGNAL),
        # Exit code 0 of a program that was asked to end is no end.
        (RunEnd(0), RecordEnd(), FINISHED),
        (RunEnd(0, 150.0, DRIVER), RecordEnd(), PREEMPTED),
        (RunEnd(0, 150.0, DRIVER), RecordEnd(0, 151.0), PREEMPTED),
        (RunEnd(0, 150.0, DRIVER), RecordEnd(0, 149.0), FINISHED),  # the request came as it ended
        (RunEnd(0, 0.0, GUARD), RecordEnd(), PREEMPTED),
        # `mark_preempting` of this start, of an earlier one, and of an end that nobody has seen.
        (RunEnd(1), RecordEnd(1, QUEUED_AT, is_preempting=True), PREEMPTED),
        (RunEnd(1), RecordEnd(1, QUEUED_AT - 0.5, is_preempting=True), FAILED),
        (RunEnd(None), RecordEnd(1, 150.0, is_preempting=True), BY_SIGNAL),
        # A crash of its own, and a process that could not be started.
        (RunEnd(-11), RecordEnd(), FAILED),
        (RunEnd(NOT_STARTED), RecordEnd(0, 150.0), FAILED),
    ],
)
def test_an_end_means(end: RunEnd, record: RecordEnd, expected: tuple[RunState, bool]):
    run = SweepRun(0, "r0", state=RunState.RUNNING, starts=1, queued_at=QUEUED_AT)
    assert state_of_end(run, end, lambda: record) == expected


@pytest.mark.parametrize(
    ("end", "record", "expected"),
    [
        # It ends with 0, and completes a good record, only when it has finished.
        (RunEnd(0, 150.0, DRIVER), RecordEnd(), FINISHED),
        (RunEnd(-9, 150.0, GUARD), RecordEnd(0, 200.0), FINISHED),
        (RunEnd(None, 150.0, GUARD), RecordEnd(0, 200.0), FINISHED),
        (RunEnd(-9, 150.0, GUARD), RecordEnd(0, QUEUED_AT - 0.5), BY_SIGNAL),
        # A machine that lacks something has not trained it.
        (RunEnd(EXIT_UNSUITABLE), RecordEnd(), PREEMPTED),
    ],
)
def test_an_end_of_our_own_training_means(end: RunEnd, record: RecordEnd, expected: tuple[RunState, bool]):
    run = SweepRun(0, "r0", state=RunState.RUNNING, starts=1, queued_at=QUEUED_AT)
    assert state_of_end(run, end, lambda: record, trains_here=True) == expected


def test_the_last_allowed_end_by_a_signal_fails_and_without_a_limit_none_does():
    ended = {}
    for limit in (1, 3, None):
        for before in (0, 1, 2, 50):
            run = SweepRun(0, "r0", starts=1, signal_ends=before)
            state, by_signal = state_of_end(run, RunEnd(-9), RecordEnd, limit)
            assert by_signal
            ended[limit, before] = state is RunState.FAILED
    failed = [(1, 0), (1, 1), (1, 2), (1, 50), (3, 2), (3, 50)]
    assert [key for key, has_failed in ended.items() if has_failed] == failed


@pytest.mark.parametrize(
    ("returncode", "exit_code", "is_by_signal"),
    [
        *[(-9, -9, True), (137, -9, True), (143, -15, True), (140, -12, True)],
        *[(0, 0, False), (-11, -11, False), (139, 139, False), (128, 128, False)],
    ],
)
def test_an_exit_code_has_one_form_and_a_signal_of_an_end_comes_from_outside_the_program(
    returncode: int, exit_code: int, is_by_signal: bool
):
    end = RunEnd(exit_code_of(returncode))
    assert (end.exit_code, end.is_by_signal) == (exit_code, is_by_signal)
