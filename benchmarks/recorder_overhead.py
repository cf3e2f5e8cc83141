#!/usr/bin/env python3
"""What `Recorder.step` costs the thread that trains, beside the same loop without it.

    python benchmarks/recorder_overhead.py [--processes 12] [--rounds 100] [--every 50] [--out FILE]

In each process a loop trains a tiny network on one CPU thread, in turns with a Recorder (a GradScaler, an
offline W&B run) and without one, on the same network. Rounds are short, since the machine changes from one to
the next, and so does the order; what counts is the difference of the thread's CPU time (`time.thread_time`)
within a round: W&B's client and the threads that hand it the rows are not the training's thread. Estimated
from each process's median: their mean with its 95 % interval (Student). Exits with 1 unless all of it lies
below 0.05 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

LIMIT_MS = 0.05
STEPS = 50  # of a round: short, as what else the machine does changes from one to the next


def measure(rounds: int, every: int) -> dict[str, Any]:
    """Milliseconds of the thread's CPU time a step in each round, of both loops."""
    import torch

    from ampcompare import Recorder
    from ampcompare.machine.environment import describe_environment

    torch.set_num_threads(1)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    x, y = torch.randn(128, 64), torch.randint(0, 10, (128,))

    def run(record: Recorder | None) -> None:
        for _ in range(STEPS):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if record is not None:
                record.step(loss=loss, samples=128)

    ms: dict[str, list[float]] = {"bare": [], "recorded": []}
    parts = {"scaler": scaler, "optimizer": optimizer, "model": model}
    with tempfile.TemporaryDirectory() as folder:
        how = {"every": every, "output_dir": folder, "quiet": True, "seed": 0, "batch_size": 128}
        with Recorder(backend="native", **parts, **how) as record:
            for number in range(-2, rounds):  # two rounds of warm-up
                for name in sorted(ms, reverse=bool(number % 2)):
                    record.resume()
                    began = time.thread_time()
                    run(record if name == "recorded" else None)
                    spent = time.thread_time() - began
                    record.pause()
                    if number >= 0:
                        ms[name].append(spent / STEPS * 1e3)
        environment = describe_environment(torch.device("cpu"))
    return {"ms": ms, "environment": environment}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.child:
        print(json.dumps(measure(words.rounds, words.every)))
        return 0
    environment = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", f"--rounds={words.rounds}", f"--every={words.every}"]
    found = []
    for _ in range(words.processes):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    extra, bare = [], []
    for one in found:
        pairs = zip(one["ms"]["recorded"], one["ms"]["bare"], strict=True)
        extra.append(statistics.median(a - b for a, b in pairs))
        bare.append(statistics.median(one["ms"]["bare"]))
    low, high = interval(extra)
    machine = found[0]["environment"]
    print(
        f"Recorder.step, a row every {words.every} steps: {statistics.mean(extra):.4f} ms of the thread's "
        f"CPU time a step (95 %: {low:.4f} to {high:.4f}, {len(extra)} processes of {words.rounds} rounds of "
        f"{STEPS} steps), beside a bare step of {statistics.mean(bare):.3f} ms; limit {LIMIT_MS:g} ms; "
        f"{machine['device_name']}, torch {machine['torch']}"
    )
    if words.out:
        words.out.write_text(json.dumps({"extra_ms": extra, "processes": found}, indent=1) + "\n")
    return 0 if high < LIMIT_MS else 1


def interval(values: list[float]) -> tuple[float, float]:
    """The mean's 95 % interval, by Student's distribution."""
    from ampcompare.report.statistics.estimate import quantile

    if len(values) < 2:
        return float("-inf"), float("inf")
    middle, half = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    half *= quantile(0.975, len(values) - 1)
    return middle - half, middle + half


if __name__ == "__main__":
    sys.exit(main())
