#!/usr/bin/env python3
"""What AMP Compare costs beside the least that does the same, each with its limit; exit code 1 above one.

    python benchmarks/overhead.py [loop] [recorder] [o1] [data] [start] [reading] [--processes 12]

Both take turns within a process, on one thread, the order changing; what counts is the ratio or difference
within a round. Where a process's memory comes to lie makes one or the other up to 3 % faster for as long as
it lives, so rounds are spread over processes: each one's median, and of these the median with its interval.
"""

import argparse
import io
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


def in_turns(least: Callable[[int], float], ours: Callable[[int], float], rounds: int) -> Rounds:
    """What both give in each round, two rounds of warm-up left out."""
    found = []
    for number in range(rounds + 2):
        first, second = (least, ours) if number % 2 else (ours, least)
        pair = (first(number), second(number))
        found.append(pair if number % 2 else pair[::-1])
    return found[2:]


def thread_ms(run: Callable[[], object], times: int) -> float:
    """Milliseconds of this thread's CPU time, of which `times` in a run."""
    began = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - began) / times


STEPS = 50  # of a round


class Loops:
    """A training of ours and the bare loop of the same step, both with an offline W&B run, a row each `every`
    steps; the bare one gives two values to it, as a careful user does.
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
        """As `experiment.run` does, printing where nobody reads."""
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
    """CPU time of the training thread, a step of about 1.6 ms."""
    import wandb

    from ampcompare.experiment import start_tracker

    with tempfile.TemporaryDirectory() as folder:
        loops = Loops(folder, every)
        tracker = start_tracker(loops.config, {})
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
    """CPU time of the thread that trains, a row every 50 steps."""
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
    """A forward of ResNet50's blocks with an eighth of its channels, under torch.autocast and under O1: the
    time is that of Python and dispatch.
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
    """An image of a batch: PIL, torchvision's transforms and a DataLoader, and ours."""
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
    """CPU milliseconds of a program and of what it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def start() -> Rounds:
    """A run of eight steps with record and evaluation; the least is PyTorch, a layer and W&B."""
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
    """A run of 4,000 rows with 13 keys: written by W&B's client, and read by ours the first time."""
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["AMPCOMPARE_CACHE"] = f"{folder}/cache"
            found.append((program_ms("-c", WRITE, folder) / 2, program_ms("-c", READ, folder) / 2))
    return found


@dataclass(frozen=True)
class Cost:
    """`extra`: the limit is on ours less the least, in ms; else on ours over the least."""

    what: str
    measure: Callable[..., Rounds]
    limit: float
    extra: bool = False
    given: tuple[Any, ...] = ()

    def of(self, rounds: Rounds) -> float:
        return statistics.median(ours - least if self.extra else ours / least for least, ours in rounds)


COSTS = {
    "loop": Cost(
        "a step of training with W&B, a row every 50, over the bare loop's", loop, 0.05, True, (50,)
    ),
    "loop10": Cost("the same with a row every 10", loop, 0.10, True, (10,)),
    "recorder": Cost("Recorder.step in somebody's loop", recorder, 0.05, True),
    "o1": Cost("a forward of many small ops under O1, over torch.autocast's", o1, 1.25),
    "data": Cost("an augmented image, over PIL and a DataLoader's", data, 1 / 30),
    "start": Cost("a tiny run, over the least program's", start, 1.15),
    "reading": Cost("reading a run, over what W&B's client takes to write it", reading, 0.2),
}


def measured(name: str) -> Rounds:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    cost = COSTS[name]
    return cost.measure(*cost.given)


def main() -> int:
    from ampcompare.analysis.statistics.median_interval import interval

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COSTS))
    parser.add_argument("--processes", type=int, default=12)
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    above = 0
    print("| CPU time of | least, ms | ours | limit |\n|---|---:|---:|---:|")
    for name in asked.names or COSTS:
        cost, found = COSTS[name], []
        for _ in range(asked.processes):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found.append(pool.apply(measured, (name,)))
        values = [cost.of(rounds) for rounds in found]
        middle, known = statistics.median(values), interval(values) or (min(values), max(values))
        least = statistics.median(pair[0] for rounds in found for pair in rounds)
        unit = " ms more" if cost.extra else " times"
        above += known[0] > cost.limit
        span = f"{middle:.3g} ({known[0]:.3g} to {known[1]:.3g}){unit}"
        print(f"| {cost.what} | {least:.3g} | {span} | {cost.limit:.3g}{unit} |", flush=True)
    from ampcompare.system.environment import cpu_name

    print(f"\nMedians of {asked.processes} processes, 95 %. {cpu_name()}, load {os.getloadavg()[0]:.1f}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
