"""Which point of a sweep a run is, by the values in its config, whoever wrote them there."""

from __future__ import annotations

import math

import pytest

from ampcompare.sweeps.holes.grid import Grid, GridPoint
from ampcompare.sweeps.holes.standing import Attempt, State, holes_of


def grid(key, *values):
    return Grid("s", (key,), tuple(GridPoint(n, {key: value}) for n, value in enumerate(values)))


def test_a_value_is_known_by_its_type_and_else_by_what_it_reads_as(subtests: pytest.Subtests):
    for values, recorded, found in [
        ((0.1, "1e-3"), 0.001, [1]),  # YAML reads 1e-3 as a text, the program as a number
        ((0.1, 0.001), "1e-3", [1]),
        ((1, 2), 1.0, [0]),
        ((1, True), True, [1]),
        ((1, True), 1, [0]),
        ((True, False), "False", [1]),
        ((None, "none"), "none", [1]),
        ((None, "x"), "None", [0]),
        (([1, 2], [2, 1]), "[2, 1]", [1]),
        (([1, 2], [2, 1]), [1.0, 2.0], [0]),
        (({"a": 1}, {"a": 2}), {"a": 2}, [1]),
        ((0.3, 0.4), 0.1 + 0.2, [0]),
        (("a", "b"), "c", []),
        ((1, "1"), "1", [1]),
        ((math.nan, 1.0), "nan", [0]),
        ((10**400, 1), 10**400, [0]),
        (("[1, 2", "b"), "[1, 2", [0]),
    ]:
        with subtests.test(values=values, recorded=recorded, found=found):
            assert grid("x", *values).candidates({"x": recorded})[0] == found


def test_nested_parameters_are_found_in_groups_and_under_dotted_names():
    points = grid("optimizer.lr", 0.1, 0.2)
    assert points.candidates({"optimizer": {"lr": 0.2, "name": "sgd"}})[0] == [1]
    assert points.candidates({"optimizer.lr": 0.1})[0] == [0]


def test_a_place_tells_only_where_no_value_contradicts_it():
    points = grid("optimizer.fused", None, True)
    assert points.candidates({"optimizer": {"fused": False}, "plan": {"place": 0}})[0] == [0]
    assert points.candidates({"optimizer": {"fused": False}, "plan": {"place": 1}})[0] == []
    assert points.candidates({"plan": {"place": 7}})[0] == []
    assert points.candidates({"plan": {"place": True}})[0] == []


def test_the_control_is_told_from_the_baseline_of_the_same_values():
    same = {"backend": "none"}
    points = (GridPoint(0, same, "first"), GridPoint(1, same), GridPoint(2, same, "last"))
    told = Grid("s", ("backend",), points)
    assert told.candidates({"backend": "none", "plan": {"arm": "last"}})[0] == [2]
    assert told.candidates({"backend": "none"})[0] == [1]


def test_points_of_the_same_values_each_need_a_run_of_their_own():
    twice = grid("x", 1, 1)
    one = holes_of(twice, [Attempt("a", State.FINISHED, config={"x": 1})])
    assert [standing.state for standing in one.standings] == [State.FINISHED, State.MISSING]
    both = [Attempt(name, State.FINISHED, config={"x": 1}) for name in "ab"]
    assert holes_of(twice, both).is_whole


def test_the_run_that_is_done_tells_and_else_the_newest():
    def state(*attempts):
        tried = [Attempt(str(n), s, config={"x": 1}, began=n) for n, s in enumerate(attempts)]
        return holes_of(grid("x", 1), tried).standings[0].state

    assert state(State.FINISHED, State.FAILED) is State.FINISHED
    assert state(State.EARLY, State.CRASHED) is State.EARLY
    assert state(State.RUNNING, State.FAILED) is State.RUNNING
    assert state(State.FAILED, State.CRASHED) is State.CRASHED
    assert state() is State.MISSING


def test_a_refused_double_says_nothing_of_the_point_that_stands_for_it():
    point = GridPoint(0, {"dtype": "float16"}, others=({"dtype": "bfloat16"},))
    told = Grid("s", ("dtype",), (point,))
    refused = Attempt("a", State.REFUSED, config={"dtype": "bfloat16"})
    assert holes_of(told, [refused]).standings[0].state is State.MISSING
    done = Attempt("b", State.FINISHED, config={"dtype": "bfloat16"})
    assert holes_of(told, [refused, done]).is_whole


def test_a_search_has_the_points_that_it_drew_and_misses_those_it_is_to_draw():
    drawn = [Attempt("a", State.FINISHED, config={"lr": 0.1}), Attempt("b", State.FAILED, config={"lr": 0.2})]
    assert holes_of(Grid("s", ("lr",), None), drawn).not_begun is None
    capped = holes_of(Grid("s", ("lr",), None, planned=5), drawn)
    assert capped.counts == {State.FINISHED: 1, State.FAILED: 1, State.MISSING: 3}


def drawn(state, number, is_draw=False):
    return Attempt(str(number), state, config={"x": 1}, began=number, is_draw=is_draw)


def test_draws_of_a_search_that_coincide_are_a_point_each():
    search = Grid("s", ("x",), None, planned=3)
    assert holes_of(search, [drawn(State.FINISHED, n) for n in range(3)]).is_whole
    going = holes_of(search, [drawn(State.FINISHED, 0), drawn(State.RUNNING, 1)])
    assert going.counts == {State.FINISHED: 1, State.RUNNING: 1, State.MISSING: 1}
    assert going.sentence == "1 of the 3 points of sweep s are done: 1 running, 1 missing."


def test_a_failed_draw_is_no_hole_where_a_repetition_of_it_is_done_and_one_where_it_is_a_draw_of_its_own():
    search = Grid("s", ("x",), None, planned=2)
    again = holes_of(search, [drawn(State.FAILED, 0), drawn(State.FINISHED, 1)])
    assert again.counts == {State.FINISHED: 1, State.MISSING: 1}
    twice = [drawn(State.FAILED, 0, is_draw=True), drawn(State.FINISHED, 1, is_draw=True)]
    assert holes_of(search, twice).counts == {State.FINISHED: 1, State.FAILED: 1}
    assert holes_of(search, [*twice, drawn(State.FINISHED, 2)]).is_whole
