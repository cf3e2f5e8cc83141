"""Holes of a sweep on W&B's server: which point a run is, by the values in its config."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.sweeps import holes as module
from ampcompare.sweeps.holes import Seen, look, see_holes, word_of
from ampcompare.sweeps.run import Request

PROGRAM = {"program": "p", "method": "grid"}


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """The sweep with these parameters as it stands by runs with these configs, states and exit codes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").touch()

    def made(parameters: dict[str, Any], *runs: tuple[dict[str, Any], int | None], **changes: Any) -> Seen:
        records = [
            RunRecord(
                id=f"r{n}",
                state="finished" if code == 0 else "running" if code is None else "failed",
                exit_code=code,
                config=config,
                started_at=datetime(2026, 1, 1, n, tzinfo=UTC),
                summary={"score": 1.0},
            )
            for n, (config, code) in enumerate(runs)
        ]
        content = {**PROGRAM, "parameters": parameters, **changes}
        monkeypatch.setattr(module, "read_server_sweep", lambda source, brief: (content, records))
        return look("wandb:ENTITY/p/s", [], Request())

    return made


def whole(of: Seen, key: str = "x") -> list[Any]:
    """The values of what is finished."""
    return [row.parameters[key] for row in of.rows if word_of(row) == "finished"]


def test_a_value_is_known_by_what_it_reads_as(seen, subtests: pytest.Subtests):
    for values, recorded, value in [
        ((0.1, "1e-3"), 0.001, "1e-3"),  # YAML reads 1e-3 as a text, the program as a number
        ((1, 2), 1.0, 1),
        ((1, True), True, True),
        ((1, True), 1, 1),
        ((True, False), "False", False),
        (("none", "x"), None, "none"),
        ((None, "x"), "null", None),
        (("010", "8"), 10, "010"),
        (([1, 2], [2, 1]), "[2, 1]", [2, 1]),
        (({"a": 1}, {"a": 2}), {"a": 2}, {"a": 2}),
        ((0.3, 0.4), 0.1 + 0.2, 0.3),
        (("[1, 2", "b"), "[1, 2", "[1, 2"),
    ]:
        with subtests.test(values=values, recorded=recorded):
            (one,) = whole(seen({"x": {"values": [*values]}}, ({"x": recorded}, 0)))
            assert (type(one), one) == (type(value), value)
    assert not whole(seen({"x": {"values": ["a", "b"]}}, ({"x": "c"}, 0)))


def test_nested_parameters_are_found_in_groups_and_under_dotted_names(seen):
    nested = {"optimizer": {"parameters": {"lr": {"values": [0.1, 0.2]}}}}
    for config in ({"optimizer": {"lr": 0.2, "name": "sgd"}}, {"optimizer.lr": 0.2}):
        assert whole(seen(nested, (config, 0)), "optimizer") == [{"lr": 0.2}]


def test_the_run_that_is_done_tells_and_else_the_newest_and_points_of_the_same_values_have_one_each(seen):
    x = {"x": {"values": [1, 2, 3, 3, 4, 5]}}
    states = [(1, 0), (1, 1), (1, None), (2, 1), (2, 143), (3, 0), (4, 0), (9, 0), (5, None)]
    found = seen(x, *(({"x": value}, code) for value, code in states))
    assert found.counted == "s: 6 points: 3 finished, 1 running, 1 stopped, 1 missing"
    assert found.remarks == ["1 run of this sweep at none of its points (r7)"]
    (missing,) = (row for row in found.rows if word_of(row) == "missing")
    assert missing.parameters == {"x": 3}


def test_draws_of_the_server_are_counted_and_not_run_here(seen, tmp_path, capsys):
    from rich.console import Console

    x = {"x": {"min": 0.0, "max": 1.0}}
    found = seen(x, ({"x": 0.3}, 0), ({"x": 0.4}, 1), method="random", run_cap=3)
    assert found.counted == "s: 3 points: 1 finished, 1 failed, 1 missing"
    with pytest.raises(UserError, match="of a search only what is in its own database can be run again"):
        see_holes("wandb:ENTITY/p/s", [], Console(), Request(), fill=True, missing=False)
    assert "has no end" in " ".join(seen(x, method="random").remarks)
