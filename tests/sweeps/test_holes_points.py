"""Which point of a sweep a run is, by the values in its config, whoever wrote them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ampcompare.sweeps.file import sweep_of
from ampcompare.sweeps.holes.points import Points
from ampcompare.sweeps.prepare import prepared


@pytest.fixture(autouse=True)
def _program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p").touch()


def points(parameters: dict[str, Any], **changes: Any) -> Points:
    content = {"program": "p", "method": "grid", "parameters": parameters}
    ready = prepared(sweep_of(Path("s.yaml"), {**content, **changes}), [])
    return Points(ready.sweep, ready.same, "")


def found(parameters: dict[str, Any], config: dict[str, Any]) -> list[Any]:
    """The values of the points that a run with this config may be."""
    made = points(parameters)
    assert made.rows is not None
    return [made.named(made.rows[number].parameters)[made.keys[0]] for number in made.find(config)]


def test_a_value_is_known_by_its_type_and_else_by_what_it_reads_as(subtests: pytest.Subtests):
    for values, recorded, value in [
        ((0.1, "1e-3"), 0.001, "1e-3"),  # YAML reads 1e-3 as a text, the program as a number
        ((0.1, 0.001), "1e-3", 0.001),
        ((1, 2), 1.0, 1),
        ((1, True), True, True),
        ((1, True), 1, 1),
        ((True, False), "False", False),
        ((None, "x"), "None", None),
        (([1, 2], [2, 1]), "[2, 1]", [2, 1]),
        (([1, 2], [2, 1]), [1.0, 2.0], [1, 2]),
        (({"a": 1}, {"a": 2}), {"a": 2}, {"a": 2}),
        ((0.3, 0.4), 0.1 + 0.2, 0.3),
        ((10**400, 1), 10**400, 10**400),
        (("[1, 2", "b"), "[1, 2", "[1, 2"),
    ]:
        with subtests.test(values=values, recorded=recorded):
            (one,) = found({"x": {"values": [*values]}}, {"x": recorded})
            assert (type(one), one) == (type(value), value)
    assert found({"x": {"values": ["a", "b"]}}, {"x": "c"}) == []


def test_nested_parameters_are_found_in_groups_and_under_dotted_names():
    nested = {"optimizer": {"parameters": {"lr": {"values": [0.1, 0.2]}}}}
    assert found(nested, {"optimizer": {"lr": 0.2, "name": "sgd"}}) == [0.2]
    assert found(nested, {"optimizer.lr": 0.1}) == [0.1]


def test_a_place_tells_only_where_no_value_contradicts_it():
    fused = {"fused": {"values": [None, True]}}
    made = points(fused)
    places = {made.named(row.parameters)["fused"]: row.place for row in made.rows or ()}
    assert found(fused, {"fused": False, "plan": {"place": places[None]}}) == [None]
    assert found(fused, {"fused": False, "plan": {"place": places[True]}}) == []
    for place in (7, -1, True, "0"):
        assert found(fused, {"plan": {"place": place}}) == []


def test_the_control_is_told_from_the_baseline_of_the_same_values():
    parameters = {"backend": {"values": ["none", "native"]}, "plan.control": {"value": "bookends"}}
    made = points(parameters)
    assert made.rows is not None
    arms = [row.plan.get("arm") for row in made.rows]
    assert [arms[n] for n in made.find({"backend": "none", "plan": {"arm": "last"}})] == ["last"]
    assert [arms[n] for n in made.find({"backend": "none"})] == [None]


def test_the_draws_of_a_random_search_are_its_points_and_those_of_others_nobody_knows():
    x = {"x": {"min": 0.0, "max": 1.0}}
    assert points(x, method="random").rows is None
    assert points(x, method="bayes", metric={"name": "a"}, run_cap=3).rows is None
    capped = points(x, method="random", run_cap=3)
    assert capped.rows is not None
    assert [capped.find(row.parameters) for row in capped.rows] == [[0], [1], [2]]
