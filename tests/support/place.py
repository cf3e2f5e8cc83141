"""A small program for sweeps to run, and the command line around it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import yaml

from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.sweep_file import Sweep
from support.quick import ROOT
from support.wandb_server.clients import wait_until

# Writes what it was given and that it began and ended. `fail` is the x that fails; the run whose x is `hold`
# (or every one: `all`) does not end while there is a file of that name beside it; `together` is how many have
# to begin before any of them ends.
PROGRAM = """
import json, os, sys, time
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
def note(**fields):
    said = {"time": time.time(), "pid": os.getpid(), "run": os.environ["WANDB_RUN_ID"], **fields}
    line = json.dumps(said) + "\\n"
    with open(os.path.join(os.environ["WANDB_DIR"], "events.jsonl"), "a") as file:
        file.write(line)
kept = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT", "CUDA_VISIBLE_DEVICES")
kept += ("AMPCOMPARE_RESUME",)
note(event="began", given=given, environment={k: os.environ.get(k) for k in kept})
def waits():
    if given.get("hold") in (given.get("x", ""), "all") and os.path.exists("hold"):
        return True
    with open(os.path.join(os.environ["WANDB_DIR"], "events.jsonl")) as file:
        return file.read().count('"began"') < int(given.get("together", 0))
os.chdir(os.path.dirname(os.path.abspath(__file__)))
while waits():
    time.sleep(0.05)
print("the last words\\nwandb: You can sync this run later")
if given.get("fail") == given.get("x", ""):
    sys.exit(3)
note(event="ended", given=given)
"""


# Logs a metric the way any user's script does, a value every tenth of a second; a run that falls behind has
# no end of its own where `endless` says so.
LOGGER = """
import itertools, sys, time
import wandb
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
settings = wandb.Settings(x_transaction_log_flush_interval=1)
with wandb.init(mode="offline", config=given, settings=settings) as run:
    for step in itertools.count() if given.get("endless") == given["x"] else range(int(given["steps"])):
        run.log({"score": float(given["x"]) + step / 1000})
        time.sleep(0.1)
"""


class Place:
    """A folder with the programs, and `ampcompare sweep` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.before = "pass"  # what the command's process does first
        (folder / "program.py").write_text(PROGRAM)
        (folder / "logger.py").write_text(LOGGER)

    def file(self, **content: object) -> Path:
        path = self.folder / "sweep.yaml"
        path.write_text(
            yaml.safe_dump({"program": "program.py", "method": "grid", **content}, sort_keys=False)
        )
        return path

    def begins_with(self, text: str) -> None:
        """Put this code at the start of the program."""
        program = self.folder / "program.py"
        program.write_text(text + program.read_text())

    def command(self, *words: str, out: Path | None = None) -> list[str]:
        code = f"{self.before}\nimport sys; from ampcompare.cli import main; main(sys.argv[1:])"
        return [sys.executable, "-c", code, "sweep", "sweep.yaml", *words, f"output_dir={out or self.out}"]

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

    def hold(self) -> None:
        """Keep runs with `hold` from ending until `release`."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def sweep(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        said, _ = process.communicate()
        return process.returncode, said

    def events(self, kind: str, out: Path | None = None) -> list[dict]:
        file = (out or self.out) / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_for(self, kind: str, count: int, out: Path | None = None) -> None:
        wait_until(lambda: len(self.events(kind, out)) >= count)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead, whoever has yet to collect it.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " not in stat.read_text()


def grid(points, **changes):
    content = {"values": list(range(points))}
    raw = {"method": "grid", "parameters": {"x": content}}
    given = {"path": Path("s.yaml"), "name": "s", "method": "grid", "raw": raw} | changes
    return Sweep(parameters=(Parameter(("x",), "categorical", content),), program="p", **given)
