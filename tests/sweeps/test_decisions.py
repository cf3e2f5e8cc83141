"""The driver's decisions under any order of events: starts, ends, signals, lost jobs, stops, killed drivers.

Thirteen faults are planted in the decision function, and each of them is found.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.simulated_sweep import SERIES, STEPS, SWEEP, Decide, Simulation

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Append, Cancel, Propose, RunChanged, SlotsFree, Start, decide
from ampcompare.sweeps.sweep import Sweep

ORDERS = 1_000
ORDER = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=20, max_size=60)


def orders_of_events(kind: str, decision: Decide = decide, sweep: Sweep = SWEEP) -> Callable[[], None]:
    """Return a test that plays many orders of events, without shrinking the one that fails."""

    @settings(max_examples=ORDERS, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(steps=ORDER)
    def play(steps: list[tuple[str, int]]) -> None:
        Simulation(kind, decision, sweep).play(steps)

    return play


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "job"])
def test_each_point_ends_once_whatever_happens_in_whatever_order(kind):
    orders_of_events(kind)()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "job"])
def test_each_run_of_a_process_ends_once_whatever_happens_in_whatever_order(kind):
    orders_of_events(kind, sweep=SERIES)()


def changed_fields(actions, event, **fields):
    """Return the actions with other fields of the journal's event."""
    return [
        replace(action, fields=action.fields | fields)
        if isinstance(action, Append) and action.event == event
        else action
        for action in actions
    ]


def an_interrupted_run_is_not_started_again(situation, event):
    known = set(situation.state.runs)
    actions = decide(situation, event)
    return [
        replace(action, groups=tuple(group for group in action.groups if not known & {*group}))
        if isinstance(action, Start)
        else action
        for action in actions
    ]


def one_run_too_many_is_started(situation, event):
    return decide(replace(situation, slots=situation.slots + 1), event)


def runs_start_after_a_stop_request(situation, event):
    return decide(replace(situation, is_stopping=False), event)


def a_second_stop_request_kills_nothing(situation, event):
    actions = decide(situation, event)
    return [replace(a, at_once=False) if isinstance(a, Cancel) else a for a in actions]


def a_stop_request_reaches_the_first_run_alone(situation, event):
    actions = decide(situation, event)
    return [replace(a, indices=a.indices[:1]) if isinstance(a, Cancel) else a for a in actions]


def ends_by_a_signal_are_not_counted(situation, event):
    """A run that always dies is then started for ever, or fails too late."""
    if isinstance(event, RunChanged) and event.change.by_signal:
        change = replace(event.change, by_signal=False, state=RunState.PREEMPTED)
        return decide(situation, replace(event, change=change))
    return decide(situation, event)


def a_failed_run_is_started_again(situation, event):
    if isinstance(event, RunChanged) and event.change.exit_code == 3:
        event = replace(event, change=replace(event.change, state=RunState.PREEMPTED))
    return decide(situation, event)


def the_last_bands_of_an_ended_run_are_not_seen(situation, event):
    actions = decide(situation, event)
    is_end = isinstance(event, RunChanged)
    return [a for a in actions if not (is_end and isinstance(a, Append) and a.event == "band")]


def a_run_that_falls_behind_is_not_cancelled(situation, event):
    actions = decide(situation, event)
    has_band = any(isinstance(action, Append) and action.event == "band" for action in actions)
    return [a for a in actions if not (has_band and isinstance(a, Cancel))]


def a_run_that_is_continued_gets_a_new_id(situation, event):
    actions = decide(situation, event)
    if isinstance(event, SlotsFree) and situation.state.startable and actions:
        return [Propose(situation.state.startable[0].index), *actions]
    return actions


def the_value_of_a_finished_run_is_lost(situation, event):
    return changed_fields(decide(situation, event), "ended", value=None)


def an_end_is_written_twice(situation, event):
    actions = decide(situation, event)
    return [*actions, *(a for a in actions if isinstance(a, Append) and a.event == "ended")]


FAULTS = (
    an_interrupted_run_is_not_started_again,
    one_run_too_many_is_started,
    runs_start_after_a_stop_request,
    a_second_stop_request_kills_nothing,
    a_stop_request_reaches_the_first_run_alone,
    ends_by_a_signal_are_not_counted,
    a_failed_run_is_started_again,
    the_last_bands_of_an_ended_run_are_not_seen,
    a_run_that_falls_behind_is_not_cancelled,
    a_run_that_is_continued_gets_a_new_id,
    the_value_of_a_finished_run_is_lost,
    an_end_is_written_twice,
)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_decisions_is_found(fault):
    with pytest.raises(AssertionError):
        orders_of_events("job", fault)()


def a_run_that_waits_in_a_process_is_started_in_another(situation, event):
    return decide(replace(situation, assigned=()), event)


@pytest.mark.slow
def test_a_fault_in_the_decisions_about_several_runs_in_a_process_is_found():
    with pytest.raises(AssertionError):
        orders_of_events("job", a_run_that_waits_in_a_process_is_started_in_another, SERIES)()
