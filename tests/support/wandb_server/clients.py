"""Processes of the real client: `wandb sweep`, `wandb agent`, `run_experiment.py`, `wandb sync`."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import warm_python
from support.quick import ROOT
from support.wandb_server.server import ENTITY, Server
from support.wandb_server.store import Sweep


def environment(server: Server, folder: Path, **more: str) -> dict[str, str]:
    """Return a complete environment, with `warm_python` first on PATH: the agent runs any `python` there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    path = f"{warm_python.programs()}{os.pathsep}{os.environ['PATH']}"
    ours = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    # The client sends what was logged every 15 s; a test has no such time.
    return kept | ours | server.environment(folder) | {"WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"} | more


def start(command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in the root of the checkout, with its output in a file."""
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)


def wandb(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One command of W&B's command line, to its end."""
    command = [sys.executable, "-m", "wandb", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def create_sweep(server: Server, definition: dict[str, Any], env: dict[str, str], folder: Path) -> Sweep:
    """`wandb sweep` of a definition written to a file."""
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(definition, sort_keys=False))
    done = wandb("sweep", str(file), env=env)
    assert done.returncode == 0, done.stderr
    return server.sweeps[re.findall(r"sweep with ID: (\S+)", done.stderr)[0]]


def start_agent(sweep: Sweep, env: dict[str, str], log: Path, *options: str) -> subprocess.Popen[bytes]:
    """`wandb agent` of a sweep."""
    name = f"{ENTITY}/{sweep.project.name}/{sweep.id}"
    return start([sys.executable, "-m", "wandb", "agent", *options, name], env, log)


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a condition, a tenth of a second at a time."""
    while not true():
        time.sleep(0.1)


@contextmanager
def asking(server: Server, folder: Path) -> Iterator[None]:
    """Make this process a client of the server: its `wandb.Api` and what is built on it."""
    import wandb as client

    client.teardown()  # its settings are read once a process
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(folder).items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            client.teardown()
