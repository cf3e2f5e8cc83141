"""Reading runs back: `python benchmarks/reading.py` writes 200 runs in the form of W&B's client and reads
them twice, the second time from what the first kept.

CPU seconds of all processes, beside those that W&B's client takes to write such runs; memory of all processes
together, each shared page counted once among those that share it (Linux' PSS). 750 MB on the disk meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from support.client_form import client_records, row_records  # noqa: E402
from support.log_writer import frame  # noqa: E402

from ampcompare.errors import UserError  # noqa: E402

KEYS = (
    *("train/loss", "train/accuracy", "train/learning_rate", "amp/scale_factor", "epoch"),
    *("time/elapsed_seconds", "throughput/images_per_second", "throughput/step_time_ms", "memory/peak_mib"),
)
BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")
POLL_SECONDS = 0.05
READ = """
import json, os, sys, time
began = time.perf_counter()
from ampcompare.records import load_runs
runs = load_runs([sys.argv[1]])
rows, problems = sum(run.rows for run in runs), sum(len(run.problems) for run in runs)
spent = os.times()
print(json.dumps({"rows": rows, "runs": len(runs), "problems": problems, "wall": time.perf_counter() - began,
                  "cpu": sum(spent[:4])}))
"""
WRITE = """
import json, os, sys, wandb
rows = json.load(sys.stdin)
for number in range(int(sys.argv[2])):
    run = wandb.init(mode="offline", dir=sys.argv[1], project="reading", config={"seed": number})
    for row in rows:
        run.log(row)
    run.finish()
wandb.teardown()
print(sum(os.times()[:4]))
"""


def rows_of(count: int, backend: int) -> list[dict[str, Any]]:
    """Rows with ten keys; the client adds three."""
    made = []
    for step in range(count):
        row = {key: math.sin(step / (n + 2 + backend)) + n for n, key in enumerate(KEYS)}
        made.append({"global_step": 50 * step, **row, "amp/scale_factor": 65536.0})
    return made


def write_in_its_form(folder: Path, runs: int, rows: int) -> int:
    """Write runs by the tests' writer; returns the bytes."""
    size = 0
    bodies = [row_records(rows_of(rows, n)) for n in range(len(BACKENDS))]
    for number in range(runs):
        kind, seed = number % len(BACKENDS), number // len(BACKENDS)
        plan = {
            "config": {"backend": BACKENDS[kind], "seed": seed, "batch_size": 128},
            "rows": bodies[kind][::3],
            "summary": {"best/eval_accuracy": 0.9 + seed / 1000},
            "wandb": {"project": "reading", "name": f"{BACKENDS[kind]} {seed}"},
            "kill": False,
            "exit_code": 0,
        }
        content = frame(client_records(plan, f"r{number:03}", bodies[kind]))
        path = folder / f"offline-run-20260101_000{number:03}-r{number:03}" / f"run-r{number:03}.wandb"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        size += len(content)
    return size


def write_by_client(runs: int, rows: int) -> float:
    """CPU seconds that W&B's client takes for one such run, its service included."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"WANDB_SILENT": "true", "HOME": folder}
        done = subprocess.run(
            [sys.executable, "-c", WRITE, folder, str(runs)],
            input=json.dumps(rows_of(rows, 0)),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.split()[-1]) / runs


def read(folder: Path, cache: Path) -> dict[str, Any]:
    """Load the runs in a process of its own: CPU seconds, seconds by the clock, the most memory, in MiB."""
    environment = os.environ | {"AMPCOMPARE_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", READ, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    )
    peak = 0
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(POLL_SECONDS):
            peak = max(peak, sum(map(_pss_kib, _family(process.pid))))

    watching = threading.Thread(target=watch)
    watching.start()
    said, _ = process.communicate()
    over.set()
    watching.join()
    if process.returncode:
        raise UserError(f"reading ended with exit code {process.returncode}")
    return {**json.loads(said), "peak_mib": peak / 1024}


def _family(process: int) -> Iterator[int]:
    """The process and all that it started."""
    yield process
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))
    except OSError:  # it has ended
        return


def _pss_kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4000, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of both ways of reading")
    parser.add_argument("--client", type=int, default=3, help="runs that W&B's client writes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs, cache = Path(place, "runs"), Path(place, "cache")
        size = write_in_its_form(runs, asked.runs, asked.rows)
        writing = [write_by_client(1, asked.rows) for _ in range(asked.client)]
        found: dict[str, list[dict[str, Any]]] = {"reading": [], "reading again": []}
        for _ in range(asked.rounds):
            shutil.rmtree(cache, ignore_errors=True)
            for way in found:
                found[way].append(read(runs, cache))
    print(f"{asked.runs} runs of {asked.rows:,} rows with {len(KEYS) + 4} keys: {size / 1e6:,.0f} MB\n")
    print("| | CPU seconds | rows/s a core | seconds by the clock | most memory, MiB |")
    print("|---|---:|---:|---:|---:|")
    count = asked.runs * asked.rows
    if writing:
        cpu = sorted(writing)[len(writing) // 2] * asked.runs
        print(f"| writing by W&B's client (from {len(writing)}) | {cpu:,.0f} | {count / cpu:,.0f} | | |")
    for way, rounds in found.items():
        assert all(r["rows"] == count and r["runs"] == asked.runs and not r["problems"] for r in rounds)
        middle = sorted(rounds, key=lambda r: r["cpu"])[len(rounds) // 2]
        most = max(r["peak_mib"] for r in rounds)
        speed = f"{count / middle['cpu']:,.0f}"
        print(f"| {way} | {middle['cpu']:.1f} | {speed} | {middle['wall']:.1f} | {most:,.0f} |")
    machine = f"{_processor()}, {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f}"
    when = f"Python {platform.python_version()}, {datetime.now(UTC).isoformat(timespec='minutes')}"
    print(f"\nMedians of {asked.rounds} interleaved rounds. {machine}, {when}")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


if __name__ == "__main__":
    main()
