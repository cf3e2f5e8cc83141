"""A folder with small programs for sweeps to run, and the command line around it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import yaml

from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.sweep_file import Sweep
from support.quick import ROOT
from support.wandb_server.clients import wait_until

# Notes its arguments, its start and its end. The run with x = `fail` fails. The run with x = `hold` (`all`:
# every run) does not end while a file `hold` exists. No run ends before `together` runs have started.
# No run fails if there is a file `mended`.
PROGRAM = """
import json, os, sys, time
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
def note(**fields):
    event = {"time": time.time(), "pid": os.getpid(), "run": os.environ["WANDB_RUN_ID"], **fields}
    line = json.dumps(event) + "\\n"
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
if given.get("fail") == given.get("x", "") and not os.path.exists("mended"):
    sys.exit(3)
note(event="ended", given=given)
"""


# Logs a metric as a user's script does, ten values a second. The run with x = `endless` has no end.
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


# For `SweepProject.replace_outside`: the driver is killed as it is about to write an event to the journal.
DIES_BEFORE = """
import json, os, signal

def die(content, **_):
    if isinstance(content, dict) and content.get("event") == "{event}":
        os.kill(os.getpid(), signal.SIGKILL)

outside.call_before(json, "dumps", die)
"""


def replacing_outside(code: str) -> str:
    """Return a program in which `code` replaces what is outside by `outside`, the fixture of the tests."""
    lines = [f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})"]
    lines += ["import pytest", "from support.outside import Outside"]
    return "\n".join([*lines, "outside = Outside(pytest.MonkeyPatch())", code])


class SweepProject:
    """A folder with the programs, in which `ampcompare sweep` runs.

    Attributes:
        folder: The folder.
        out: The output folder of the sweep.
        before: Python code that the command's process runs first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.before = "pass"
        (folder / "program.py").write_text(PROGRAM)
        (folder / "logger.py").write_text(LOGGER)

    def replace_outside(self, code: str) -> None:
        """Let the command's process run this code first; `outside` replaces what is not of the package."""
        self.before = replacing_outside(code)

    def write_file(self, **content: object) -> Path:
        """Write the sweep file with these keys."""
        path = self.folder / "sweep.yaml"
        path.write_text(
            yaml.safe_dump({"program": "program.py", "method": "grid", **content}, sort_keys=False)
        )
        return path

    def prepend(self, text: str) -> None:
        """Put code at the beginning of the program."""
        program = self.folder / "program.py"
        program.write_text(text + program.read_text())

    def command(self, *arguments: str, out: Path | None = None) -> list[str]:
        """Return the command that runs the sweep."""
        code = f"{self.before}\nimport sys; from ampcompare.cli import main; main(sys.argv[1:])"
        return [
            sys.executable,
            "-c",
            code,
            "sweep",
            "sweep.yaml",
            *arguments,
            f"output_dir={out or self.out}",
        ]

    def start(
        self, *arguments: str, out: Path | None = None, stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start the sweep."""
        return subprocess.Popen(
            self.command(*arguments, out=out),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def hold(self) -> None:
        """Let runs with `hold` not end from now on."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        """Let held runs end."""
        (self.folder / "hold").unlink()

    def mend(self) -> None:
        """Let no run fail from now on."""
        (self.folder / "mended").touch()

    def sweep(self, *arguments: str) -> tuple[int, str]:
        """Run the sweep; return exit code and output."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        return process.returncode, output

    def events(self, kind: str, out: Path | None = None) -> list[dict]:
        """Return the events of a kind (`began`, `ended`) that the runs noted."""
        file = (out or self.out) / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_for(self, kind: str, count: int, out: Path | None = None) -> None:
        """Wait until the runs have noted this number of events."""
        wait_until(lambda: len(self.events(kind, out)) >= count)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " not in stat.read_text()


def make_grid(points: int, **changes: Any) -> Sweep:
    """Return a grid over `x` with this number of points."""
    content = {"values": list(range(points))}
    raw = {"method": "grid", "parameters": {"x": content}}
    fields = {"path": Path("s.yaml"), "name": "s", "method": "grid", "raw": raw} | changes
    return Sweep(parameters=(Parameter(("x",), "categorical", content),), program="p", **fields)
