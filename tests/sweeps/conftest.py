"""A small program for sweeps to run, and the command line around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# Writes what it was given and when it began and ended; `seconds`, `fail` and the like come as parameters.
PROGRAM = """
import json, os, sys, time
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
def note(**fields):
    line = json.dumps({"time": time.time(), "pid": os.getpid(), "run": os.environ["WANDB_RUN_ID"], **fields}) + "\\n"
    with open(os.path.join(os.environ["WANDB_DIR"], "events.jsonl"), "a") as file:
        file.write(line)
kept = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT", "CUDA_VISIBLE_DEVICES")
note(event="began", given=given, environment={k: os.environ.get(k) for k in kept})
time.sleep(float(given.get("seconds", 0)))
print("the last words")
if given.get("fail") == given.get("x", ""):
    sys.exit(3)
note(event="ended", given=given)
"""

# Logs a metric the way any user's script does, a value every tenth of a second.
LOGGER = """
import sys, time
import wandb
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
with wandb.init(mode="offline", config=given, settings=wandb.Settings(x_transaction_log_flush_interval=1)) as run:
    for step in range(int(given["steps"])):
        run.log({"score": float(given["x"]) + step / 1000})
        time.sleep(0.1)
"""


class Place:
    """A folder with the programs, and `ampcompare sweep` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        (folder / "program.py").write_text(PROGRAM)
        (folder / "logger.py").write_text(LOGGER)

    def file(self, **content: object) -> Path:
        path = self.folder / "sweep.yaml"
        path.write_text(yaml.safe_dump({"program": "program.py", "method": "grid", **content}, sort_keys=False))
        return path

    def command(self, *words: str, out: Path | None = None) -> list[str]:
        module = [sys.executable, "-m", "ampcompare.cli"]
        return [*module, "sweep", "sweep.yaml", *words, f"output_dir={out or self.out}"]

    def start(
        self, *words: str, out: Path | None = None, stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words, out=out),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def sweep(self, *words: str, timeout: float = 120) -> tuple[int, str]:
        process = self.start(*words)
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said

    def events(self, kind: str, out: Path | None = None) -> list[dict]:
        file = (out or self.out) / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_for(self, kind: str, count: int, out: Path | None = None) -> None:
        until = time.monotonic() + 60
        while len(self.events(kind, out)) < count:
            assert time.monotonic() < until, f"no {count} runs {kind}"
            time.sleep(0.05)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead, whoever has yet to collect it.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " not in stat.read_text()
