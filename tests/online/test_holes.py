"""Holes of a sweep on W&B's server, and points that are one run, under the real client and agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.wandb_server import ENTITY, Server
from support.wandb_server.clients import create_sweep, environment, start_agent, wait_until

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
    command = [sys.executable, "-m", "ampcompare", *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_holes_of_a_sweep_on_the_server_are_listed_and_filled_as_runs_of_it(
    tmp_path: Path, wandb_server: Server
):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "fail").touch()
    env = environment(wandb_server, tmp_path)
    nested = {"parameters": {"nesterov": {"values": [True, False]}}}
    definition = {
        "program": str(tmp_path / "train.py"),
        "method": "grid",
        "project": "p",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"lr": {"values": [0.1, 0.01]}, "optimizer": nested},
    }
    sweep = create_sweep(wandb_server, definition, env, tmp_path)
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
