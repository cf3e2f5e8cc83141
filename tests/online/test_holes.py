"""Holes of a sweep on W&B's server, and points that are one run, under the real client and agent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import QUICK
from support.wandb_server import ENTITY, Server
from support.wandb_server.clients import create_sweep, environment, start_agent, wait_until

from ampcompare import metrics

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys
import wandb
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
with wandb.init(config=given, settings=wandb.Settings(console="off")) as run:
    run.log({"score": 1.0})
    if os.path.exists(os.path.join(os.path.dirname(__file__), "fail")) and given["lr"] == "0.01":
        sys.exit(3)
"""


def ampcompare(*words: str, env: dict[str, str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ampcompare", *words],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()
    assert not made.errors


def test_holes_of_a_sweep_on_the_server_are_listed_and_filled_as_runs_of_it(tmp_path: Path, server: Server):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "fail").touch()
    env = environment(server, tmp_path)
    nested = {"parameters": {"nesterov": {"values": [True, False]}}}
    definition = {
        "program": str(tmp_path / "train.py"),
        "method": "grid",
        "project": "p",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"lr": {"values": [0.1, 0.01]}, "optimizer": nested},
    }
    sweep = create_sweep(server, definition, env, tmp_path)
    agent = start_agent(sweep, env, tmp_path / "log")
    wait_until(lambda: len(sweep.runs) == 3 and sweep.runs[2].state == "failed")
    agent.kill()  # before it asks for the last point
    agent.wait()
    handed_out = len(sweep.runs)
    source = f"wandb:{ENTITY}/p/{sweep.id}"
    code, said = ampcompare("sweep", source, "--missing", env=env, folder=tmp_path)
    assert code == 3, said
    assert "2 finished, 1 failed" in said
    assert sweep.runs[2].id in said
    assert len(sweep.runs) == handed_out
    (tmp_path / "fail").unlink()
    code, said = ampcompare("sweep", source, "--fill", env=env, folder=tmp_path)
    assert code == 0, said
    filled = [run for run in sweep.runs if not run.id.startswith(sweep.id)]
    assert [run.config["lr"] for run in filled] == [0.01] * len(filled)
    assert {run.config["optimizer"]["nesterov"] for run in filled} >= {True}
    code, said = ampcompare("sweep", source, "--missing", env=env, folder=tmp_path)
    assert (code, "4 finished; whole" in said) == (0, True), said


def test_of_points_that_are_one_run_one_trains_and_the_agent_goes_on(tmp_path: Path, server: Server):
    """The agent of this scene gives up at the first failure."""
    env = environment(server, tmp_path, WANDB_AGENT_MAX_INITIAL_FAILURES="1")
    words = [*(w for w in QUICK if not w.startswith(("wandb.", "epochs="))), "epochs=1", "wandb.mode=online"]
    definition = {
        "program": "ampcompare",
        "method": "grid",
        "project": "p",
        "command": [
            "${env}",
            "${interpreter}",
            "-m",
            "${program}",
            "run",
            "--config=demo",
            f"output_dir={tmp_path}",
            *words,
            "${args_no_hyphens}",
        ],
        "parameters": {
            "precision.loss_scale": {"values": ["dynamic", 128]},
            "backend": {"values": ["native_bf16", "none"]},
        },
    }
    sweep = create_sweep(server, definition, env, tmp_path)
    agent = start_agent(sweep, env, tmp_path / "log")
    assert agent.wait() == 0
    ended = {
        (r.config["backend"], r.config["precision.loss_scale"]): (r.state, r.exit_code) for r in sweep.runs
    }
    assert ended == {
        ("native_bf16", "dynamic"): ("finished", 0),
        ("native_bf16", 128): ("failed", 2),
        ("none", "dynamic"): ("finished", 0),
        ("none", 128): ("failed", 2),
    }
    doubled = next(r for r in sweep.runs if (r.state, r.config["backend"]) == ("failed", "none"))
    assert not doubled.history
    assert "is the same run as backend=none precision.loss_scale=dynamic" in doubled.summary[metrics.REFUSED]
    assert (tmp_path / "log").read_text().count("not run:") == 2
    source = f"wandb:{ENTITY}/p/{sweep.id}"
    assert ampcompare("sweep", source, "--missing", env=env, folder=tmp_path)[0] == 0
    ampcompare("report", source, "--format", "json,html", "--out", "report", env=env, folder=tmp_path)
    told = json.loads((tmp_path / "report" / "comparison.json").read_text())
    assert {group["label"]: group["outcomes"].get("refused") for group in told["groups"]}["none"] == 1
    assert told["sweep"]["whole"] is True


def test_points_that_are_one_run_are_known_to_an_agent_that_was_given_an_id_alone(
    tmp_path: Path, server: Server
):
    """The agent hands on no entity and no project then: they are W&B's usual ones."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nproject = p\n")
    definition = {
        "program": "ampcompare",
        "method": "grid",
        "project": "p",
        "command": ["${interpreter}", "-m", "${program}", "run", "${args_no_hyphens}"],
        "parameters": {
            "precision.loss_scale": {"values": ["dynamic", 128]},
            "backend": {"values": ["native", "none"]},
        },
    }
    sweep = create_sweep(server, definition, environment(server, tmp_path), tmp_path)
    chosen = tmp_path / "chosen.yaml"
    chosen.write_text("backend: {value: none}\nprecision.loss_scale: {value: 128}\n")
    named = {"WANDB_SWEEP_ID": sweep.id, "WANDB_SWEEP_PARAM_PATH": str(chosen)}
    env = environment(server, tmp_path, **named)
    command = [sys.executable, "-m", "ampcompare.sweeps.holes.once"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert "is the same run as backend=none precision.loss_scale=dynamic" in told["again"], done.stderr
