"""`wandb sweep` and `wandb agent`, the real ones, against the stand-in server."""

import subprocess
import time
from collections.abc import Iterator
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

ENDLESS = 1_000_000
VALUES = {
    "deterministic": True,
    "max_steps": None,
    "data.augment": False,
    "optimizer": {"lr": 1.5e-05, "momentum": 0.9, "nesterov": True},
    "precision": {"loss_scale": 1e-05},
    "wandb.tags": ["a", "b c"],
    "plan": {"margin": 0.5, "target": 0.93, "looks": [3, 6, 10], "max_seeds": 10, "control": "bookends"},
}
RARE = {"log.every": 1000, "eval.every": 1000, "diagnostics.every": None}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {"parameters": nested(value)} if isinstance(value, dict) else {"value": value}
        for key, value in values.items()
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
    assert not server.errors


@pytest.fixture(scope="module")
def played(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, str]:
    """A sweep that an agent has gone through, and what was said: of three runs W&B's page stops the first,
    which is endless, the second is refused, the third finishes.
    """
    folder = tmp_path_factory.mktemp("played")
    definition = yaml.safe_load((ROOT / "sweeps" / "compare_backends.yaml").read_text())
    definition["parameters"] |= nested(VALUES | RARE | {"backend": "native", "seed": 223})
    definition["parameters"]["epochs"] = {"values": [ENDLESS, "nope", 1]}
    *begin, _ = definition["command"]
    definition["command"] = [*begin, f"output_dir={folder}", *ONLINE, "--config=demo", "${args}"]
    # The agent gives up at the second failure: it goes on only if the stopped run is none.
    environ = environment(server, folder, WANDB_AGENT_MAX_INITIAL_FAILURES="2")
    sweep = create_sweep(server, definition | {"project": "p"}, environ, folder)
    agent = start_agent(sweep, environ, folder / "log")
    while agent.poll() is None:
        for run in sweep.runs:
            if run.history and run.config["epochs"] == ENDLESS:
                server.stop_run(run.id)
        time.sleep(0.1)
    said = (folder / "log").read_text()
    assert agent.returncode == 0, said
    assert len(sweep.runs) == 3, said
    return sweep, said


def test_a_run_has_all_values_intact_and_the_sweep_as_group(played: tuple[Sweep, str]):
    """Booleans, None, floats, lists and nested parameters."""
    sweep, said = played
    *_, run = sweep.runs
    config = run.config
    assert (run.state, sweep.state) == ("finished", "FINISHED"), said
    assert (run.group, run.job_type) == (sweep.id, "train")
    assert "eval/accuracy" in run.summary
    found = config["backend"], config["seed"], config["deterministic"], config["max_steps"]
    assert found == ("native", 223, True, None)
    assert config["data"].items() >= {"augment": False, "train_limit": 32}.items()  # what it says nothing of
    assert config["optimizer"].items() >= (VALUES["optimizer"] | {"name": "sgd"}).items()
    assert config["precision"]["loss_scale"] == 1e-05
    assert config["wandb"]["tags"] == ["a", "b c"]
    assert config["plan"] == VALUES["plan"] | {"shares": None, "rule": 2}


def test_a_refused_run_ends_as_failed_with_the_reason_on_its_page(played: tuple[Sweep, str]):
    sweep, said = played
    _, refused, _ = sweep.runs
    assert (refused.state, refused.exit_code, refused.group) == ("failed", 2, sweep.id)
    assert "epochs='nope': expected" in refused.notes
    assert refused.summary[metrics.REFUSED] == refused.notes
    assert "epochs='nope': expected" in said
    assert "Traceback" not in said


def test_a_stopped_run_ends_within_a_step_with_its_record(played: tuple[Sweep, str]):
    sweep, said = played
    stopped, *_ = sweep.runs
    step = stopped.summary["global_step"]
    assert f"interrupted at step {step} (" in said
    assert stopped.history[-1]["global_step"] == step
    assert "train/loss" in stopped.history[-1]
    assert "throughput/images_per_second_median" in stopped.summary
    assert (stopped.exit_code, stopped.preempting) == (255, False)


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
    definition = {
        "program": str(tmp_path / "train.py"),
        "method": "grid",
        "project": "p",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"lr": {"values": [0.1, 0.01, 0.001]}} | nested({"optimizer": {"nesterov": True}}),
    }
    sweep = create_sweep(wandb_server, definition, env, tmp_path)
    source = f"wandb:{ENTITY}/p/{sweep.id}"
    agent = start_agent(sweep, env, tmp_path / "log")
    wait_until(lambda: len(sweep.runs) == 2 and sweep.runs[1].state == "failed")
    agent.kill()  # before it asks for the last point
    agent.wait()
    known = len(sweep.runs)
    code, said = ampcompare("sweep", source, "--status", env=env, folder=tmp_path)
    assert code == 3, said
    assert "1 finished, 1 failed" in said
    assert sweep.runs[1].id in said
    assert f"wandb agent {ENTITY}/p/{sweep.id}\n" in said
    assert f"as new runs: ampcompare sweep {source} --rerun" in said
    assert len(sweep.runs) == known
    (tmp_path / "fail").unlink()
    code, said = ampcompare("sweep", source, "--rerun", env=env, folder=tmp_path)
    assert code == 0, said
    rerun = [run for run in sweep.runs if not run.id.startswith(sweep.id)]
    assert {run.config["lr"] for run in rerun} >= {0.01}
    assert {run.config["optimizer"]["nesterov"] for run in rerun} == {True}
    code, said = ampcompare("sweep", source, "--status", env=env, folder=tmp_path)
    assert (code, "3 finished; complete" in said) == (0, True), said
