"""Play twenty-four sweeps from the command line, and describe what each left: journal, `--status`, messages.

    python tests/support/sweep_scenarios.py SOURCE FOLDER > scenarios.yaml

SOURCE is the folder `src` of the code to play, FOLDER an empty folder for the sweeps. The description has no
times, no process ids and no paths, and W&B's ids are numbered, so that two versions of the code can be
compared: `tests/sweeps/golden/scenarios.yaml` is the description of the present one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
# A run does what `modes.json` says for its x. It writes a record of `rows` values of the metric `score`.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
sys.path.append({benchmarks!r})
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
x, here = given.get("x") or given["seed"], Path({folder!r})
mode = json.loads((here / "modes.json").read_text()).get(x, given.get("mode", "finish"))
with (here / "begun").open("a") as file:
    file.write(f"{{x}} ")
starts = (here / "begun").read_text().split().count(x)
record = None
def complete_record(code):
    if record:
        from soak_program import varint, part
        record.write(part(18, varint(1 << 3) + varint(code) if code else b""))
def end(code):
    complete_record(code)
    sys.exit(code)
if mode == "orderly":
    signal.signal(signal.SIGTERM, lambda *_: end(0))
if mode in ("stubborn", "stubborn hold"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "rows" in given:
    from soak_program import Record, items, part, varint
    now = time.strftime("%Y%m%d_%H%M%S", time.localtime(time.time() + starts))
    run = os.environ["WANDB_RUN_ID"]
    folder = Path(os.environ["WANDB_DIR"]) / "wandb" / f"offline-run-{{now}}-{{run}}"
    folder.mkdir()
    record = Record(folder / f"run-{{run}}.wandb")
    began = varint(1 << 3) + varint(int(time.time()))
    config = part(4, items({{"x": x}}))
    record.write(part(17, part(1, run) + part(3, "p") + config + part(6, "p") + part(17, began)))
    step = 0
    while step < int(given["rows"]) or mode == "endless":
        record.write(part(2, items({{"_step": step, "score": float(x) + step / 1000}})))
        time.sleep(float(given.get("pause", 0)))
        step += 1
if mode == "kill" or (mode == "kill once" and starts == 1):
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "complete":
    complete_record(0)
(here / f"ready-{{x}}-{{starts}}").touch()
while mode == "complete":
    time.sleep(0.02)
while mode in ("hold", "orderly", "stubborn hold") and (here / "hold").exists():
    time.sleep(0.02)
if mode == "stubborn":
    while not (here / "finish").exists():
        time.sleep(0.02)
print("the last words")
end(3 if mode == "fail" else 0)
"""


class Scene:
    """A folder with a sweep, and what is done to it.

    Args:
        source: The folder `src` of the code.
        folder: The folder.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.source, self.folder, self.told = source, folder, list[dict[str, Any]]()
        text = PROGRAM.format(benchmarks=str(ROOT / "benchmarks"), folder=str(folder))
        (folder / "p.py").write_text(text)
        self.modes()

    def modes(self, **modes: str) -> None:
        """Say what the runs do: `x1="fail"` is for the run with x=1."""
        (self.folder / "modes.json").write_text(json.dumps({key[1:]: mode for key, mode in modes.items()}))

    def file(self, values: list[Any] | None = None, **content: Any) -> None:
        """Write the sweep file."""
        parameters = {"x": {"values": values or [1, 2, 3]}, **content.pop("parameters", {})}
        content = {"program": "p.py", "method": "grid", "name": "s", "parameters": parameters, **content}
        (self.folder / "s.yaml").write_text(yaml.safe_dump(content))

    def hold(self) -> None:
        """Let runs that hold not end."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        """Let held runs end."""
        (self.folder / "hold").unlink()

    def ready(self, name: str) -> None:
        """Wait until a run holds, such as `1-1` for the first start of x=1."""
        self.wait(lambda: (self.folder / f"ready-{name}").exists())

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait for a fact."""
        while not is_so():
            time.sleep(0.02)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command."""
        code = "import sys; from ampcompare.cli import main; main(sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-c", code, "sweep", "s.yaml", "output_dir=out", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.source), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def end(self, process: subprocess.Popen[str]) -> None:
        """Wait for the end of a command, and note what it printed about runs."""
        output, _ = process.communicate()
        # Lines of the report are left out, and the number of left-over processes: it depends on the guard.
        known = ("run ", "stop", "error", "s: ", "to ", "best", "Traceback")
        lines = [line for line in output.splitlines() if line.startswith(known) or " runs failed" in line]
        self.told.append({"exit code": process.returncode, "lines": [*map(self.plain, lines)]})

    def play(self, *words: str) -> None:
        """Run the command to its end."""
        self.end(self.start(*words))

    def status(self) -> None:
        """Note what `--status` prints."""
        process = self.start("--status")
        output, _ = process.communicate()
        self.told.append({"status": process.returncode, "lines": [*map(self.plain, output.splitlines())]})

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill the driver, and wait for the end of everything that it started."""
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        psutil.wait_procs(below)

    def plain(self, line: str) -> str:
        """Return a line without times, paths and ids."""
        line = line.replace(str(self.folder), "HERE")
        line = re.sub(r"\b[0-9a-f]{8}\b", "ID", line)
        line = re.sub(r"\S+/bin/ampcompare", "ampcompare", line)
        line = re.sub(r"\b0\.\d{4,}", "DRAWN", line)
        line = re.sub(r" after [\d.:]+( s)?", " after TIME", line)
        line = re.sub(r", [\d.:]+( s)? left", ", TIME left", line)
        line = re.sub(r"\(\S+, pid \d+\)", "(HOST, pid PID)", line)
        line = re.sub(r"stopped after TIME, score \S+", "stopped after TIME, score VALUE", line)
        return re.sub(r"[ ─]{2,}", "  ", line).strip()

    def journal(self) -> list[str]:
        """Return the events in their order, without what differs each time."""
        ids: dict[str, str] = {}
        lines = []
        for text in (self.folder / "out" / "sweep.jsonl").read_text().splitlines():
            event = json.loads(text)
            kind = event.pop("event")
            for key in ("time", "host", "pid", "process_started", "modified", "hashes"):
                event.pop(key, None)
            if "run_id" in event:
                event["run_id"] = ids.setdefault(event["run_id"], f"id{len(ids)}")
            if "process" in event:
                event["process"] = sorted(event["process"])
            is_drawn = isinstance(event.get("value"), float) and "DRAWN" in self.plain(str(event["value"]))
            if event.get("state") == "stopped" or is_drawn:
                event["value"] = "VALUE"
            if event.get("drawn"):
                event["drawn"], event["parameters"] = sorted(event["drawn"]), sorted(event["parameters"])
            lines.append(f"{kind} {json.dumps(event, sort_keys=True)}")
        return lines


def grid(scene: Scene, *words: str) -> None:
    scene.file()
    scene.play(*words)
    scene.status()
    scene.play()


def two_workers(scene: Scene) -> None:
    scene.file(program="/bin/true", command=["${program}"])
    scene.play("--workers=2")
    scene.status()


def failed_points(scene: Scene) -> None:
    scene.modes(x2="fail")
    scene.file()
    scene.play()
    scene.status()
    scene.play()


def rerun(scene: Scene) -> None:
    failed_points(scene)
    scene.modes()
    scene.play("--rerun")
    scene.status()


def killed_by_signal(scene: Scene) -> None:
    scene.modes(x1="kill")
    scene.file()
    scene.play()
    scene.status()


def killed_once(scene: Scene) -> None:
    scene.modes(x1="kill once")
    scene.file()
    scene.play()


def interrupted(scene: Scene, mode: str = "hold", number: int = signal.SIGINT) -> None:
    scene.modes(x1=mode)
    scene.file()
    scene.hold()
    process = scene.start()
    scene.ready("1-1")
    process.send_signal(number)
    scene.end(process)
    scene.status()


def continued(scene: Scene) -> None:
    interrupted(scene)
    scene.release()
    scene.play()
    scene.status()


def interrupted_orderly(scene: Scene) -> None:
    interrupted(scene, "orderly", signal.SIGUSR1)
    scene.release()
    scene.play()


def signal_to_all(scene: Scene) -> None:
    scene.modes(x1="hold")
    scene.file()
    scene.hold()
    process = scene.start()
    scene.ready("1-1")
    for child in psutil.Process(process.pid).children(recursive=True):
        child.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    scene.end(process)
    scene.status()
    scene.release()
    scene.play()


def second_stop(scene: Scene) -> None:
    scene.modes(x1="stubborn hold")
    scene.file()
    scene.hold()
    process = scene.start()
    scene.ready("1-1")
    process.send_signal(signal.SIGINT)
    assert process.stdout
    for line in process.stdout:
        if line.startswith("stopping"):
            break
    time.sleep(0.5)  # two signals within 0.3 s are one request
    process.send_signal(signal.SIGINT)
    scene.end(process)
    scene.status()
    scene.release()
    scene.play()


def stop_that_is_ignored(scene: Scene) -> None:
    scene.modes(x1="stubborn")
    scene.file()
    process = scene.start()
    scene.ready("1-1")
    process.send_signal(signal.SIGINT)
    assert process.stdout
    for line in process.stdout:
        if line.startswith("stopping"):
            break
    (scene.folder / "finish").touch()
    scene.end(process)
    scene.status()


def driver_killed(scene: Scene, mode: str = "hold") -> None:
    scene.modes(x1=mode)
    scene.file(parameters={"rows": {"value": 2}}, metric={"name": "score"})
    scene.hold()
    process = scene.start()
    scene.ready("1-1")
    scene.kill(process)
    scene.status()
    scene.release()
    scene.play()
    scene.status()


def driver_killed_orderly(scene: Scene) -> None:
    driver_killed(scene, "orderly")


def driver_killed_and_run_finishes(scene: Scene) -> None:
    scene.modes(x1="complete")
    scene.file(parameters={"rows": {"value": 2}}, metric={"name": "score"})
    process = scene.start()
    scene.ready("1-1")
    (below,) = [
        child for child in psutil.Process(process.pid).children() if "p.py" in " ".join(child.cmdline())
    ]
    process.kill()
    process.wait()  # its guard still has the output
    psutil.wait_procs([below])
    scene.status()
    scene.play()


def driver_killed_twice(scene: Scene) -> None:
    scene.modes(x1="hold", x2="hold")
    scene.file()
    scene.hold()
    for start in ("1", "2"):
        process = scene.start("--workers=3")
        scene.ready(f"1-{start}")
        scene.ready(f"2-{start}")
        scene.ready("3-1")
        time.sleep(0.5)  # until the end of x=3 is in the journal
        scene.kill(process)
    scene.status()
    scene.release()
    scene.play("--workers=1")


def random_search(scene: Scene) -> None:
    scene.file(
        method="random", run_cap=3, metric={"name": "score"}, parameters={"rows": {"value": 1}}, name="r"
    )
    scene.play()
    scene.status()


def search_with_target(scene: Scene) -> None:
    scene.file(
        method="random",
        run_cap=9,
        metric={"name": "score", "target": 2.5, "goal": "maximize"},
        parameters={"rows": {"value": 1}},
    )
    scene.play()
    scene.status()


def bayes(scene: Scene) -> None:
    parameters = {"x": {"min": 0.0, "max": 1.0}, "rows": {"value": 1}}
    scene.file(method="bayes", run_cap=3, metric={"name": "score"}, parameters=parameters)
    scene.play()


def hyperband(scene: Scene) -> None:
    scene.modes(x1="endless")
    scene.file(
        [5, 1, 4],
        metric={"name": "score", "goal": "maximize"},
        early_terminate={"type": "hyperband", "min_iter": 3, "eta": 2},
        parameters={"rows": {"value": 20}, "pause": {"value": 0.15}},
    )
    scene.play()
    scene.status()


def cannot_start(scene: Scene) -> None:
    scene.file(program="no-such-program", command=["no-such-program"])
    scene.play()
    scene.status()


def changed_code(scene: Scene) -> None:
    interrupted(scene)
    scene.release()
    program = scene.folder / "p.py"
    program.write_text(program.read_text() + "\n")
    scene.play()
    scene.status()


def added_points(scene: Scene) -> None:
    scene.file(parameters={"seed": {"values": [1]}})
    scene.play()
    scene.play("seed=1,2")
    scene.status()


def own_training(scene: Scene) -> None:
    text = "# ampcompare.entrypoint\n" + (scene.folder / "p.py").read_text()
    (scene.folder / "run_experiment.py").write_text(text)
    scene.modes(x1="orderly", x2="orderly", x3="orderly")
    scene.file()
    content = yaml.safe_load((scene.folder / "s.yaml").read_text())
    content |= {"program": "run_experiment.py", "parameters": {"seed": {"values": [1, 2, 3]}}}
    (scene.folder / "s.yaml").write_text(yaml.safe_dump(content))
    scene.hold()
    process = scene.start("backend=none")
    scene.wait(lambda: any(scene.folder.glob("ready-*")))
    process.send_signal(signal.SIGINT)
    scene.end(process)
    scene.release()
    scene.play("backend=none")


SCENES: tuple[Callable[[Scene], None], ...] = (
    grid,
    two_workers,
    failed_points,
    rerun,
    killed_by_signal,
    killed_once,
    interrupted,
    continued,
    interrupted_orderly,
    signal_to_all,
    second_stop,
    stop_that_is_ignored,
    driver_killed,
    driver_killed_orderly,
    driver_killed_and_run_finishes,
    driver_killed_twice,
    random_search,
    search_with_target,
    bayes,
    hyperband,
    cannot_start,
    changed_code,
    added_points,
    own_training,
)


def describe(source: Path, folder: Path, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Play the scenes, and yield the description of each."""
    for play in SCENES:
        if names and play.__name__ not in names:
            continue
        scene = Scene(source, folder / play.__name__)
        play(scene)
        events = scene.journal() if (scene.folder / "out" / "sweep.jsonl").exists() else []
        yield play.__name__, {"commands": scene.told, "journal": events}


def main(source: str, folder: str, *names: str) -> None:
    """Print the description as YAML."""
    for name, description in describe(Path(source).resolve(), Path(folder).resolve(), [*names]):
        yaml.safe_dump({name: description}, sys.stdout, sort_keys=False, allow_unicode=True, width=1000)
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
