from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from ampcompare.records.run import NAMELESS, RunRecord, columns_of, merge


def fragment(hour: int, columns: dict, **fields) -> RunRecord:
    """A part of a run; None is nothing, NaN was logged."""
    count = max((len(values) for values in columns.values()), default=0)
    rows, logged = columns_of({name: values[n] for name, values in columns.items()} for n in range(count))
    given = {
        "paths": (Path(f"offline-run-{hour:02}/run-x.wandb"),),
        "id": "x",
        "state": "finished",
        "started_at": datetime(2026, 1, 1, hour, tzinfo=UTC),
        "logged": logged,
        "rows": rows,
    }
    return RunRecord(**(given | fields))


def steps(run: RunRecord) -> list[float]:
    return list(run.numbers("global_step"))


def test_later_fragment_wins_from_its_first_step_on():
    early = fragment(1, {"global_step": [0, 10, 20, 30], "a": [1, 1, 1, 1]}, state="crashed")
    late = fragment(2, {"global_step": [20, 30, 40], "a": [2, 2, 2]})
    run = merge([late, early])  # in the order of starting, not of being given
    assert steps(run) == [0, 10, 20, 30, 40]
    assert list(run.values("a")) == [1, 1, 2, 2, 2]
    assert run.state == "finished"
    assert run.problems == ["2 rows were logged again by a later part of the run; the later ones count."]


NAN = float("nan")


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([[0, 10, 20], [20, 30], [10, 20]], [0, 10, 20]),  # the third goes back beyond both
        ([[0, 5, 5, 10], [10, 10]], [0, 5, 5, 10, 10]),
        ([[None, 0, NAN, 10, None], [10]], [None, 0, NAN, 10]),  # a row without a step is of the one before
        ([[0, 10], [None]], [0, 10, None]),
    ],
)
def test_the_last_part_that_logged_a_step_has_its_rows(parts: list[list], kept: list):
    run = merge([fragment(n, {"global_step": steps, "a": steps}) for n, steps in enumerate(parts)])
    np.testing.assert_array_equal(steps(run), [NAN if step is None else step for step in kept])


def test_columns_of_one_fragment_alone_are_missing_in_the_other():
    run = merge([fragment(1, {"global_step": [0], "a": [1]}), fragment(2, {"global_step": [1], "b": ["x"]})])
    assert list(run.history["b"]) == [None, "x"]
    assert np.isnan(run.numbers("a")[1])
    assert np.isnan(run.numbers("b")).all()


def test_config_and_summary_of_the_later_fragment_win_and_a_change_is_told():
    early = fragment(1, {}, config={"lr": 0.1, "seed": 1}, summary={"a": 1, "b": 1})
    late = fragment(2, {}, config={"lr": 0.2, "seed": 1}, summary={"b": 2})
    run = merge([early, late])
    assert run.config == {"lr": 0.2, "seed": 1}
    assert run.summary == {"a": 1, "b": 2}
    assert run.problems == ["Its parts differ in config: lr; the later values are shown."]


def test_fragment_killed_at_once_leaves_name_and_config_of_the_one_before():
    early = fragment(1, {"global_step": [0]}, name="n", config={"backend": "none"}, tags=("t",))
    torn = fragment(2, {}, is_named=False, state="crashed", started_at=None, last_write=datetime.now(UTC))
    run = merge([early, torn])
    assert (run.name, run.state, run.config, run.tags) == ("n", "crashed", {"backend": "none"}, ("t",))


def test_problems_name_their_fragment_when_there_are_several():
    parts = [fragment(1, {}, problems=["Torn."]), fragment(2, {})]
    assert merge(parts).problems == ["offline-run-01: Torn."]
    assert merge(parts[:1]).problems == ["Torn."]


def test_fragment_killed_before_its_first_write_is_no_problem_where_another_names_the_run():
    lost = {
        "is_named": False,
        "started_at": None,
        "last_write": datetime.now(UTC),
    }
    assert merge([fragment(1, {}), fragment(2, {}, **lost)]).problems == []
    assert merge([fragment(1, {}), fragment(2, {"global_step": [1]}, **lost)]).problems == [
        f"offline-run-02: {NAMELESS}"
    ]
    assert merge([fragment(1, {}, **lost)]).problems == [NAMELESS]


def test_summary_number_unwraps_what_define_metric_makes():
    run = merge([fragment(1, {}, summary={"m": {"max": 3}, "n": True, "t": "x", "huge": 10**400, "i": 2})])
    assert [run.summary_number(key) for key in ("m", "n", "t", "huge", "i", "absent")] == [
        3,
        None,
        None,
        math.inf,
        2,
        None,
    ]
