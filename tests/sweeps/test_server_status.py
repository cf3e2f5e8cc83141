"""The status of a sweep on W&B's server: which point a run is, by the values in its config."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from support.wandb_server import Server, Sweep
from support.wandb_server.clients import asking

from ampcompare.errors import UserError
from ampcompare.sweeps.prepare import SweepOptions
from ampcompare.sweeps.status import EXIT_INCOMPLETE, SweepStatus, read_status, rerun

PROGRAM = {"program": "p", "method": "grid"}


@pytest.fixture
def status(wandb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return the status of a sweep on the server whose runs have these configs and states."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").touch()
    project = wandb_server.project("tester", "p")

    def made(parameters: dict[str, Any], *runs: tuple[dict[str, Any], str], **changes: Any) -> SweepStatus:
        text = yaml.safe_dump({**PROGRAM, "parameters": parameters, **changes}, sort_keys=False)
        name = f"s{len(project.sweeps) or ''}"
        sweep = project.sweeps[name] = Sweep(name, project, text)
        for number, (config, state) in enumerate(runs):
            run = project.run(f"r{number}")
            run.sweep, run.config, run.state = sweep, config, state
            run.created = f"2026-01-01T{number:02}:00:00Z"
            run.summary = {"score": 1.0}
        return read_status(f"wandb:tester/p/{name}", [], SweepOptions())

    with asking(wandb_server, tmp_path / "client"):
        yield made


def finished(of: SweepStatus, key: str = "x") -> list[Any]:
    """Return the values of the finished points."""
    return [run.parameters[key] for run in of.points if run.state == "finished"]


def test_a_value_is_known_by_what_it_reads_as(status, subtests: pytest.Subtests):
    for values, recorded, value in [
        ((0.1, "1e-3"), 0.001, "1e-3"),  # YAML reads 1e-3 as a text, the program as a number
        ((1, True), True, True),
        ((1, True), 1, 1),
        ((True, False), "False", False),
        ((None, "x"), "null", None),
        (([1, 2], [2, 1]), "[2, 1]", [2, 1]),
        ((0.3, 0.4), 0.1 + 0.2, 0.3),
    ]:
        with subtests.test(values=values, recorded=recorded):
            (one,) = finished(status({"x": {"values": [*values]}}, ({"x": recorded}, "finished")))
            assert (type(one), one) == (type(value), value)
    assert not finished(status({"x": {"values": ["a", "b"]}}, ({"x": "c"}, "finished")))
    names = {"precision.keep_fp32": {"values": ["fc,bn", "fc"]}}  # a set has no order
    config = {"precision": {"keep_fp32": ["bn", "fc"]}}
    assert finished(status(names, (config, "finished")), "precision.keep_fp32") == ["fc,bn"]
    nested = {"optimizer": {"parameters": {"lr": {"values": [0.1, 0.2]}}}}
    for config in ({"optimizer": {"lr": 0.2, "name": "sgd"}}, {"optimizer.lr": 0.2}):
        assert finished(status(nested, (config, "finished")), "optimizer") == [{"lr": 0.2}]


def test_the_run_that_is_done_tells_and_else_the_newest_and_points_of_the_same_values_have_one_each(status):
    x = {"x": {"values": [1, 2, 3, 3, 4, 5]}}
    states = [
        (1, "finished"),
        (1, "failed"),
        (1, "running"),
        (2, "failed"),
        (2, "preempted"),
        (3, "finished"),
        (4, "finished"),
        (9, "finished"),
        (5, "running"),
    ]
    found = status(x, *(({"x": value}, state) for value, state in states))
    assert found.summary == "s: 6 points: 3 finished, 1 running, 1 preempted, 1 queued"
    assert [*found.remarks] == ["1 run of this sweep matches none of its points (such as r7)"]
    (queued,) = (run for run in found.points if run.state == "queued")
    assert queued.parameters == {"x": 3}


def test_draws_of_the_server_are_counted_and_not_run_here(status, tmp_path, capsys):
    x = {"x": {"min": 0.0, "max": 1.0}}
    found = status(x, ({"x": 0.3}, "finished"), ({"x": 0.4}, "failed"), method="random", run_cap=3)
    assert found.summary == "s: 3 points: 1 finished, 1 failed, 1 queued"
    with pytest.raises(UserError, match="W&B's server chooses the points of this search"):
        rerun("wandb:tester/p/s", [], Console(), SweepOptions())
    assert "has no end" in " ".join(status(x, method="random").remarks)


def test_a_point_that_runs_elsewhere_is_not_started_here_as_well(status, tmp_path):
    states = ("finished", "running", "failed")
    values = {"x": {"values": [1, 2, 3]}}
    status(values, *(({"x": number}, state) for number, state in enumerate(states, 1)))
    assert rerun("wandb:tester/p/s", [], Console(), SweepOptions()) == EXIT_INCOMPLETE
    assert len([*tmp_path.glob("runs/*/logs/*")]) == 1  # of the one that failed
