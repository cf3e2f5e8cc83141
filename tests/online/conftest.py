"""What the tests here look at: sweeps and runs played at the same time, as most of it is waiting for the
client.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.quick import QUICK, ROOT
from support.wandb_server import TROUBLES, Run, Server, Sweep
from support.wandb_server.clients import create_sweep, environment, start, start_agent, train, wait_until

ONLINE = [*(word for word in QUICK if not word.startswith("wandb.")), "wandb.mode=online", "--config=demo"]
ENDLESS = 1_000_000


@dataclass
class Scene:
    """One agent or run that was played: its folder, its output, its exit code, and what the server has."""

    folder: Path
    output: str
    exit_code: int
    runs: list[Run]
    sweep: Sweep | None = None
    server: Server | None = None  # its own one
    sent: int = 0  # rows that the server had when it made trouble


class Stage:
    """Plays scenes on one server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, Server()

    def sweep(self, name: str, definition: dict[str, Any], stop: bool = False, **env: str) -> Scene:
        """`wandb sweep` and `wandb agent`; with `stop`, every run that has logged is stopped."""
        folder = self.folder / name
        folder.mkdir()
        environ = environment(self.server, folder, **env)
        begin = definition.pop("start", ["${env}", "${interpreter}", "${program}"])
        command = [*begin, f"output_dir={folder}", *ONLINE, *definition["command"]]
        definition = {"program": "run_experiment.py", "project": name} | definition | {"command": command}
        sweep = create_sweep(self.server, definition, environ, folder)
        agent = start_agent(sweep, environ, folder / "log")
        while agent.poll() is None:
            for run in sweep.runs if stop else []:
                if run.history and run.config["epochs"] == ENDLESS:
                    self.server.stop_run(run.id)
            time.sleep(0.1)
        return Scene(folder, (folder / "log").read_text(), agent.returncode, sweep.runs, sweep)

    def run(self, name: str, *words: str, stop: bool = False, **env: str) -> Scene:
        """A run without an agent; with `stop`, stopped on W&B's page when it has logged."""
        folder = self.folder / name
        folder.mkdir()
        environ = environment(self.server, folder, **env)
        process = train(
            [*ONLINE, f"output_dir={folder}", f"wandb.project={name}", *words], environ, folder / "log"
        )
        if stop:
            wait_until(lambda: any(run.history for run in self.of(name)))
            self.server.stop_run(self.of(name)[0].id)
        code = process.wait()
        return Scene(folder, (folder / "log").read_text(), code, self.of(name))

    def trouble(self, name: str) -> Scene:
        """A run whose server, its own, makes trouble once it has rows: it dies, hangs, answers 500."""
        folder, server = self.folder / name, Server()
        folder.mkdir()
        environ = environment(server, folder, WANDB_FINISH_TIMEOUT="3")
        words = [*ONLINE, "wandb.project=p", "epochs=40", "log.every=1", f"output_dir={folder}"]
        hold = folder / "hold"
        hold.touch()
        command = [sys.executable, "tests/support/held_run.py", "run_experiment.py", *words]
        process = start(command, environ | {"HOLD": str(hold)}, folder / "log")
        wait_until(lambda: any(run.history for run in server.runs.values()))
        getattr(server, name)()
        hold.unlink()
        (run,) = server.runs.values()
        sent = len(run.history)
        code = process.wait()
        return Scene(folder, (folder / "log").read_text(), code, [run], None, server, sent=sent)

    def of(self, project: str) -> list[Run]:
        return [run for run in self.server.runs.values() if run.project.name == project]


def compare_backends() -> dict[str, Any]:
    """The comparison with one seed, its command's arguments left to the stage."""
    definition = yaml.safe_load((ROOT / "sweeps" / "compare_backends.yaml").read_text())
    definition["parameters"]["seed"]["values"] = definition["parameters"]["seed"]["values"][:1]
    *start, args = definition["command"]
    return definition | {"start": start, "command": [args]}


VALUES = {
    "method": "grid",
    "metric": {"name": "eval/accuracy", "goal": "maximize"},
    "parameters": {
        "deterministic": {"value": True},
        "max_steps": {"value": None},
        "data.augment": {"value": False},
        "optimizer": {
            "parameters": {
                "lr": {"values": [1.5e-05]},
                "momentum": {"value": 0.9},
                "nesterov": {"value": True},
            }
        },
        "precision": {"parameters": {"loss_scale": {"value": 1e-05}}},
        "wandb.tags": {"value": ["a", "b c"]},
        "plan": {
            "parameters": {
                "margin": {"value": 0.5},
                "target": {"value": 0.93},
                "looks": {"value": [3, 6, 10]},
                "max_seeds": {"value": 10},
                "control": {"value": "bookends"},
            }
        },
    },
    "command": ["${args}"],
}
FAILING = {
    "method": "grid",
    "parameters": {"optimizer": {"values": [{"lr": 1e30}, {"name": "nope"}, {"lr": 0.1}]}},
    "command": ["${args_no_hyphens}"],
}
STOPPED = {
    "method": "grid",
    "parameters": {"epochs": {"values": [ENDLESS, 1]}},
    "early_terminate": {"type": "hyperband", "min_iter": 1},
    "command": ["log.every=1000", "eval.every=1000", "diagnostics.every=null", "${args_no_hyphens}"],
}

Play = Callable[[Stage], Scene]


def played(folder: Path, scenes: Mapping[str, Play]) -> Iterator[dict[str, Scene]]:
    """The scenes by name, all at the same time; for a fixture."""
    stage = Stage(folder)
    with ThreadPoolExecutor(max_workers=len(scenes)) as pool:
        playing = {name: pool.submit(play, stage) for name, play in scenes.items()}
        found = {name: scene.result() for name, scene in playing.items()}
    yield found
    for server in (stage.server, *(scene.server for scene in found.values() if scene.server)):
        server.close()
        assert not server.errors


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    """Sweeps under W&B's agent."""
    scenes: dict[str, Play] = {
        "compare": lambda stage: stage.sweep("compare", compare_backends()),
        "values": lambda stage: stage.sweep("values", dict(VALUES)),
        "failing": lambda stage: stage.sweep("failing", dict(FAILING)),
        "stopped": lambda stage: stage.sweep(
            "stopped", dict(STOPPED), True, WANDB_AGENT_MAX_INITIAL_FAILURES="1"
        ),
    }
    yield from played(tmp_path_factory.mktemp("sweeps"), scenes)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    """Single runs."""
    endless = (f"epochs={ENDLESS}", "log.every=50", "eval.every=1000", "diagnostics.every=null")
    scenes: dict[str, Play] = {
        "page": lambda stage: stage.run("page", *endless, stop=True),
        **{trouble: lambda stage, name=trouble: stage.trouble(name) for trouble in TROUBLES},  # type: ignore[misc]
        "offline": lambda stage: stage.run("offline", WANDB_MODE="offline"),
    }
    yield from played(tmp_path_factory.mktemp("runs"), scenes)
