"""The driver under any order of events: starts, ends, signals, lost jobs, stops, killed drivers.

Faults are planted in the driver, and each of them is found.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.properties import examples
from support.simulated_sweep import SERIES, STEPS, SWEEP, Simulation

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Situation
from ampcompare.sweeps.driver import SweepDriver
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_end import RunChange
from ampcompare.sweeps.sweep import Sweep

ORDER = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=20, max_size=60)


def orders_of_events(
    kind: str, driver_type: type[SweepDriver] = SweepDriver, sweep: Sweep = SWEEP, orders: int = 1_000
) -> Callable[[], None]:
    """Return a test that plays many orders of events, without shrinking the one that fails."""

    @settings(max_examples=orders, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(steps=ORDER)
    def play(steps: list[tuple[str, int]]) -> None:
        Simulation(kind, driver_type, sweep).play(steps)

    return play


@examples(40, 1_000)
@pytest.mark.parametrize("kind", ["local", "job"])
@pytest.mark.parametrize("sweep", [SWEEP, SERIES], ids=["runs", "groups"])
def test_each_point_ends_once_whatever_happens_in_whatever_order(kind: str, sweep: Sweep, examples: int):
    orders_of_events(kind, sweep=sweep, orders=examples)()


class InterruptedRunsAreNotStartedAgain(SweepDriver):
    def train(self, groups: Sequence[Sequence[int]]) -> list[list[SweepRun]]:
        known = set(self.journal.state.runs)
        return super().train([group for group in groups if not known & {*group}])


class ASecondStopRequestKillsNothing(SweepDriver):
    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        super().cancel(runs)


class EndsByASignalAreNotCounted(SweepDriver):
    """A run that always dies is then started for ever, or fails too late."""

    def note_change(self, change: RunChange) -> None:
        if change.by_signal:
            change = replace(change, by_signal=False, state=RunState.PREEMPTED)
        super().note_change(change)


class TheValueOfAFinishedRunIsLost(SweepDriver):
    def note_change(self, change: RunChange) -> None:
        if change.state is not RunState.FINISHED:
            super().note_change(change)
            return
        run = self.journal.state.runs[change.run.index]
        self.journal.end(run, change.state, None, 0, by_signal=False)


class ARunThatWaitsInAProcessIsStartedInAnother(SweepDriver):
    def situation(self) -> Situation:
        return replace(super().situation(), assigned=())


FAULTS = (
    (InterruptedRunsAreNotStartedAgain, SWEEP),
    (ASecondStopRequestKillsNothing, SWEEP),
    (EndsByASignalAreNotCounted, SWEEP),
    (TheValueOfAFinishedRunIsLost, SWEEP),
    (ARunThatWaitsInAProcessIsStartedInAnother, SERIES),
)


@pytest.mark.slow
def test_a_fault_in_the_driver_is_found(subtests: pytest.Subtests):
    for fault, sweep in FAULTS:
        with subtests.test(fault=fault.__name__), pytest.raises(AssertionError):
            orders_of_events("job", fault, sweep)()
