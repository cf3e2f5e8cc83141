"""A stand-in for our own training in sweeps: it trains nothing, and follows `ampcompare run --runs FILE`.

`SeriesProject` is a sweep of this program. Files in its folder decide what happens to a run, by
its backend and seed: a run waits while there is `hold-BACKEND-SEED`, and then fails if there is
`fail-BACKEND-SEED`.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun, read_journal
from support.sweep_project import SweepProject, is_alive
from support.wandb_server.clients import wait_until

# The name of the module makes this script one of our own training: ampcompare.entrypoint
TRAINING = """
# ampcompare.entrypoint
import json, os, signal, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
now = {}

def note(event):
    line = json.dumps({"event": event, "pid": os.getpid(), "time": time.time(), **now}) + "\\n"
    with (HERE / "events.jsonl").open("a") as file:
        file.write(line)

def save(number, frame):
    note("saved")
    os._exit(128 + number)

for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, save)
words = sys.argv[1:]
file = Path(words[words.index("--runs") + 1]) if "--runs" in words else None
entries = json.loads(file.read_text()) if file else [{"overrides": []}]

def progress(line):
    if file:
        with file.with_name(file.name + ".progress").open("a") as log:
            log.write(line + "\\n")

for position, entry in enumerate(entries):
    own = [word for word in [*words, *entry["overrides"]] if "=" in word]
    given = dict(word.split("=", 1) for word in own)
    environment = {**os.environ, **entry.get("environment", {})}
    now = {"name": f"{given['backend']}-{given['seed']}", "run": environment["WANDB_RUN_ID"]}
    now |= {"position": position, "folder": environment["WANDB_DIR"]}
    progress(f"begin {position}")
    note("began")
    while (HERE / f"hold-{now['name']}").exists():
        time.sleep(0.02)
    if (HERE / f"fail-{now['name']}").exists():
        note("failed")
        sys.exit(3)
    note("ended")
    progress(f"end {position}")
"""


class SeriesProject(SweepProject):
    """A sweep of two backends with three seeds each, which one process trains.

    Attributes:
        words: The words that each command of the sweep has.
    """

    def __init__(self, folder: Path, *, per_process: int = 3) -> None:
        super().__init__(folder)
        self.words = ["--seeds-per-process", str(per_process)]
        (folder / "run_experiment.py").write_text(TRAINING)
        self.write_sweep()

    def write_sweep(self, **content: object) -> Path:
        """Write the sweep file."""
        parameters = {"backend": {"values": ["none", "native_bf16"]}, "seed": {"values": [1, 2, 3]}}
        file = self.folder / "sweep.yaml"
        own = {"name": "many", "method": "grid", "program": "run_experiment.py", "parameters": parameters}
        command = ["${interpreter}", "${program}", "${args_no_hyphens}"]
        text = yaml.safe_dump({**own, "command": command, **content}, sort_keys=False)
        file.write_text(text)
        return file

    def command(self, *arguments: str, out: Path | None = None) -> list[str]:
        return super().command(*self.words, *arguments, out=out)

    def events(self, kind: str, out: Path | None = None) -> list[dict[str, Any]]:
        file = self.folder / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def names(self, kind: str) -> list[str]:
        """Return the names (BACKEND-SEED) of the runs with events of a kind, in their order."""
        return [event["name"] for event in self.events(kind)]

    def first_group(self) -> list[str]:
        """Return the names of the runs that the first process trains, by the order of the journal."""
        return [name_of(run) for run in self.runs()[:3]]

    def runs(self) -> list[SweepRun]:
        """Return the runs of the journal, ordered by index."""
        state = read_journal(self.out)
        return [run for _, run in sorted(state.runs.items())] if state else []

    def hold_run(self, name: str) -> Path:
        """Let a run wait from now on; return the file."""
        file = self.folder / f"hold-{name}"
        file.touch()
        return file

    def wait_until_began(self, name: str, times: int = 1) -> int:
        """Wait until a run has begun; return the id of its process."""
        wait_until(lambda: self.names("began").count(name) >= times)
        return [event["pid"] for event in self.events("began") if event["name"] == name][times - 1]

    def wait_until_all_have_ended(self) -> None:
        """Wait until no process of a run is left."""
        wait_until(lambda: not any(is_alive(event["pid"]) for event in self.events("began")))

    def check_each_run_finished_once(self, count: int = 6) -> None:
        """Check that each run has finished once, under the id that the journal has."""
        runs = self.runs()
        assert len(runs) == count
        assert [run.state for run in runs] == [RunState.FINISHED] * count
        assert sorted(self.names("ended")) == sorted(map(name_of, runs))
        ids = {event["name"]: event["run"] for event in self.events("ended")}
        assert ids == {name_of(run): run.run_id for run in runs}


def name_of(run: SweepRun) -> str:
    """Return the name of a run in the events: its backend and its seed."""
    return f"{run.parameters['backend']}-{run.parameters['seed']}"
