"""What one more seed costs: in a process of its own, and in a process that has trained other seeds.

    python benchmarks/seeds.py                        # resnet20, eager and compiled
    python benchmarks/seeds.py --network resnet50 --rounds 1 --option batch_size=8

For each network and execution, processes with one seed and processes with several seeds (`ampcompare run
--runs`) take turns. The table has the seconds of each part of a run, in the first process (the compiler's
cache is empty), in later processes (the cache is full), and for later seeds in a process:

- imports: Python, PyTorch, W&B and AMP Compare.
- compiler check: whether `torch.compile` works; it compiles one line.
- data, network: the samples; network, optimizer and the compiled function.
- other preparation: options, the recorded environment, the search for a checkpoint.
- W&B: to start the record and to end it.
- tracing: Dynamo and AOTAutograd, which make the graphs of forward and backward.
- compiling: Inductor makes code of the graphs, or finds it in its cache.
- first step: the rest of the first step.
- training: the other steps and the evaluations.

A column has the median. CPU time is less sensitive to other programs than wall time, so both are printed.
The compiler reports its wall time alone, and its C++ compiler is a process of its own. So the CPU time of
tracing and compiling in this process counts in the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

PARTS = (
    *("imports", "compiler check", "data", "network", "other preparation", "W&B"),
    *("tracing", "compiling", "first step", "training"),
)
OPTIONS = (
    *("data.source=synthetic", "data.train_limit=128", "data.test_limit=128", "batch_size=32", "epochs=1"),
    *("device=cpu", "wandb.mode=offline", "recipe=reference", "log.every=1", "eval.batch_size=128"),
)
SEEDS = 3  # of a process that trains several


class Clock:
    """Wall and CPU seconds of the parts of a run. A part within another counts in the inner one only."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {part: [0.0, 0.0] for part in PARTS}
        self._open: list[str] = []
        self._since = (0.0, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to a part."""
        self._charge()
        self._open.append(name)
        yield
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._open:
            part = self.parts[self._open[-1]]
            part[0] += now[0] - self._since[0]
            part[1] += now[1] - self._since[1]
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose calls add to a part."""

        def call(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*args, **options)

        return call


def compiler_seconds() -> tuple[float, float]:
    """Return the wall seconds that this process has spent in tracing, and in making code of graphs."""
    from torch._dynamo.utils import compile_times

    names, values = compile_times(repr="csv", aggregate=True)  # type: ignore[misc]
    seconds = dict(zip(names, map(float, values), strict=True))
    in_all = seconds.get("_compile.compile_inner", 0.0) + seconds.get("backward._backward_impl", 0.0)
    compiling = seconds.get("compile_fx_inner", 0.0)
    return in_all - compiling, compiling


def work(words: list[str], seeds: int, started: float) -> None:
    """Train the seeds one after the other in this process, and print the times of each as JSON."""
    clock = Clock()
    with clock.part("imports"):
        from ampcompare.runtime.startup import import_without_collection

        with import_without_collection():
            import io

            from rich.console import Console

            from ampcompare import experiment
            from ampcompare.config.load import config_from_cli
            from ampcompare.experiment import ProcessHistory, TrainingSession
            from ampcompare.system.device import resolve_device
            from ampcompare.system.distributed import DistributedContext
            from ampcompare.system.process_state import restored_process_state
            from ampcompare.training import run_context
            from ampcompare.training.trainer import Trainer
    clock.parts["imports"][0] = time.time() - started  # with the start of Python
    history, times = ProcessHistory(), []
    world = DistributedContext(device=resolve_device("cpu"))
    calls: list[tuple[str, Any, str]] = [
        ("data", experiment, "prepare_run"),
        ("compiler check", run_context, "check_execution"),
        ("network", run_context.RunContext, "build_trainer"),
    ]
    originals = [getattr(owner, name) for _, owner, name in calls]
    step = Trainer.step
    for seed in range(1, seeds + 1):
        for (part, owner, name), original in zip(calls, originals, strict=True):
            setattr(owner, name, clock.timed(part, original))

        def first_step(*args: Any, clock: Clock = clock, **options: Any) -> Any:
            Trainer.step = step  # type: ignore[method-assign]
            before = compiler_seconds()
            with clock.part("first step"):
                result = step(*args, **options)
            for part, start, end in zip(("tracing", "compiling"), before, compiler_seconds(), strict=True):
                clock.parts[part][0] += end - start
                clock.parts["first step"][0] -= end - start
            return result

        Trainer.step = first_step  # type: ignore[method-assign]
        with restored_process_state():
            with clock.part("other preparation"):
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
        times.append(clock.parts)
        clock = Clock()
    print(json.dumps(times))


def measure(words: list[str], seeds: int, cache: Path) -> list[dict[str, list[float]]]:
    """Start a process that trains the seeds; return the times of each run."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "WANDB_SILENT": "true"}
    command = [sys.executable, __file__, "--worker", str(seeds), str(time.time()), *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(network: str, execution: str, rounds: int, more: list[str]) -> None:
    """Measure one network, and print the table."""
    columns: dict[str, list[dict[str, list[float]]]] = {
        "first process": [],
        "later process": [],
        "later seed": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        options = [f"model.name={network}", f"execution={execution}", f"output_dir={folder}/runs"]
        words = [*OPTIONS, *options, "backend=native_bf16", *more]
        for number in range(rounds):
            for seeds in (1, SEEDS) if number % 2 else (SEEDS, 1):
                first, *others = measure(words, seeds, Path(folder, "cache"))
                is_cold = not columns["first process"]
                columns["first process" if is_cold else "later process"].append(first)
                columns["later seed"] += others
    print(f"\n{' '.join([network, execution, 'native_bf16', *more])}: wall (CPU) seconds, medians")
    print(f"{'':<14}" + "".join(f"{name + f' (n={len(runs)})':>24}" for name, runs in columns.items()))
    for part in (*PARTS, "besides training"):
        line = f"{part:<18}"
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
    parser.add_argument(
        "--option", nargs="+", default=[], metavar="KEY=VALUE", help="further options of the run"
    )
    given = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for network in given.network:
        for execution in given.execution:
            compare(network, execution, given.rounds, given.option)


if __name__ == "__main__":
    main()
