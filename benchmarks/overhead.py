"""What our training loop costs beside the bare PyTorch loop of the same step, on one CPU thread.

Five loops train the same network on the same batches: the bare one; the same with two values to an offline
W&B run each `every` steps; the seed's, which asks the device for loss and accuracy at each step; ours as
`run_experiment.py` runs it, without a record and with an offline W&B run, a row each `every` steps. They take
turns, the order changing, and what counts is the ratio or difference within a round: another process on the
machine slows all alike. Run as a program it takes one JSON object and prints one.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import wandb
from overhead_table import BARE_RECORDED, OURS_RECORDED
from rich.console import Console

from ampcompare import metrics
from ampcompare.config.load import load_config
from ampcompare.config.schema import Config
from ampcompare.data.dataset import build_dataset
from ampcompare.machine.environment import describe_environment
from ampcompare.tracking.start import start_tracker
from ampcompare.tracking.tracker import Tracker
from ampcompare.train.build import build_trainer, make_loader
from ampcompare.train.display import TrainingDisplay
from ampcompare.train.loop import Fit

CPU = torch.device("cpu")
PARTS = ("batch", "forward and loss", "backward", "optimizer and schedule")
EPOCHS = 1_000_000  # never the last


class Loops:
    """The loops, each training a network of its own, the same at the start."""

    def __init__(self, batch_size: int, steps: int, folder: str, every: int = 50) -> None:
        self.config = self._config(batch_size, steps, folder, every)
        self.data = build_dataset(
            source="synthetic", root=None, train_limit=batch_size * steps, test_limit=10
        )

    @staticmethod
    def _config(batch_size: int, steps: int, folder: str, every: int) -> Config:
        words = (
            "model.name=tiny",
            "data.source=synthetic",
            "device=cpu",
            f"batch_size={batch_size}",
            f"log.every={every}",
        )
        more = (f"epochs={EPOCHS}", "diagnostics.every=null", "wandb.mode=offline", f"output_dir={folder}")
        return load_config(
            None, [*words, *more, f"data.train_limit={batch_size * steps}", "optimizer.fused=true"]
        )

    def bare(self) -> Callable[[int], None]:
        loader = make_loader(self.config, self.data.train, CPU, training=True)
        made = build_trainer(self.config, self.data, loader, CPU)
        model, optimizer, scheduler = made.model, made.optimizer, made.scheduler

        def run(epoch: int) -> None:
            for images, labels in loader.epoch(epoch):
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)

        return run

    def bare_recorded(self, record: wandb.Run) -> Callable[[int], None]:
        """The bare loop with what a careful user gives to W&B: two values, and not at each step."""
        loader = make_loader(self.config, self.data.train, CPU, training=True)
        made = build_trainer(self.config, self.data, loader, CPU)
        model, optimizer, scheduler = made.model, made.optimizer, made.scheduler
        every = self.config.log.every

        def run(epoch: int) -> None:
            for step, (images, labels) in enumerate(loader.epoch(epoch), epoch * len(loader) + 1):
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                if step % every == 0:
                    record.log({metrics.STEP: step, metrics.LOSS: loss.item()})

        return run

    def parts(self) -> Callable[[int], dict[str, float]]:
        """The bare loop with a look at the clock between its parts: the ms of each a step."""
        loader = make_loader(self.config, self.data.train, CPU, training=True)
        made = build_trainer(self.config, self.data, loader, CPU)
        model, optimizer, scheduler = made.model, made.optimizer, made.scheduler

        def run(epoch: int) -> dict[str, float]:
            spent = dict.fromkeys(PARTS, 0.0)
            marks = [time.perf_counter()]
            for images, labels in loader.epoch(epoch):
                marks.append(time.perf_counter())
                loss = F.cross_entropy(model(images), labels)
                marks.append(time.perf_counter())
                loss.backward()
                marks.append(time.perf_counter())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                marks.append(time.perf_counter())
                for part, (begin, end) in zip(PARTS, pairwise(marks), strict=True):
                    spent[part] += (end - begin) * 1e3
                marks = marks[-1:]
            return {part: ms / len(loader) for part, ms in spent.items()}

        return run

    def seed_style(self) -> Callable[[int], None]:
        loader = make_loader(self.config, self.data.train, CPU, training=True)
        made = build_trainer(self.config, self.data, loader, CPU)
        model, optimizer, scheduler = made.model, made.optimizer, made.scheduler

        def run(epoch: int) -> None:
            total = correct = 0.0
            for images, labels in loader.epoch(epoch):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                total += loss.item()
                correct += logits.argmax(1).eq(labels).sum().item()

        return run

    def ours(self, tracker: Tracker) -> Callable[[int], None]:
        train = make_loader(self.config, self.data.train, CPU, training=True)
        test = make_loader(self.config, self.data.test, CPU, training=False)
        # As `experiment.run` does, printing where nobody reads.
        display = TrainingDisplay(Console(file=io.StringIO()), 1, "bench")

        def on_row(row: dict[str, Any]) -> None:
            tracker.log(row)
            display.row(row)

        trainer = build_trainer(self.config, self.data, train, CPU)
        fit = Fit(trainer, train, test, self.config, on_row=on_row, on_step=display.step)
        return fit.train_epoch


def calibrate(target_ms: float, folder: str) -> int:
    """The batch size at which the bare step takes about `target_ms` of its one thread's CPU time."""
    times: list[tuple[int, float]] = []
    size = 4
    while not times or times[-1][1] < target_ms:
        steps = 60
        run = Loops(size, steps, folder).bare()
        run(0)
        passes = []
        for epoch in range(1, 4):  # the shortest: another process on the core can only make it longer
            began = time.thread_time()
            run(epoch)
            passes.append((time.thread_time() - began) / steps * 1e3)
        times.append((size, min(passes)))
        size *= 2
    if len(times) == 1:
        return times[0][0]
    (small, low), (large, high) = times[-2:]
    share = 0.0 if high <= low else max(0.0, (target_ms - low) / (high - low))
    return round(small + (large - small) * share)


def run_overhead(
    target_ms: float, steps: int, rounds: int, batch_size: int | None = None, every: int = 50
) -> dict[str, Any]:
    """Milliseconds a step of each loop in each round: by the clock, and of the training thread's own CPU
    time. A row is recorded each `every` steps.

    Without a batch size it is the one whose bare step takes about `target_ms`.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        batch_size = batch_size or calibrate(target_ms, folder)
        loops = Loops(batch_size, steps, folder, every)
        environment = describe_environment(CPU)
        tracker = start_tracker(loops.config, environment, lambda line: None)
        settings = wandb.Settings(console="off", quiet=True)
        record = wandb.init(mode="offline", dir=folder, reinit="create_new", settings=settings)
        runs = {
            "bare": loops.bare(),
            BARE_RECORDED: loops.bare_recorded(record),
            "seed-style": loops.seed_style(),
            "ours": loops.ours(Tracker()),
            OURS_RECORDED: loops.ours(tracker),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        cpu: dict[str, list[float]] = {name: [] for name in runs}
        names = list(runs)
        for number in range(-2, rounds):  # two rounds of warm-up
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                began, cpu_began = time.perf_counter(), time.thread_time()
                runs[name](number + 2)
                if number >= 0:
                    times[name].append((time.perf_counter() - began) / steps * 1e3)
                    cpu[name].append((time.thread_time() - cpu_began) / steps * 1e3)
        record.finish()
        tracker.finish({}, 0)
        look = loops.parts()
        looks = [look(epoch) for epoch in range(rounds + 2)][2:]
        parts = {part: [found[part] for found in looks] for part in PARTS}
    found = {
        "batch_size": batch_size,
        "steps": steps,
        "every": every,
        "ms": times,
        "cpu_ms": cpu,
        "parts_ms": parts,
    }
    return {**found, "environment": environment}


if __name__ == "__main__":
    print(json.dumps(run_overhead(**json.loads(sys.argv[1]))))
