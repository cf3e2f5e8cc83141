"""Sweeps in which one process trains several seeds: the order of the runs, and what survives a kill."""

import json
import os
import signal
from itertools import groupby
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from support.quick import QUICK
from support.same_run import history
from support.sweep_project import SweepProject
from support.wandb_server.clients import wait_until

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Cancel, Propose, Situation, SlotsFree, Start, StopRequested, decide
from ampcompare.sweeps.journal import SweepState, read_journal
from ampcompare.sweeps.prepare import SweepOptions, prepare
from ampcompare.sweeps.sweep import Sweep

# Each call notes the process. The call with number N waits while a file hold-N exists.
NETWORK = """
import os, time
from pathlib import Path
from torch import nn
HERE = Path(__file__).parent

def build(num_classes):
    with (HERE / "builds").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    number = len((HERE / "builds").read_text().splitlines())
    while (HERE / f"hold-{number}").exists():
        time.sleep(0.02)
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, num_classes))
"""


def write_sweep(folder: Path, *, backends: int = 3, seeds: int = 7, **more: object) -> Path:
    file = folder / "sweep.yaml"
    names = ["none", "native", "native_bf16", "bf16"][:backends]
    content = {
        "program": "run_experiment.py",
        "command": ["${env}", "${interpreter}", "-m", "ampcompare", "run", "${args_no_hyphens}"],
        "method": "grid",
        "name": "many",
        "parameters": {"backend": {"values": names}, "seed": {"values": [*range(1, 1 + seeds)]}},
        **more,
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def sweep_of(tmp_path: Path, per_process: int, *overrides: str, **more: object) -> Sweep:
    file = write_sweep(tmp_path, **more)
    return prepare(str(file), overrides, SweepOptions(seeds_per_process=per_process)).sweep


@pytest.mark.parametrize("per_process", [2, 3, 7, 20])
def test_a_block_has_several_seeds_and_each_backend_trains_them_in_a_row(per_process: int, tmp_path: Path):
    points = sweep_of(tmp_path, per_process).points
    assert len(points) == 21
    rows = [(p.parameters["backend"], p.parameters["seed"], p.block, p.series) for p in points]
    # Each run is there once, and a series is one backend at neighbouring seeds.
    assert len({row[:2] for row in rows}) == 21
    orders = {}
    for _, own in groupby(rows, key=lambda row: row[3]):
        own = [*own]
        (backend,), (block,) = {row[0] for row in own}, {row[2] for row in own}
        seeds = [row[1] for row in own]
        first = 1 + block * per_process
        assert seeds == [*range(first, min(first + per_process, 8))]
        orders.setdefault(block, []).append(backend)
    assert all(sorted(order) == ["native", "native_bf16", "none"] for order in orders.values())


def test_the_order_of_backends_is_random_in_each_block(tmp_path: Path):
    points = sweep_of(tmp_path, 2, seeds=20).points
    orders = {tuple(p.parameters["backend"] for p in points[i : i + 6 : 2]) for i in range(0, 60, 6)}
    assert len(orders) > 2


def test_without_the_option_nothing_about_the_order_changes(tmp_path: Path):
    points, former = sweep_of(tmp_path, 1).points, prepare(str(write_sweep(tmp_path)), ()).sweep.points
    assert [p.parameters for p in points] == [p.parameters for p in former]
    assert [p.series for p in points] == [*range(21)]


def test_a_free_slot_gets_the_runs_of_a_series_that_are_left(tmp_path: Path):
    sweep = sweep_of(tmp_path, 3, backends=2, seeds=5)
    state = SweepState("many", {})

    def note(event: str, **fields: object) -> None:
        state.apply({"event": event, "time": "2026-01-01T00:00:00+00:00", **fields})

    def next_starts(slots: int = 1, assigned: tuple[tuple[int, ...], ...] = ()) -> list[tuple[int, ...]]:
        actions = decide(Situation(state, sweep, slots, assigned=assigned), SlotsFree())
        for action in actions:
            if isinstance(action, Propose):
                parameters = sweep.points[action.index].parameters
                note(
                    "proposed",
                    index=action.index,
                    run_id=f"r{action.index}",
                    parameters=parameters,
                    plan={},
                    drawn={},
                )
        return [runs for action in actions if isinstance(action, Start) for runs in action.groups]

    assert next_starts() == [(0, 1, 2)]
    note("started", index=0, process={})
    # A process lives, also between two runs.
    assert next_starts(assigned=((1, 2),)) == next_starts(assigned=((),)) == []
    assert next_starts(slots=2, assigned=((1, 2),)) == [(3, 4, 5)]
    # A stop request reaches a process between two runs, too.
    (*_, cancel) = decide(Situation(state, sweep, 2, assigned=((1, 2),)), StopRequested())
    assert cancel == Cancel((0, 1, 2))
    # The process has ended with its first run: preempted, it goes on before the others.
    note("ended", index=0, state="preempted", value=None, exit_code=143, by_signal=False)
    assert next_starts() == [(0, 1, 2)]
    note("started", index=0, process={})
    note("ended", index=0, state="failed", value=None, exit_code=1, by_signal=False)
    assert next_starts() == [(1, 2)]


@pytest.mark.parametrize(
    ("options", "more", "why"),
    [
        ({}, {"method": "random"}, "method random draws new values for every run"),
        ({"cluster": "slurm"}, {"method": "random", "run_cap": 3}, "list the values to compare"),
        (
            {},
            {"method": "bayes", "metric": {"name": "eval/loss"}},
            "method bayes chooses each run from the results of earlier runs",
        ),
        ({}, {"seeds": 1}, "has one seed"),
        (
            {},
            {"command": ["python", "-c", "pass", "${args}"]},
            "no training of ampcompare",
        ),
    ],
)
def test_what_cannot_share_a_process_is_refused_in_one_line(options, more, why, tmp_path: Path):
    file = write_sweep(tmp_path, **more)
    with pytest.raises(UserError, match=f"--seeds-per-process 4: .*{why}"):
        prepare(str(file), (), SweepOptions(seeds_per_process=4, **options))


def records_of(folder: Path) -> dict[tuple[str, int], RunRecord]:
    records = load_runs([folder])
    return {(record.config["backend"], record.config["seed"]): record for record in records}


def assert_same_records(one: Path, other: Path, count: int) -> None:
    first, second = records_of(one), records_of(other)
    assert len(first) == count
    assert first.keys() == second.keys()
    own, clock = ("run", "output_dir", "plan"), ("_", "time/", "throughput/", "memory/")
    for key, record in first.items():
        twin = second[key]
        assert record.state == twin.state == "finished"
        pd.testing.assert_frame_equal(history(record), history(twin))
        configs, summaries = (
            [
                json.dumps({k: v for k, v in content.items() if not k.startswith(left_out)}, sort_keys=True)
                for content in contents
            ]
            for contents, left_out in (
                ((record.config, twin.config), own),
                ((record.summary, twin.summary), clock),
            )
        )
        assert configs[0] == configs[1]
        assert summaries[0] == summaries[1]


@pytest.mark.slow
def test_a_killed_process_and_a_killed_driver_lose_no_run(tmp_path: Path):
    project = SweepProject(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    write_sweep(tmp_path, backends=2, seeds=3)
    words = [*(word for word in QUICK if not word.startswith("model.")), "model.name=./net.py:build"]
    words += ["checkpoint.every_epochs=1"]
    builds = tmp_path / "builds"

    def wait_for_build(number: int) -> int:
        """Wait until a network is being built, and return the process."""
        wait_until(lambda: builds.exists() and len(builds.read_text().splitlines()) >= number)
        return int(builds.read_text().splitlines()[number - 1])

    for number in (2, 5):
        (tmp_path / f"hold-{number}").touch()
    driver = project.start("--seeds-per-process", "3", *words)
    process = wait_for_build(2)
    os.kill(process, signal.SIGKILL)
    # The second run goes on in a new process; a run of the second process waits.
    other = wait_for_build(5)
    assert other != process
    state = read_journal(project.out)
    assert state
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    (tmp_path / "hold-5").unlink()
    wait_until(lambda: not psutil.pid_exists(other) or psutil.Process(other).status() == "zombie")
    code, output = project.sweep("--seeds-per-process", "3", *words)
    assert code == 0, output
    state = read_journal(project.out)
    assert state
    assert [run.state for run in state.runs.values()] == [RunState.FINISHED] * 6
    starts = {index: run.starts for index, run in state.runs.items()}
    assert starts[0] == 1
    assert starts[1] == 2

    twin = tmp_path / "twin"
    process_ = project.start(*words, out=twin)
    output, _ = process_.communicate()
    assert process_.returncode == 0, output
    assert_same_records(project.out, twin, 6)
    shared = [record.config["run"]["process"] for record in records_of(project.out).values()]
    assert len(set(shared)) < 6
    assert len({record.config["run"]["process"] for record in records_of(twin).values()}) == 6
