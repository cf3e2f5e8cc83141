"""A training built as a run of the same words builds it, without a record: to be looked at or timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from ampcompare.config.arguments import parse
from ampcompare.config.check import settle
from ampcompare.config.load import Config, check_chosen
from ampcompare.data.batch import Batch, each
from ampcompare.data.dataset import Dataset
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.machine import device as machine
from ampcompare.machine.world import World
from ampcompare.train.build import build_trainer, load_data
from ampcompare.train.compiled import check_execution
from ampcompare.train.loaders import check_data, make_loader
from ampcompare.train.step import Trainer


def configured(words: Sequence[str], **instead: Any) -> Config:
    """The config that the words of a run name, each option in `instead` (`backend="none"`) put in its place.
    Raises UserError.
    """
    config = parse([*words, *(f"{key}={value}" for key, value in instead.items())])
    check_chosen(config)
    settle(config)
    return config


def made_up(config: Config) -> Config:
    """The same with made-up images for data of ours of a known size, so that nothing has to be downloaded:
    what a step costs is the same.
    """
    source = SOURCES.get(config.data.source)
    if source is None or not source.classes or source.is_made_up:
        return config
    few = config.batch_size * config.training.accumulate
    data = dataclasses.replace(
        config.data, source="synthetic", root=None, kwargs={}, train_limit=few, test_limit=few
    )
    return dataclasses.replace(config, data=data)


@dataclass(frozen=True)
class Setting:
    """Data and loaders of a config, from which trainers are built under any backend."""

    config: Config
    world: World
    data: Dataset
    train: Any
    test: Any

    def trainer(self, config: Config) -> Trainer:
        """A new trainer with the first weights of the config's seed. Raises UserError."""
        world = self.world
        return build_trainer(config, self.data, self.train, world.device, world, test=self.test)

    def steps(self, steps: int, *, few: int | None = None) -> list[list[Batch]]:
        """The micro-batches of the first steps, of each the first `few` samples."""
        each_step = self.config.training.accumulate
        batches = [_first(batch, few) for batch in islice(_endless(self.train), steps * each_step)]
        return [batches[i : i + each_step] for i in range(0, len(batches), each_step)]


def set_up(config: Config) -> Setting:
    """Load what the trainings share. Raises UserError."""
    world = World(device=machine.resolve_device(config.device))
    machine.set_numerics(config)
    check_execution(config, world.device)
    data = load_data(config)
    check_data(config, data, world)
    train, test = (
        make_loader(config, split, world.device, training=split is data.train, world=world)
        for split in (data.train, data.test)
    )
    return Setting(config, world, data, train, test)


def _first(batch: Batch, few: int | None) -> Batch:
    inputs, targets = (each(part, lambda t: t[:few].clone()) for part in batch)
    return inputs, targets


def _endless(loader: Any) -> Iterator[Batch]:
    for epoch in count():
        found = False
        for batch in loader.epoch(epoch):
            found = True
            yield batch
        if not found:
            raise UserError("data: there is no batch to look at")
