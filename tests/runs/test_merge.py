"""The parts of a run, one for each resume, become one run."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from ampcompare.runs.run_record import NAMELESS, RunRecord, build_columns, merge_parts

NAN = float("nan")
LOST = {"is_named": False, "started_at": None, "last_write": datetime.now(UTC), "state": "failed"}


def part(hour: int, columns: dict | None = None, **fields) -> RunRecord:
    """Return a part of a run. None is no value; NaN was logged."""
    columns = columns or {}
    count = max((len(values) for values in columns.values()), default=0)
    rows, logged = build_columns({name: values[n] for name, values in columns.items()} for n in range(count))
    fields_of_part = {
        "paths": (Path(f"offline-run-{hour:02}/run-x.wandb"),),
        "id": "x",
        "state": "finished",
        "started_at": datetime(2026, 1, 1, hour, tzinfo=UTC),
        "logged": logged,
        "rows": rows,
    }
    return RunRecord(**(fields_of_part | fields))


def test_a_later_part_replaces_rows_from_its_first_step_on():
    early = part(1, {"global_step": [0, 10, 20, 30], "a": [1, 1, 1, 1], "b": ["x"] * 4}, state="failed")
    late = part(2, {"global_step": [20, 30, 40], "a": [2, 2, 2]})
    run = merge_parts([late, early])  # in the order of starting, not of being given
    assert run.numbers("global_step").tolist() == [0, 10, 20, 30, 40]
    assert run.values("a").tolist() == [1, 1, 2, 2, 2]
    assert run.history["b"].tolist() == ["x", "x", None, None, None]
    assert np.isnan(run.numbers("b")).all()
    assert run.state == "finished"
    assert run.problems == ["2 rows were logged twice because the run was resumed; the later rows count."]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[0, 10, 20], [20, 30], [10, 20]], [0, 10, 20]),  # the third goes back beyond both
        ([[0, 5, 5, 10], [10, 10]], [0, 5, 5, 10, 10]),
        ([[None, 0, NAN, 10, None], [10]], [None, 0, NAN, 10]),  # a row without a step is of the one before
        ([[0, 10], [None]], [0, 10, None]),
    ],
)
def test_each_step_has_the_rows_of_the_last_part_that_logged_it(parts: list[list], expected: list):
    run = merge_parts([part(n, {"global_step": steps, "a": steps}) for n, steps in enumerate(parts)])
    np.testing.assert_array_equal(
        run.numbers("global_step"), [NAN if step is None else step for step in expected]
    )


def test_later_config_and_summary_win_and_a_change_is_a_problem():
    process = [{"run": {"process": name, "position_in_process": n}} for n, name in enumerate("ab", start=1)]
    early = part(1, config={"lr": 0.1} | process[0], summary={"a": 1, "b": 1}, problems=["Torn."])
    late = part(2, config={"lr": 0.2} | process[1], summary={"b": 2})
    run = merge_parts([early, late])
    assert run.config == {"lr": 0.2} | process[1]
    assert run.summary == {"a": 1, "b": 2}
    change = "Its parts differ in config: lr; the later values are shown."  # another process is no change
    assert run.problems == ["offline-run-01: Torn.", change]


def test_a_part_without_any_record_is_no_problem_if_another_names_the_run():
    early = part(1, {"global_step": [0]}, name="n", config={"backend": "none"}, tags=("t",))
    run = merge_parts([early, part(2, **LOST)])
    assert (run.name, run.state, run.config, run.tags) == ("n", "failed", {"backend": "none"}, ("t",))
    assert run.problems == []
    problems = [f"offline-run-02: {NAMELESS}"]
    assert merge_parts([early, part(2, {"global_step": [1]}, **LOST)]).problems == problems
    assert merge_parts([part(1, **LOST)]).problems == [NAMELESS]
