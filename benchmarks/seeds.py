"""What one more seed costs: in a process of its own, and in a process that has trained other seeds.

    python benchmarks/seeds.py                        # resnet20, eager and compiled
    python benchmarks/seeds.py --network resnet50 --execution eager --rounds 5

For each network and execution, processes with one seed and processes with several seeds (`ampcompare run
--runs`) take turns. The table has the seconds of each part of a run, in the first process (the compiler's
cache is empty), in later processes (the cache is full), and for later seeds in a process:

- imports: Python, PyTorch, W&B and AMP Compare.
- preparing: options, device, data, network, optimizer.
- W&B: to start the record and to end it.
- first step: tracing, compiling, and the step itself.
- training: the other steps and the evaluations.

A column has the median. CPU time is less sensitive to other programs than wall time, so both are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

PARTS = ("imports", "preparing", "W&B", "first step", "training")
OPTIONS = (
    *("data.source=synthetic", "data.train_limit=128", "data.test_limit=128", "batch_size=32", "epochs=1"),
    *("device=cpu", "wandb.mode=offline", "recipe=reference", "log.every=1", "eval.batch_size=128"),
)
SEEDS = 3  # of a process that trains several


class Clock:
    """Wall and CPU seconds of the parts of a run."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {part: [0.0, 0.0] for part in PARTS}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to a part."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.parts[name][0] += time.perf_counter() - wall
        self.parts[name][1] += time.process_time() - cpu


def work(words: list[str], seeds: int, started: float) -> None:
    """Train the seeds one after the other in this process, and print the times of each as JSON."""
    clock = Clock()
    with clock.part("imports"):
        from ampcompare.runtime.startup import import_without_collection

        with import_without_collection():
            import io

            from rich.console import Console

            from ampcompare.config.load import config_from_cli
            from ampcompare.experiment import ProcessHistory, TrainingSession
            from ampcompare.system.device import resolve_device
            from ampcompare.system.distributed import DistributedContext
            from ampcompare.system.process_state import restored_process_state
            from ampcompare.training.trainer import Trainer
    clock.parts["imports"][0] = time.time() - started  # with the start of Python
    history, times = ProcessHistory(), []
    world = DistributedContext(device=resolve_device("cpu"))
    step = Trainer.step
    for seed in range(1, seeds + 1):
        clocks = [clock]  # until the first step has ended

        def timed_step(trainer: Trainer, *args: object, clocks: list[Clock] = clocks, **kw: object) -> object:
            if not clocks:
                return step(trainer, *args, **kw)  # type: ignore[arg-type]
            with clocks.pop().part("first step"):
                return step(trainer, *args, **kw)  # type: ignore[arg-type]

        Trainer.step = timed_step  # type: ignore[method-assign, assignment]
        with restored_process_state():
            with clock.part("preparing"):
                config = config_from_cli([*words, f"seed={seed}"])
                session = TrainingSession(config, world, Console(file=io.StringIO()), history=history)
                session.__enter__()
                session.prepare()
            with clock.part("W&B"):
                session.start()
            with clock.part("training"):
                session.train()
            with clock.part("W&B"):
                session.finish()
        for index in (0, 1):
            clock.parts["training"][index] -= clock.parts["first step"][index]
        times.append(clock.parts)
        clock = Clock()
    print(json.dumps(times))


def measure(words: list[str], seeds: int, cache: Path) -> list[dict[str, list[float]]]:
    """Start a process that trains the seeds; return the times of each run."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "WANDB_SILENT": "true"}
    command = [sys.executable, __file__, "--worker", str(seeds), str(time.time()), *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(network: str, execution: str, rounds: int) -> None:
    """Measure one network, and print the table."""
    columns: dict[str, list[dict[str, list[float]]]] = {
        "first process": [],
        "later process": [],
        "later seed": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        options = [f"model.name={network}", f"execution={execution}", f"output_dir={folder}/runs"]
        words = [*OPTIONS, *options, "backend=native_bf16"]
        for number in range(rounds):
            for seeds in (1, SEEDS) if number % 2 else (SEEDS, 1):
                first, *others = measure(words, seeds, Path(folder, "cache"))
                is_cold = not columns["first process"]
                columns["first process" if is_cold else "later process"].append(first)
                columns["later seed"] += others
    print(f"\n{network}, {execution}, native_bf16: wall (CPU) seconds, medians")
    print(f"{'':<12}" + "".join(f"{name + f' (n={len(runs)})':>24}" for name, runs in columns.items()))
    for part in (*PARTS, "besides training"):
        line = f"{part:<16}"
        for runs in columns.values():
            parts = [name for name in PARTS if name != "training"] if part not in PARTS else [part]
            wall, cpu = (median(sum(run[name][i] for name in parts) for run in runs) for i in (0, 1))
            line += f"{f'{wall:.2f} ({cpu:.2f})':>22}"
        print(line, flush=True)


def main() -> None:
    """Parse the command line, and measure."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[4:], int(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description="Measure what one more seed costs.")
    parser.add_argument("--network", nargs="+", default=["resnet20"])
    parser.add_argument("--execution", nargs="+", default=["eager", "compile"])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for network in given.network:
        for execution in given.execution:
            compare(network, execution, given.rounds)


if __name__ == "__main__":
    main()
