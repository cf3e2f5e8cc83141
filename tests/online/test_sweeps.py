"""`wandb sweep` and `wandb agent`, the real ones, against the stand-in server."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import warm_python
from support.quick import ONLINE, ROOT
from support.wandb_server import ENTITY, Server, Sweep
from support.wandb_server.clients import create_sweep, environment, start_agent, wait_until

from ampcompare import metrics

pytestmark = pytest.mark.slow

BEGIN = ["${env}", "${interpreter}", "${program}"]
ENDLESS = 1_000_000


def played(server: Server, folder: Path, definition: dict[str, Any], **env: str) -> tuple[Sweep, str]:
    """A sweep that an agent has gone through, and what was said. Endless runs are stopped once they log."""
    *begin, args = definition["command"]
    command = [*begin, f"output_dir={folder}", *ONLINE, "--config=demo", args]
    definition = {"program": "run_experiment.py", "project": "p", "method": "grid", **definition}
    environ = environment(server, folder, **env)
    sweep = create_sweep(server, definition | {"command": command}, environ, folder)
    agent = start_agent(sweep, environ, folder / "log")
    while agent.poll() is None:
        for run in sweep.runs:
            if run.history and run.config["epochs"] == ENDLESS:
                server.stop_run(run.id)
        time.sleep(0.1)
    said = (folder / "log").read_text()
    assert agent.returncode == 0, said
    return sweep, said


VALUES = {
    "deterministic": True,
    "max_steps": None,
    "data.augment": False,
    "optimizer": {"lr": 1.5e-05, "momentum": 0.9, "nesterov": True},
    "precision": {"loss_scale": 1e-05},
    "wandb.tags": ["a", "b c"],
    "plan": {"margin": 0.5, "target": 0.93, "looks": [3, 6, 10], "max_seeds": 10, "control": "bookends"},
}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {"parameters": nested(value)} if isinstance(value, dict) else {"value": value}
        for key, value in values.items()
    }


def test_each_run_of_the_comparison_has_its_backend_all_values_intact_and_the_sweep_as_group(
    wandb_server: Server, tmp_path: Path
):
    """Booleans, None, floats, lists and nested parameters."""
    definition = yaml.safe_load((ROOT / "sweeps" / "compare_backends.yaml").read_text())
    definition["parameters"] |= nested(VALUES) | {"seed": {"values": [223]}}
    definition["command"][-1] = "${args}"
    sweep, said = played(wandb_server, tmp_path, definition)
    assert [run.state for run in sweep.runs] == ["finished"] * 3, said
    assert [run.config["backend"] for run in sweep.runs] == ["none", "native", "apex_o1"]
    assert {(run.group, run.job_type) for run in sweep.runs} == {(sweep.id, "train")}
    assert all("eval/accuracy" in run.summary for run in sweep.runs)
    assert sweep.state == "FINISHED"
    for run in sweep.runs:
        config = run.config
        found = config["seed"], config["deterministic"], config["max_steps"], config["data"]["augment"]
        assert found == (223, True, None, False)
        assert config["data"]["train_limit"] == 32  # what the sweep says nothing of stays
        assert config["optimizer"].items() >= (VALUES["optimizer"] | {"name": "sgd"}).items()
        assert config["precision"]["loss_scale"] == 1e-05
        assert config["wandb"]["tags"] == ["a", "b c"]
        assert config["plan"] == VALUES["plan"] | {"shares": None, "rule": 2}


def test_a_failing_run_ends_as_failed_and_the_agent_goes_on(wandb_server: Server, tmp_path: Path):
    tried = {"optimizer": {"values": [{"lr": 1e30}, {"name": "nope"}, {"lr": 0.1}]}}
    definition = {"parameters": tried, "command": [*BEGIN, "${args_no_hyphens}"]}
    sweep, said = played(wandb_server, tmp_path, definition)
    diverged, refused, sound = sweep.runs
    assert (diverged.state, diverged.exit_code) == ("failed", 1)
    assert "the training loss is" in said
    assert diverged.summary["global_step"] == diverged.history[-1]["global_step"]
    assert (refused.state, refused.exit_code, refused.group) == ("failed", 2, sweep.id)
    assert "optimizer.name='nope': expected one of" in refused.notes
    assert refused.summary[metrics.REFUSED] == refused.notes
    assert "optimizer.name='nope': expected one of" in said
    assert "Traceback" not in said
    assert sound.state == "finished"


def test_a_stopped_run_ends_within_a_step_with_its_record_and_counts_as_no_failure(
    wandb_server: Server, tmp_path: Path
):
    rare = nested({"log.every": 1000, "eval.every": 1000, "diagnostics.every": None})
    definition = {
        "parameters": {"epochs": {"values": [ENDLESS, 1]}} | rare,
        "early_terminate": {"type": "hyperband", "min_iter": 1},
        "command": [*BEGIN, "${args_no_hyphens}"],
    }
    # The agent gives up at the first failure.
    sweep, said = played(wandb_server, tmp_path, definition, WANDB_AGENT_MAX_INITIAL_FAILURES="1")
    stopped, after = sweep.runs
    step = stopped.summary["global_step"]
    assert f"interrupted at step {step} (" in said
    assert stopped.history[-1]["global_step"] == step
    assert "train/loss" in stopped.history[-1]
    assert "throughput/images_per_second_median" in stopped.summary
    assert (stopped.exit_code, stopped.preempting) == (255, False)
    assert after.state == "finished"


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
    command = [warm_python.python(), "-m", "ampcompare", *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_is_left_of_a_sweep_on_the_server_is_listed_and_run_here_as_its_runs(
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
    source = f"wandb:{ENTITY}/p/{sweep.id}"
    _, said = ampcompare("sweep", source, "--status", env=env, folder=tmp_path)
    assert "4 queued\nto continue the sweep: " in said
    assert said.endswith(f"wandb agent {ENTITY}/p/{sweep.id}\n")
    agent = start_agent(sweep, env, tmp_path / "log")
    wait_until(lambda: len(sweep.runs) == 3 and sweep.runs[2].state == "failed")
    agent.kill()  # before it asks for the last point
    agent.wait()
    handed_out = len(sweep.runs)
    code, said = ampcompare("sweep", source, "--status", env=env, folder=tmp_path)
    assert code == 3, said
    assert "2 finished, 1 failed" in said
    assert sweep.runs[2].id in said
    assert f"as new runs: ampcompare sweep {source} --rerun" in said
    assert len(sweep.runs) == handed_out
    (tmp_path / "fail").unlink()
    code, said = ampcompare("sweep", source, "--rerun", env=env, folder=tmp_path)
    assert code == 0, said
    rerun = [run for run in sweep.runs if not run.id.startswith(sweep.id)]
    assert [run.config["lr"] for run in rerun] == [0.01] * len(rerun)
    assert {run.config["optimizer"]["nesterov"] for run in rerun} >= {True}
    code, said = ampcompare("sweep", source, "--status", env=env, folder=tmp_path)
    assert (code, "4 finished; complete" in said) == (0, True), said
