"""The protocol of measuring: warm-up, turns, rounds. The clock is moved by the steps themselves."""

from collections.abc import Iterator, Sequence

import pytest
from support.outside import ManualClock, Outside

from ampcompare.system.interleaved_timing import StepTimer, count_steps, run_rounds, seconds_per_turn


class Clock(ManualClock):
    """A clock that only steps move."""

    waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def clock(outside: Outside) -> Clock:
    return outside.stop_clock(Clock())


def timer(clock: Clock, steps: Iterator[tuple[float, bool]], cold_steps: int = 1) -> StepTimer:
    """Return a timer of steps with these seconds, and whether each compiles."""

    def step() -> bool:
        seconds, compiled = next(steps)
        clock.now += seconds
        return compiled

    return StepTimer(step, clock.wait, cold_steps)


@pytest.mark.parametrize(
    ("seconds", "cold_steps", "expected"),
    [
        ([99.0, *[0.5] * 9], 1, 0.5),  # the first step never counts; two warm ones take a second
        ([99.0, 98.0, 97.0, *[0.5] * 9], 3, 0.5),
        ([99.0, 7.0, 1.0], 1, 7.0),  # one warm step of more than a second is enough
        ([9.0, *[0.01] * 5, 0.9, *[0.01] * 6], 1, 0.01),  # a step that other work has delayed
    ],
)
def test_the_warm_up_is_the_median_of_steps_that_are_warm(clock, seconds, cold_steps, expected):
    steps = iter([(value, False) for value in seconds])
    assert timer(clock, steps, cold_steps).warm_up() == pytest.approx(expected)


def test_steps_that_compile_are_not_warm(clock: Clock):
    steps = iter([(9.0, True), (0.25, False), (8.0, True), *[(0.25, False)] * 12])
    assert timer(clock, steps).warm_up() == pytest.approx(0.25)
    assert len([*steps]) == 12 - 3  # after four warm steps a second has passed


def test_the_first_step_of_a_turn_is_not_timed(clock: Clock):
    steps = iter([(50.0, False), (1.0, False), (2.0, False), (6.0, False)])
    assert timer(clock, steps).time_turn(3) == pytest.approx(3.0)
    assert clock.waits == 2  # the clock starts and stops on an idle device


def test_a_turn_has_at_least_one_step_and_all_rounds_fit_into_the_seconds():
    assert [count_steps(0.5, seconds) for seconds in (0.1, 0.3, 7.0)] == [5, 2, 1]
    assert seconds_per_turn(60.0, 3) == pytest.approx(60 / 48 / 3)
    assert seconds_per_turn(60.0, 3, 12) == pytest.approx(60 / 12 / 3)
    assert seconds_per_turn(0.5, 2) == 0.1


class Player:
    """A contestant that notes its turns, each of which takes a second."""

    def __init__(self, clock: Clock, turns: list["Player"], retires_after: int = 1000) -> None:
        self.clock, self.turns, self.left = clock, turns, retires_after

    @property
    def is_active(self) -> bool:
        return self.left > 0

    def take_turn(self, seconds: float) -> None:
        self.clock.now += 1.0
        self.turns.append(self)
        self.left -= 1


def rounds_of(turns: Sequence[Player], size: int) -> list[list[Player]]:
    return [[*turns[start : start + size]] for start in range(0, len(turns), size)]


def test_each_round_has_one_turn_of_each_in_an_order_that_changes(clock: Clock):
    turns: list[Player] = []
    players = [Player(clock, turns) for _ in range(4)]
    run_rounds(players, 1e9, 0.0)
    rounds = rounds_of(turns, 4)
    assert len(rounds) == 48
    assert all({*each} == {*players} for each in rounds)
    assert len({tuple(map(players.index, each)) for each in rounds}) > 1  # by chance all equal: 24**-47
    assert {each[0] for each in rounds} != {players[0]}


def test_rounds_end_with_the_time_and_are_never_cut(clock: Clock):
    for seconds, expected in ((0.0, 1), (6.5, 4)):
        turns: list[Player] = []
        run_rounds([Player(clock, turns), Player(clock, turns)], seconds, 0.0)
        assert len(turns) == 2 * expected


def test_rounds_end_when_there_is_nothing_to_compare(clock: Clock):
    turns: list[Player] = []
    one = Player(clock, turns)
    run_rounds([one, Player(clock, turns, 3), Player(clock, turns, 5)], 1e9, 0.0)
    assert turns.count(one) == 5  # a contestant that retires leaves the others at it
    turns.clear()
    run_rounds([Player(clock, turns, 2), Player(clock, turns), Player(clock, turns)], 1e9, 0.0)
    assert len(turns) == 2 * 3  # without the baseline there is no ratio
    turns.clear()
    run_rounds([Player(clock, turns, 0), Player(clock, turns)], 1e9, 0.0)
    assert not turns


def test_rounds_end_when_they_are_enough(clock: Clock):
    turns: list[Player] = []
    told: list[tuple[int, float]] = []

    def is_enough(number: int, seconds_left: float) -> bool:
        told.append((number, seconds_left))
        return number == 3

    run_rounds([Player(clock, turns), Player(clock, turns)], 5.0, 0.0, is_enough=is_enough)
    assert told == [(1, 3.0), (2, 1.0), (3, 0.0)]
