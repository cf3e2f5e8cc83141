#!/usr/bin/env python3
"""Compare the program's overhead with that of the least code that does the same.

    python benchmarks/overhead.py [loop] [loop10] [recorder] [o1] [data] [start] [reading] [--processes 12]

Each measurement has a limit. The exit code is 1 if a whole confidence interval is above its limit.

Both programs run in one process, on one thread, in rounds as those of `ampcompare bench`. The result of a
round is the ratio or the difference of the two. The memory layout of a process can make one of them up to 3%
faster for as long as the process lives. So the rounds are spread over several processes: the result is the
median of the processes' medians, with its 95% confidence interval.
"""

import argparse
import io
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
LEAST, OURS = "least", "ours"
Rounds = list[tuple[float, float]]  # ms of both


class Program:
    """A program that takes turns with another one.

    Args:
        measure: Runs the program for one turn, which has a number from 0, and returns the value.
    """

    is_active = True

    def __init__(self, measure: Callable[[int], float]) -> None:
        self.measure = measure
        self.values: list[float] = []

    def take_turn(self, seconds: float) -> None:
        self.values.append(self.measure(len(self.values)))


def in_turns(least: Callable[[int], float], ours: Callable[[int], float], rounds: int) -> Rounds:
    """Return the values of both in each round, without two rounds of warm-up."""
    from ampcompare.system.interleaved_timing import run_rounds

    programs = Program(least), Program(ours)
    run_rounds(programs, math.inf, 0.0, max_rounds=rounds + 2)
    return [*zip(*(program.values for program in programs), strict=True)][2:]


def thread_ms(run: Callable[[], object], times: int) -> float:
    """Return this thread's CPU time in ms, divided by the number of repetitions in a run."""
    began = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - began) / times


STEPS = 50  # per round


class Loops:
    """Our training loop and a bare loop with the same step, each with an offline W&B run.

    Both log a row every `every` steps. The bare loop logs two values, as a careful user does.
    """

    def __init__(self, folder: str, every: int) -> None:
        from ampcompare.config.load import load_config
        from ampcompare.data.factory import build_dataset

        images = 8 * STEPS
        words = f"model.name=tiny data.source=synthetic device=cpu batch_size=8 data.train_limit={images} "
        words += f"epochs=100000 log.every={every} diagnostics.every=null optimizer.fused=true "
        words += f"wandb.mode=offline output_dir={folder}"
        self.config = load_config(None, words.split())
        self.data = build_dataset(source="synthetic", root=None, train_limit=images, test_limit=10)

    def _parts(self) -> tuple[Any, Any]:
        import torch

        from ampcompare.training.factory import build_trainer
        from ampcompare.training.loaders import make_loader

        loader = make_loader(self.config, self.data.train, torch.device("cpu"), training=True)
        return loader, build_trainer(self.config, self.data, loader, torch.device("cpu"))

    def bare(self, record: Any) -> Callable[[int], None]:
        from torch.nn.functional import cross_entropy

        loader, made = self._parts()

        def run(epoch: int) -> None:
            for step, (images, labels) in enumerate(loader.epoch(epoch), epoch * len(loader) + 1):
                loss = cross_entropy(made.model(images), labels)
                loss.backward()
                made.optimizer.step()
                made.scheduler.step()
                made.optimizer.zero_grad(set_to_none=True)
                if step % self.config.log.every == 0:
                    record.log({"global_step": step, "train/loss": loss.item()})

        return run

    def ours(self, tracker: Any) -> Callable[[int], None]:
        """Return our loop, built as in `experiment.run`; it prints to a buffer."""
        from rich.console import Console

        from ampcompare.training.display import TrainingDisplay
        from ampcompare.training.loop import TrainingLoop

        loader, trainer = self._parts()
        display = TrainingDisplay(Console(file=io.StringIO()), 1, "bench")

        def run(epoch: int) -> None:
            training.train_epoch(epoch)

        training = TrainingLoop(trainer, loader, loader, self.config, tracker=tracker, display=display)
        return run


def loop(every: int) -> Rounds:
    """Measure the CPU time of the training thread; a step takes about 1.6 ms."""
    import wandb

    from ampcompare.experiment import describe_record
    from ampcompare.tracking.wandb_init import start_record

    with tempfile.TemporaryDirectory() as folder:
        loops = Loops(folder, every)
        tracker = start_record(describe_record(loops.config, {}))
        record = wandb.init(
            mode="offline", dir=folder, reinit="create_new", settings=wandb.Settings(quiet=True)
        )
        bare, ours = loops.bare(record), loops.ours(tracker)
        found = in_turns(
            lambda n: thread_ms(lambda: bare(n), STEPS), lambda n: thread_ms(lambda: ours(n), STEPS), 24
        )
        record.finish()
        tracker.finish({}, 0)
    return found


def recorder() -> Rounds:
    """Measure the CPU time of the training thread with and without a Recorder, a row every 50 steps."""
    import torch

    from ampcompare import Recorder

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

    parts: dict[str, Any] = {"scaler": scaler, "optimizer": optimizer, "model": model}
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"every": 50, "output_dir": folder, "seed": 0, "batch_size": 128}
        with Recorder(backend="native", **parts, **how) as record:

            def recorded(number: int) -> float:
                record.resume()
                found = thread_ms(lambda: run(record), STEPS)
                record.pause()
                return found

            return in_turns(lambda n: thread_ms(lambda: run(None), STEPS), recorded, 60)


def o1() -> Rounds:
    """Measure a forward pass under torch.autocast and under O1.

    The network has ResNet50's blocks with an eighth of the channels, so the time is that of Python and
    dispatch.
    """
    import torch
    from torchvision.models.resnet import Bottleneck, ResNet

    from ampcompare.precision import build_precision

    model = ResNet(Bottleneck, [3, 4, 6, 3], width_per_group=8)
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([1, 2])

    def forwards(name: str) -> Callable[[int], float]:
        precision = build_precision(name)

        def run() -> None:
            for _ in range(5):
                with precision.forward_context():
                    torch.nn.functional.cross_entropy(model(images), labels)

        def timed(number: int) -> float:
            with precision.session():
                return thread_ms(run, 5)

        return timed

    return in_turns(forwards("native_bf16"), forwards("apex_o1_bf16"), 30)


def data() -> Rounds:
    """Measure an augmented image: by PIL, torchvision's transforms and a DataLoader, and by our loader."""
    from loops import pil_loader

    from ampcompare.config.schema import DataConfig
    from ampcompare.data.device_loaders import DeviceLoader
    from ampcompare.data.factory import build_dataset

    images = build_dataset(source="synthetic", root=None, train_limit=1280, test_limit=10).train
    how: dict[str, Any] = {"augment": True, "shuffle": True, "channels_last": False}
    ours = DeviceLoader(
        images, batch_size=128, device="cpu", mean=DataConfig().mean, std=DataConfig().std, **how
    )
    theirs = pil_loader(images, 128, workers=0)
    return in_turns(
        lambda n: thread_ms(lambda: [*theirs], 1280),
        lambda n: thread_ms(lambda: [list(ours.epoch(10 * n + i)) for i in range(10)], 12800),
        6,
    )


LEAST_PROGRAM = """
import sys, torch, wandb
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
TINY = "--config=demo model.name=tiny data.train_limit=32 data.test_limit=16 batch_size=4 epochs=1 device=cpu"


def program_ms(*command: str) -> float:
    """Return the CPU time in ms of a program and of the child processes that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def start() -> Rounds:
    """Measure a run of eight steps with record and evaluation. The least program: PyTorch, a layer, W&B."""
    with tempfile.TemporaryDirectory() as folder:
        ours = [*TINY.split(), "wandb.mode=offline", f"output_dir={folder}"]
        return in_turns(
            lambda n: program_ms("-c", LEAST_PROGRAM, folder),
            lambda n: program_ms("run_experiment.py", *ours),
            3,
        )


READ = "import sys; from ampcompare.runs import load_runs; load_runs([sys.argv[1]])"
WRITE = """
import sys, wandb
for seed in range(2):
    run = wandb.init(mode="offline", dir=sys.argv[1], config={"seed": seed})
    for step in range(4000):
        run.log({f"key/{n}": step / (n + 1) for n in range(10)})
    run.finish()
"""


def reading() -> Rounds:
    """Measure a run of 4,000 rows with 13 keys: writing by W&B's client, and our first reading."""
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["AMPCOMPARE_CACHE"] = f"{folder}/cache"
            found.append((program_ms("-c", WRITE, folder) / 2, program_ms("-c", READ, folder) / 2))
    return found


@dataclass(frozen=True)
class Cost:
    """A measurement and its limit.

    Attributes:
        what: What is measured.
        measure: Returns the rounds.
        limit: The limit of the result.
        extra: Whether the result is a difference in ms; else it is a ratio.
        arguments: Arguments of `measure`.
    """

    what: str
    measure: Callable[..., Rounds]
    limit: float
    extra: bool = False
    arguments: tuple[Any, ...] = ()

    def of(self, rounds: Rounds) -> float:
        """Return the median over rounds of ours minus the least, or of ours divided by the least."""
        return statistics.median(ours - least if self.extra else ours / least for least, ours in rounds)


COSTS = {
    "loop": Cost(
        "a training step with W&B, one row every 50 steps: more than the bare loop", loop, 0.05, True, (50,)
    ),
    "loop10": Cost("the same, one row every 10 steps", loop, 0.10, True, (10,)),
    "recorder": Cost("`Recorder.step` in your own loop: more than the loop without it", recorder, 0.05, True),
    "o1": Cost("a forward pass of many small ops under O1, relative to `torch.autocast`", o1, 1.25),
    "data": Cost("an augmented image, relative to PIL and a DataLoader", data, 1 / 30),
    "start": Cost("a tiny run, relative to the least program with PyTorch and W&B", start, 1.15),
    "reading": Cost("reading a run, relative to the time in which W&B's client writes it", reading, 0.2),
}


def measured(name: str) -> Rounds:
    """Return the rounds of one measurement; called in a new process."""
    import torch

    torch.set_num_threads(1)
    cost = COSTS[name]
    return cost.measure(*cost.arguments)


def main() -> int:
    from ampcompare.analysis.statistics.median_interval import MIN_ROUNDS, interval

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(COSTS)}; default: all")
    parser.add_argument("--processes", type=int, default=12, help="default: 12; an interval needs 12")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    above = 0
    print("| what is measured | least code, ms | result | 95% CI | limit |\n|---|---:|---:|---:|---:|")
    for name in asked.names or COSTS:
        cost, found = COSTS[name], []
        for _ in range(asked.processes):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found.append(pool.apply(measured, (name,)))
        values = [cost.of(rounds) for rounds in found]
        middle, known = statistics.median(values), interval(values) or (min(values), max(values))
        least = statistics.median(pair[0] for rounds in found for pair in rounds)
        unit = " ms" if cost.extra else "x"
        above += known[0] > cost.limit
        cells = (f"{least:.3g}", f"{middle:.3g}{unit}", f"{known[0]:.3g} to {known[1]:.3g}")
        print(f"| {' | '.join((cost.what, *cells))} | {cost.limit:.3g}{unit} |", flush=True)
    from ampcompare.system.environment import cpu_name

    about = "medians with 95% CI" if asked.processes >= MIN_ROUNDS else "medians with their range"
    load = f"load {os.getloadavg()[0]:.1f} at the end"
    print(f"\nCPU time in {asked.processes} processes, {about}; {cpu_name()}, {load}.")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
