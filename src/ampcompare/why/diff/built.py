"""The trainings that are looked at: built as a run builds them, without a record, on the same few samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch, each
from ampcompare.data.dataset import Dataset
from ampcompare.errors import UserError
from ampcompare.machine import device as machine
from ampcompare.machine.world import World
from ampcompare.precision.backends import REGISTRY
from ampcompare.train.build import build_trainer, load_data
from ampcompare.train.loaders import check_data, make_loader
from ampcompare.train.step import Trainer

FEW = 8  # samples of a batch that are looked at, unless the words name a number
FP32 = next(name for name, backend in REGISTRY.items() if backend.is_fp32)


@dataclass(frozen=True)
class Bench:
    """Data and loaders of a config, from which trainers are built under any backend."""

    config: Config
    world: World
    data: Dataset
    train: Any
    test: Any
    few: int | None  # samples of a batch that are looked at; None: all

    @property
    def device(self) -> torch.device:
        return self.world.device

    def trainer(self, config: Config) -> Trainer:
        """A new trainer with the first weights of the config's seed. Raises UserError."""
        return build_trainer(config, self.data, self.train, self.device, self.world, test=self.test)

    def steps(self, count: int, seed: int | None = None) -> list[list[Batch]]:
        """The micro-batches of the first steps, in the order of a seed, the config's by default."""
        train = self.train
        if seed is not None:
            config = dataclasses.replace(self.config, seed=seed)
            train = make_loader(config, self.data.train, self.device, training=True, world=self.world)
        each_step = self.config.training.accumulate
        batches = [self._cut(batch) for batch in islice(_endless(train), count * each_step)]
        return [batches[i : i + each_step] for i in range(0, len(batches), each_step)]

    def _cut(self, batch: Batch) -> Batch:
        inputs, targets = (each(part, lambda t: t[: self.few].clone()) for part in batch)
        return inputs, targets


def _endless(loader: Any) -> Iterator[Batch]:
    epoch = 0
    while True:
        found = False
        for batch in loader.epoch(epoch):
            found = True
            yield batch
        if not found:
            raise UserError("data: there is no batch to look at")
        epoch += 1


def set_up(words: Sequence[str], config: Config) -> Bench:
    """What all sides share. Raises UserError for what cannot be looked at."""
    if config.execution != "eager":
        why = "diff looks at modules one by one, which a compiled or captured step does not have"
        raise UserError(f"execution={config.execution!r}: {why}; leave it out")
    world = World(device=machine.resolve_device(config.device))
    if not machine.has_float64(world.device):
        why = "has no float64, which is the truth that errors are measured against"
        raise UserError(f"device={str(world.device)!r}: {why}; use device=cpu")
    machine.set_numerics(dataclasses.replace(config, deterministic=True))
    # Of what has no deterministic kernel PyTorch would raise; so it warns, and goes on.
    torch.use_deterministic_algorithms(True, warn_only=True)
    data = load_data(config)
    check_data(config, data, world)
    train = make_loader(config, data.train, world.device, training=True, world=world)
    test = make_loader(config, data.test, world.device, training=False, world=world)
    few = None if names_batch(words) else FEW
    return Bench(config, world, data, train, test, few)


def names_batch(words: Sequence[str]) -> bool:
    """Whether the words name a batch size."""
    keys = [word.lstrip("-+").partition("=")[0] for word in words]
    return "batch_size" in keys or any(word.startswith("{") and '"batch_size"' in word for word in words)
