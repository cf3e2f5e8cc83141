"""Soak test of sweeps: runs and their driver are killed at random, and every point must still finish once.

    python benchmarks/sweep_soak.py                    # three minutes of killing, 200 points, 8 workers
    python benchmarks/sweep_soak.py --minutes 0.5 --points 40

`soak_program.py` writes a W&B record as W&B's client does offline, and trains nothing. Every few seconds a
run gets SIGKILL or SIGTERM. Six times something happens to the driver: it is killed and started again by the
same command, alone, with its guard, or with its process group; its guard is killed alone; or it is stopped
(SIGSTOP) for a while.
At the end: every point finished once in the records and in the journal, every count of the driver is right,
and no process is left. Exit code 1 and a line for each thing that is not so.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("soak_program.py")
MAX_SIGNALS = 2  # to one run: the third would make it fail
# In this order, at equal distances.
EVENTS = ("driver", "stop", "guard", "driver", "driver and guard", "group")
STOP_FRACTION = 0.1  # of the time of killing, for which the driver is stopped


class Soak:
    """A sweep, its driver, and what was done to them.

    Args:
        folder: For the sweep's output and the driver's screens.
        points: Number of points.
        workers: Number of runs at a time.
        seconds: Duration of a run.
        seed: Of the random choices.
    """

    def __init__(self, folder: Path, points: int, workers: int, seconds: float, seed: int) -> None:
        self.folder, self.points, self.workers = folder, points, workers
        self.out = folder / "out"
        self.dice = random.Random(seed)  # noqa: S311
        self.file = folder / "soak.yaml"
        parameters = {"x": {"values": list(range(points))}, "seconds": {"value": seconds}}
        content = {"program": str(PROGRAM), "method": "grid", "name": "soak", "parameters": parameters}
        self.file.write_text(yaml.safe_dump(content))
        self.screens: list[Path] = []
        self.driver: subprocess.Popen[bytes] | None = None
        self.signals: Counter[str] = Counter()  # by run
        self.strikes: Counter[str] = Counter()

    def start(self) -> None:
        """Start the driver, by the same command each time."""
        self.screens.append(self.folder / f"screen-{len(self.screens)}.log")
        code = "import sys; from ampcompare.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "sweep", str(self.file), f"--workers={self.workers}"]
        with self.screens[-1].open("wb") as screen:
            self.driver = subprocess.Popen(
                [*command, f"output_dir={self.out}"],
                stdout=screen,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                start_new_session=True,
            )

    def kill_driver(self) -> None:
        """SIGKILL the driver and start it again."""
        assert self.driver
        self.driver.kill()
        self.driver.wait()
        self.strikes["driver killed"] += 1
        self.start()

    def strike_driver(self, event: str, stop_seconds: float) -> None:
        """Let one of EVENTS happen."""
        assert self.driver
        if event == "stop":
            self.driver.send_signal(signal.SIGSTOP)
            time.sleep(stop_seconds)
            self.driver.send_signal(signal.SIGCONT)
            self.strikes["driver stopped"] += 1
            return
        if event in ("guard", "driver and guard"):
            for process in psutil.Process(self.driver.pid).children():
                with suppress(psutil.Error):
                    if any("process_guard" in word for word in process.cmdline()):
                        process.kill()
                        self.strikes["guard killed"] += 1
        if event == "group":
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.strikes["group killed"] += 1
        if event != "guard":
            self.kill_driver()

    def strike_run(self) -> None:
        """Send a signal to one of the running runs that has not had too many."""
        running = [(pid, run) for pid, run in self.runs() if self.signals[run] < MAX_SIGNALS]
        if running:
            pid, run = self.dice.choice(running)
            number = self.dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                self.signals[run] += 1
                self.strikes[f"run {number.name}"] += 1

    def runs(self) -> Iterator[tuple[int, str]]:
        """Yield the running programs: process id and W&B's id of the run."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(PROGRAM) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    environment = process.environ()
                    if environment.get("WANDB_DIR") == str(self.out):
                        yield process.pid, environment["WANDB_RUN_ID"]

    def problems(self) -> Iterator[str]:
        """Yield everything that is not as it should be."""
        from ampcompare import load_runs
        from ampcompare.runs.wandb_file import read_wandb_file
        from ampcompare.sweeps.journal import read_journal

        assert self.driver
        if self.driver.returncode != 0:
            yield f"the driver ended with exit code {self.driver.returncode}"
        runs = load_runs([str(self.out)])
        counts = Counter(run.config["x"] for run in runs)
        yield from (f"x={x}: {counts[x]} runs in the records" for x in range(self.points) if counts[x] != 1)
        yield from (
            f"x={run.config['x']}: its record is {run.state}" for run in runs if run.state != "finished"
        )
        ends: Counter[str] = Counter()
        for file in self.out.glob("wandb/*run-*/run-*.wandb"):
            ends[file.stem] += read_wandb_file(file).exit_code == 0
        yield from (f"{run}: finished {count} times" for run, count in ends.items() if count != 1)
        state = read_journal(self.out)
        known = {run.parameters["x"]: run.state for run in state.runs.values()} if state else {}
        for x in range(self.points):
            if known.get(x) != "finished":
                yield f"x={x}: {known.get(x, 'not there')} in the journal"
        for screen in self.screens:
            done = [int(number) for number in re.findall(r"(\d+) of \d+ done[,)]", screen.read_text())]
            if done != sorted(done):
                yield f"{screen.name}: its count went down"
        last = re.findall(r"(\d+) of \d+ done", self.screens[-1].read_text())
        if last and int(last[-1]) != self.points:
            yield f"{self.screens[-1].name}: its last count is {last[-1]}"
        yield from (f"process {pid} is left" for pid, _ in self.runs())


def main(words: list[str] | None = None) -> int:
    """Run the soak test; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=3.0, help="of killing; to the end it takes longer")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="for records and screens; by default a temporary one")
    given = parser.parse_args(words)
    seconds = given.minutes * 60
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="ampcompare-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # The runs take about as long as the killing, with all workers busy.
    soak = Soak(folder, given.points, given.workers, 0.7 * seconds * given.workers / given.points, given.seed)
    began = time.monotonic()
    soak.start()
    assert soak.driver
    events = [(began + seconds * (n + 1) / (len(EVENTS) + 1), event) for n, event in enumerate(EVENTS)]
    try:
        while time.monotonic() - began < seconds and soak.driver.poll() is None:
            time.sleep(soak.dice.expovariate(1 / 2.0))
            soak.strike_run()
            if events and time.monotonic() > events[0][0]:
                soak.strike_driver(events.pop(0)[1], STOP_FRACTION * seconds)
        soak.driver.wait()
        problems = [*soak.problems()]
    finally:
        soak.driver.kill()
    strikes = ", ".join(f"{count} x {kind}" for kind, count in sorted(soak.strikes.items()))
    print(f"{given.points} points, {given.workers} workers, {time.monotonic() - began:.0f} s; {strikes}")
    print(
        "\n".join(problems)
        if problems
        else "every point finished once, counted once; nothing is left running"
    )
    print(f"in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
