"""A sweep under fire: its workers and runs are killed at random for minutes, then it is looked at.

    python benchmarks/sweep_soak.py --minutes 10                 # SQLite, workers of one machine
    python benchmarks/sweep_soak.py --minutes 10 --postgres      # a PostgreSQL of its own, restarted as well
    python benchmarks/sweep_soak.py --storage postgresql://...   # a given one

200 points of a program that writes a W&B record and trains nothing, 8 workers, each a process as on a machine
of its own. SIGKILL and SIGTERM go to these workers and to their runs, by process id; who dies is replaced.
After the last kill all goes on to its end. Then every point has to be in the records once, finished once, and
once in the database; the screens have to have said so, and no process may be left. Exit code 1 where not.

A run is taken from its worker for good (SIGKILL of either, SIGTERM of the run) once at most: one that is lost
twice is told as lost, as promised, and would be missing here.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("soak_program.py")
GRACE_SECONDS = 10.0
KINDS = ("kill run", "term run", "kill worker", "term worker")
OUTAGE_SECONDS = (0.0, 5.0, 15.0)  # of a database: shorter than the grace and longer


class Soak:
    """Workers of one sweep, and what was done to them."""

    def __init__(self, folder: Path, storage: str | None, workers: int, points: int, seconds: float) -> None:
        self.folder, self.storage, self.count, self.points = folder, storage, workers, points
        self.out, self.screens = folder / "out", folder / "screens"
        self.screens.mkdir(parents=True)
        self.file = folder / "soak.yaml"
        parameters = {"x": {"values": list(range(points))}, "seconds": {"value": seconds}}
        content = {"program": str(PROGRAM), "method": "grid", "name": "soak", "parameters": parameters}
        self.file.write_text(yaml.safe_dump(content))
        self.alive: dict[int, Path] = {}  # workers: their screens
        self.codes: list[tuple[Path, int]] = []
        self.lost: set[int] = set()  # points that were taken away once
        self.done: Counter[str] = Counter()

    def fill(self) -> None:
        """As many workers as there should be."""
        while len(self.alive) < self.count:
            screen = self.screens / f"{len(self.codes) + len(self.alive):04}.log"
            pid = os.fork()
            if pid == 0:
                self._work(screen)
            self.alive[pid] = screen

    def _work(self, screen: Path) -> None:
        """A worker, in a process that has the imports done. Never returns."""
        code = 70
        try:
            descriptor = os.open(screen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for number in (1, 2):
                os.dup2(descriptor, number)
            code = _sweep(self.file, self.out, self.storage)
        except BaseException as problem:
            os.write(2, f"error: {type(problem).__name__}: {problem}\n".encode())
            code = 2
        finally:
            os._exit(code)

    def collect(self) -> bool:
        """Note the workers that have ended; whether one ended by itself with all done."""
        is_over = False
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in self.alive:
                code = os.waitstatus_to_exitcode(status)
                self.codes.append((self.alive.pop(pid), code))
                is_over |= code == 0
        return is_over

    def strike(self, kind: str, dice: random.Random) -> None:
        """Do this to one of the workers, or to a run."""
        worker = dice.choice(list(self.alive))
        number = signal.SIGKILL if kind.startswith("kill") else signal.SIGTERM
        if kind == "term worker":  # its run is queued again, as often as that happens
            os.kill(worker, number)
            return self._note(kind, None)
        os.kill(worker, signal.SIGSTOP)  # it does not change while it is looked at
        wait_for(lambda: state_of(worker) in "TZX", "a stopped worker")
        try:
            runs = runs_of(worker)
            point = next(iter(runs.values()), self._last_started(worker))
            if point in self.lost or (not runs and kind.endswith("run")):
                return None
            target = worker if kind.endswith("worker") else next(iter(runs))
            with contextlib.suppress(ProcessLookupError):  # the run has ended just now
                os.kill(target, number)
            if point is not None:
                self.lost.add(point)
            self._note(kind, point)
        finally:
            os.kill(worker, signal.SIGCONT)

    def _last_started(self, worker: int) -> int | None:
        found = re.findall(r"^run \d+ started.*\bx=(\d+)", self.alive[worker].read_text(), re.M)
        return int(found[-1]) if found else None

    def _note(self, kind: str, point: int | None) -> None:
        self.done[kind] += 1
        with (self.folder / "strikes.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time(), "kind": kind, "x": point}) + "\n")

    def judge(self) -> list[str]:
        """All that is not as it should be."""
        from ampcompare.records import load_runs
        from ampcompare.records.wandb_file import read_wandb_file

        runs = load_runs([self.out])
        found = Counter(run.config["x"] for run in runs)
        wrong = [f"x={x}: {found[x]} runs in the records" for x in range(self.points) if found[x] != 1]
        cut = [run for run in runs if run.state != "finished"]
        wrong += [f"x={run.config['x']}: its record is {run.state}" for run in cut]
        ended: Counter[str] = Counter()
        for file in self.out.glob("wandb/*run-*/run-*.wandb"):
            ended[file.stem] += read_wandb_file(file).exit_code == 0
        wrong += [f"{run}: finished {times} times" for run, times in ended.items() if times != 1]
        rows = _queue(self.file, self.out, self.storage).rows()
        states = Counter((row.parameters.get("x"), row.state) for row in rows)
        right = Counter((x, "finished") for x in range(self.points))
        wrong += [f"x={x}: {n} times {state} in the database" for (x, state), n in (states - right).items()]
        wrong += [f"x={x}: not {state} in the database" for x, state in right - states]
        wrong += [line for screen, code in self.codes for line in self._judge_screen(screen, code)]
        left = [pid for pid, words in processes() if str(PROGRAM) in words and str(self.out) in words]
        return wrong + [f"process {pid} is left" for pid in left]

    def _judge_screen(self, screen: Path, code: int) -> Iterator[str]:
        said = screen.read_text()
        counts = [int(number) for number in re.findall(r"(\d+) of \d+ done", said)]
        if code == 0 and counts and counts[-1] != self.points:
            yield f"{screen.name}: its last count is {counts[-1]}"
        if counts != sorted(counts):
            yield f"{screen.name}: its count went down"
        # By SIGTERM itself where it came before there was anything to end.
        early = [-signal.SIGTERM] if " started" not in said else []
        # One that comes while the database is away is told so in a line, and has begun nothing.
        if self.done["restart"] and " started" not in said and "cannot be used" in said:
            early.append(2)
        if code not in (0, -signal.SIGKILL, 128 + signal.SIGTERM, *early):
            yield f"{screen.name}: exit code {code}: {said.splitlines()[-1:]}"


def _sweep(file: Path, out: Path, storage: str | None) -> int:
    from rich.console import Console

    from ampcompare.sweeps.run import Request, run_sweep

    console = Console(highlight=False, width=200)
    request = Request(1, storage, grace_seconds=GRACE_SECONDS, report=False)
    return run_sweep(str(file), [f"output_dir={out}"], console, request)


def _queue(file: Path, out: Path, storage: str | None) -> Any:
    from ampcompare.sweeps.queue import Queue
    from ampcompare.sweeps.storage import sqlite_url
    from ampcompare.sweeps.sweep_file import read_sweep

    return Queue(read_sweep(file), storage or sqlite_url(out), "soak", GRACE_SECONDS)


def processes() -> Iterator[tuple[int, str]]:
    """Every process with its words and, of those that may be read, its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            yield int(folder.name), words.decode(errors="replace")


def state_of(pid: int) -> str:
    """The letter of its state, X where it is no more."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def runs_of(worker: int) -> dict[int, int]:
    """The running programs of a worker, by process id: their points."""
    found = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes()
        for thread in Path(f"/proc/{worker}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes()
    points = {pid: re.search(rb"--x=(\d+)", words) for pid, words in found.items()}
    return {pid: int(match[1]) for pid, match in points.items() if match and state_of(pid) != "Z"}


def wait_for(true: Any, what: str, seconds: float = 900) -> None:
    """Wait for a condition. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.02)


def soak(soaked: Soak, seconds: float, server: Any, seed: int) -> None:
    """Strike for so many seconds, then let all end."""
    dice = random.Random(seed)  # noqa: S311
    until, is_over = time.monotonic() + seconds, False
    pause = max(0.2, seconds / (0.9 * soaked.points))
    next_restart = time.monotonic() + seconds / 5
    while time.monotonic() < until and not is_over:
        soaked.fill()
        time.sleep(dice.expovariate(1 / pause))
        is_over = soaked.collect()
        if soaked.alive and not is_over:
            soaked.strike(dice.choices(KINDS, (3, 3, 2, 2))[0], dice)
        if server and time.monotonic() > next_restart:
            away = dice.choice(OUTAGE_SECONDS)
            server.stop(dice.choice(["fast", "immediate"]))
            time.sleep(away)
            server.start()
            soaked.done["restart"] += 1
            soaked.done[f"restart after {away:g} s"] += 1
            next_restart = time.monotonic() + seconds / 5
    soaked.collect()
    if not is_over:
        soaked.fill()

    def is_quiet() -> bool:
        soaked.collect()
        return not soaked.alive

    wait_for(is_quiet, "the end of all workers", 3600)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of killing; to the end it takes longer")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storage", help="a database; by default a file in the folder")
    parser.add_argument("--postgres", action="store_true", help="start a PostgreSQL, and restart it")
    parser.add_argument("--folder", type=Path, help="for records and screens; by default a temporary one")
    given = parser.parse_args(words)
    import ampcompare.sweeps.run  # noqa: F401 (before the forks)

    seconds, server = given.minutes * 60, None
    if given.postgres:
        sys.path.insert(0, str(ROOT / "tests"))
        from support.postgres import started

        server = started()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="ampcompare-soak-"))).resolve()
    # The runs take about as long as the killing, all workers at work.
    each = 0.7 * seconds * given.workers / given.points
    storage = server.database() if server else given.storage
    soaked = Soak(folder, storage, given.workers, given.points, each)
    began = time.monotonic()
    try:
        soak(soaked, seconds, server, given.seed)
        wrong = soaked.judge()
    finally:
        for pid in soaked.alive:
            os.kill(pid, signal.SIGKILL)
        if server:
            server.close()
    done = ", ".join(f"{times} x {kind}" for kind, times in sorted(soaked.done.items()))
    kind = "PostgreSQL" if storage and storage.startswith("postgres") else "SQLite"
    print(f"{kind}: {given.points} points, {given.workers} workers, {time.monotonic() - began:.0f} s; {done}")
    print("\n".join(wrong) if wrong else "every point once in the records, finished once, counted once")
    print(f"in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
