"""Runs read through W&B's API from the stand-in server, and runs that are on disk, too."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import plan
from support.outside import Outside
from support.wandb_files import write_runs
from support.wandb_server import Run, Server, Sweep
from support.wandb_server.clients import asking, environment

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs.metric_definitions import definition_of

SOURCE = "wandb:tester/p"


@pytest.fixture
def server(wandb_server: Server, tmp_path: Path):
    """Yield a server that this process uses."""
    with asking(wandb_server, tmp_path / "client"):
        yield wandb_server


def add_run(server: Server, run_id: str, rows: int = 3, **fields) -> Run:
    """Add a run to the stand-in server."""
    run = server.project("tester", "p").run(run_id)
    run.state = "finished"
    run.rows = {
        step: {"_step": step, "global_step": step, "train/loss": 1 / (1 + step)} for step in range(rows)
    }
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def test_a_run_has_everything_that_the_server_knows(server: Server):
    same = {"name": "a </b> name", "group": "g", "job_type": "train", "notes": "why"}
    add_run(
        server,
        "one",
        config={"backend": "native", "optimizer": {"lr": 1e-05, "x": None}, "_wandb": {"cli": 1}},
        summary={"best/epoch": 2, "nan": "NaN", "deep": {"inf": "Infinity"}, "_wandb": {}},
        tags=["a", "b"],
        **same,
    )
    (run,) = load_runs(SOURCE)
    expected = same | {
        "id": "one",
        "entity": "tester",
        "project": "p",
        "tags": ("a", "b"),
        "config": {"backend": "native", "optimizer": {"lr": 1e-05, "x": None}},
        "exit_code": None,
        "paths": (),
        "problems": [],
    }
    assert {key: getattr(run, key) for key in expected} == expected
    assert math.isnan(run.summary.pop("nan"))
    assert run.summary == {"best/epoch": 2, "deep": {"inf": math.inf}}
    assert run.started_at.utcoffset().total_seconds() == 0


def test_a_long_history_is_complete_and_equals_that_of_a_file(server: Server):
    add_run(server, "long", rows=2345)
    add_run(server, "odd").rows = {
        0: {"_step": 0, "a": "NaN", "deep": {"b": {"c": 1}}},
        1: {"_step": 1, "a": "-Infinity", "text": "x"},
        5000: {"_step": 5000, "a": 2, "list": [1, "NaN"]},
    }
    long, odd = load_runs([SOURCE])
    assert long.history["global_step"].tolist() == [*range(2345)]
    assert odd.history["_step"].tolist() == [0, 1, 5000]
    assert odd.values("a").tolist() == [-math.inf, 2.0]
    assert odd.nonfinite("a").tolist() == [0, 1]
    assert odd.values("deep.b.c").tolist() == [1]
    assert odd.history["text"].tolist() == [None, "x", None]


def test_each_state_of_the_server_maps_to_one_of_ours(server: Server):
    states = {
        **{said: said for said in ("finished", "failed", "running")},
        "crashed": "failed",
        "killed": "stopped",
        "preempted": "preempted",
        "preempting": "running",
        "pending": "queued",
        "something new": "failed",
    }
    for said in states:
        add_run(server, said, state=said)
    runs = {run.id: run for run in load_runs(SOURCE)}
    assert {said: run.state for said, run in runs.items()} == states
    assert {run.ended_as for run in runs.values()} == {"", "crashed", "killed", "preempting", "pending"}


def test_a_sweep_has_only_its_own_runs_and_its_metric(server: Server):
    project = server.project("tester", "p")
    text = "method: random\nmetric: {name: val_acc, goal: maximize}\nparameters: {lr: {value: 1}}\n"
    sweep = project.sweeps["s1"] = Sweep("s1", project, text)
    add_run(server, "in", sweep=sweep, group="s1")
    add_run(server, "out")
    (run,) = load_runs([f"{SOURCE}/s1"])
    assert (run.id, run.sweep_id, run.objective) == ("in", "s1", ("val_acc", "maximize"))
    assert [(run.id, run.objective) for run in load_runs([SOURCE])] == [("in", None), ("out", None)]
    assert [run.id for run in load_runs([f"{SOURCE}/s1", SOURCE, SOURCE])] == ["in", "out"]


NAME = "NVIDIA A100"
METADATA = {"gpu": NAME, "gpu_nvidia": [{"name": NAME, "uuid": "GPU-1"}], "host": "box", "os": "Linux"}


def test_the_machine_of_other_programs_runs_is_requested(server: Server):
    for name, config in (("theirs", {}), ("ours", {"environment": {"device_name": "CPU"}})):
        run = add_run(server, name, config=config)
        run.files["wandb-metadata.json"] = json.dumps(METADATA).encode()
    by_id = {run.id: run for run in load_runs(SOURCE)}
    machine = by_id["theirs"].machine
    assert (machine.facts["device_name"], machine.facts["platform"]) == (NAME, "Linux")
    assert by_id["ours"].machine.facts == {}
    assert by_id["theirs"].problems == []


DEFINING = """
import wandb
with wandb.init(project="p", entity="tester", id="defined") as run:
    run.define_metric("epoch")
    run.define_metric("val/acc", step_metric="epoch", summary="max")
    run.define_metric("val/loss", step_metric="epoch", summary="min,last")
    run.define_metric("train/*", step_metric="epoch")
    run.define_metric("hidden", hidden=True)
    run.define_metric("mean", step_metric="pass", summary="mean")
    for epoch in range(3):
        run.log({"epoch": epoch, "val/acc": epoch / 10, "val/loss": 1 - epoch / 10, "train/a": 1, "mean": 1})
"""


@pytest.mark.slow
def test_server_and_file_give_the_same_metric_definitions(server: Server, tmp_path):
    """W&B's own client writes both."""
    env = environment(server, tmp_path / "writer")
    subprocess.run([sys.executable, "-c", DEFINING], env=env, check=True, capture_output=True)
    (on_disk,) = load_runs([tmp_path / "writer"])
    (on_server,) = load_runs([SOURCE])
    keys = on_disk.definitions.keys() | on_server.definitions.keys()
    definitions = {key: definition_of(key, on_server.definitions) for key in keys}
    assert definitions == {key: definition_of(key, on_disk.definitions) for key in keys}
    declared = {key: (one.step, one.goal) for key, one in definitions.items()}
    assert declared["val/acc"] == ("epoch", "maximize")
    assert declared["val/loss"] == ("epoch", "minimize")
    assert declared["train/*"] == ("epoch", "")
    assert declared["mean"] == ("pass", "")
    assert on_server.summary["val/acc"] == {"max": 0.2}


def test_a_server_without_optional_fields_is_read(server: Server, outside: Outside):
    optional = "historyKeys historyLineCount sweepName group jobType tags notes createdAt displayName".split()
    full = Run.node
    outside.replace(
        Run, "node", lambda run, url: {k: v for k, v in full(run, url).items() if k not in optional}
    )
    add_run(server, "bare")
    (run,) = load_runs([SOURCE])
    assert (run.id, run.name, run.started_at, run.tags) == ("bare", "bare", None, ())
    assert run.history["global_step"].tolist() == [0, 1, 2]
    outside.replace(Run, "node", lambda run, url: full(run, url) | {"historyLineCount": 9})
    (run,) = load_runs([SOURCE])
    assert run.problems == ["W&B's server has 9 rows of it and gave 3."]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory) -> Path:
    """Return a folder with a run of the real client."""
    folder = tmp_path_factory.mktemp("disk")
    write_runs(folder, [plan("native")])
    return folder


@pytest.mark.parametrize(("more", "source"), [(-1, "disk"), (0, "disk"), (1, "server")])
def test_the_longer_record_counts_for_a_run_on_disk_and_server(
    server: Server, on_disk: Path, more: int, source
):
    (disk,) = load_runs([on_disk])
    project = server.project("tester", disk.project or "p")
    run = project.run(disk.id)
    run.state, rows = "finished", len(disk.history) + more
    run.rows = {step: {"_step": step, "global_step": step} for step in range(rows)}
    (both,) = load_runs([f"wandb:tester/{project.name}", on_disk])
    assert (both.paths != ()) == (source == "disk")
    assert len(both.history) == max(rows, len(disk.history))
    add_run(server, disk.id)
    assert len(load_runs([SOURCE, on_disk])) == 2  # the same id in another project


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wandb:tester/nowhere", "wandb:tester/nowhere: W&B's server says: Could not find project nowhere"),
        ("wandb:tester/empty", "wandb:tester/empty: no runs in this project"),
        ("wandb:tester/empty/nope", "Could not find sweep"),
        ("wandb:tester/nowhere/nope", "Could not find sweep"),
    ],
)
def test_a_missing_project_or_sweep_is_refused_in_one_line(server: Server, source: str, message: str):
    server.project("tester", "empty")
    with pytest.raises(UserError) as caught:
        load_runs([source])
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("source", [SOURCE, f"{SOURCE}/s"])
def test_a_server_that_refuses_a_request_is_one_line(server: Server, source: str):
    """With a page of HTML, as what stands in front of a server does."""
    project = server.project("tester", "p")
    project.sweeps["s"] = Sweep("s", project, "method: random\nparameters: {}\n")
    add_run(server, "one", sweep=project.sweeps["s"])
    refused = set()
    for answered in range(100):
        server.fail(404, after=answered)
        try:
            load_runs([source])
        except UserError as problem:
            refused.add(str(problem))
        else:
            break
    assert answered > 3
    assert all(said.startswith(f"{source}: W&B's server ") for said in refused)
    assert all(re.search(r"(HTTP 404 Not Found|error 404); ", said) for said in refused)


@pytest.mark.slow
def test_an_unreachable_server_is_one_line_and_exit_code_2(wandb_server: Server, tmp_path: Path):
    env = environment(wandb_server, tmp_path, WANDB_HTTP_TIMEOUT="2")
    wandb_server.die()
    command = [sys.executable, "-m", "ampcompare", "report", SOURCE, "--out", str(tmp_path / "report")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {SOURCE}: W&B's server cannot be reached: ")


@pytest.mark.parametrize("recorded", [{"1": "a"}, "a", [{"2": 7}, 5, None]])
def test_definitions_of_unknown_forms_are_none(server: Server, recorded):
    add_run(server, "one", config={"_wandb": {"m": recorded}})
    (run,) = load_runs([SOURCE])
    assert (run.definitions, run.problems) == ({}, [])
