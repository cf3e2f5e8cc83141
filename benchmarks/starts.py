#!/usr/bin/env python3
"""What it costs to start a run: CPU time of a tiny one beside the least program that does as much.

    python benchmarks/starts.py [--rounds 9] [--out FILE]

The least program is PyTorch, a linear layer, an optimizer and an offline W&B run of eight rows. The tiny run
is one of eight steps, with its evaluation, record and summary. They take turns, the order changing, in
processes of their own, W&B's service with them; what counts is the median of the ratios within a round. A run
that is forked from a process which has everything loaded stands beside them: what keeping one would save.
Exit code 1 if the tiny run takes more than 1.15 times the least program.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from support.zygote import Zygote  # noqa: E402

from ampcompare.machine.environment import cpu_name  # noqa: E402

AIM = 1.15
LEAST = """
import sys
import torch
import wandb

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = wandb.init(mode="offline", dir=sys.argv[1])
for step in range(8):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()})
run.finish()
"""
TINY = (
    "--config=demo",
    "model.name=tiny",
    "data.train_limit=32",
    "data.test_limit=16",
    "batch_size=4",
    "epochs=1",
    "device=cpu",
    "backend=none",
    "wandb.mode=offline",
)


def of_program(*command: object) -> Callable[[], float]:
    """CPU seconds of a program and of what it waited for."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return once


def of_fork(zygote: Zygote, *words: str) -> Callable[[], float]:
    """CPU seconds of a run that a process with everything loaded forks, as the tests do."""
    tick = os.sysconf("SC_CLK_TCK")

    def waited_for() -> float:
        fields = Path(f"/proc/{zygote.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / tick  # cutime, cstime: proc(5)

    def once() -> float:
        before = waited_for()
        done = zygote.run(*words)
        if done["code"]:
            sys.exit(done["said"])
        return waited_for() - before

    return once


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    with tempfile.TemporaryDirectory() as folder:
        least = Path(folder) / "least.py"
        least.write_text(LEAST)
        words = (*TINY, f"output_dir={folder}")
        zygote = Zygote()
        kinds = {
            "least program": of_program(least, folder),
            "tiny run": of_program("run_experiment.py", *words),
            "tiny run, forked": of_fork(zygote, *words),
        }
        for once in kinds.values():  # compiled modules, files in memory
            once()
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(asked.rounds):
            for name in sorted(kinds, reverse=bool(number % 2)):
                seconds[name].append(kinds[name]())
        zygote.close()
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, seconds["least program"], strict=True))
        for name, values in seconds.items()
    }
    for name, values in seconds.items():
        print(
            f"{name}: {statistics.median(values):.2f} s of CPU time, {ratios[name]:.3f} of the least program"
        )
    load, count = os.getloadavg()[0], os.cpu_count()
    print(f"medians of {asked.rounds} rounds; {cpu_name()}, load average {load:.1f} on {count} CPUs")
    if asked.out:
        asked.out.write_text(json.dumps({"cpu_seconds": seconds, "ratios": ratios}, indent=1) + "\n")
    return 0 if ratios["tiny run"] <= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
