"""What a training is made of: data, loaders, model, optimizer, trainer, as the config says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.dataset import Dataset, ImageSet, build_dataset
from ampcompare.data.loader import DeviceLoader
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.machine import device as machine
from ampcompare.machine.card import name_machine
from ampcompare.machine.device import is_channels_last, is_cuda
from ampcompare.machine.environment import describe_environment
from ampcompare.machine.low_type import first_type, take_type, with_type
from ampcompare.machine.processes import World, check_last_batch
from ampcompare.machine.processor import arithmetic_of
from ampcompare.models import build_model, source_of
from ampcompare.precision import build_precision
from ampcompare.program.files import make_folder
from ampcompare.train.execution import captures, check_execution, compiles
from ampcompare.train.fit import count_steps, steps_per_epoch
from ampcompare.train.graph import GraphTrainer
from ampcompare.train.sharded import ShardedTrainer, wrap
from ampcompare.train.trainer import Trainer, learning_rate_factor


@dataclasses.dataclass(frozen=True)
class Parts:
    """All that a run needs before its record is started. The record says of it `environment`, in the config
    too, and `facts`, in the summary.
    """

    data: Dataset
    train: DeviceLoader
    test: DeviceLoader
    trainer: Trainer
    total_steps: int
    environment: dict[str, Any]
    facts: dict[str, Any]
    said: str = ""  # in which type it computes, where the config left that open


def prepare(config: Config, world: World) -> Parts:
    """Build a run's parts. What can be wrong with the input is found here: UserError in each process."""
    device = world.device
    with world.agree():
        machine.set_numerics(config)
        check_execution(config, device)
        make_folder(Path(config.output_dir), f"output_dir={config.output_dir!r}")
    source, root = config.data.source, config.data.root
    limits = {"train_limit": config.data.train_limit, "test_limit": config.data.test_limit}
    with world.agree(), world.leader_first():
        data = build_dataset(source=source, root=root, **limits)
    check_last_batch(len(data.train.labels), config.batch_size, world)
    train = make_loader(config, data.train, device, training=True, world=world)
    test = make_loader(config, data.test, device, training=False, world=world)
    taken = take_type(config, device, world)
    trainer = build_trainer(with_type(config, taken.dtype), data, train, device, world)
    settings = {
        **machine.effective_numerics(config, device),
        "fused": is_fused(config, device),
        "processes": world.size,
        metrics.PRECISION_DTYPE: taken.dtype,
        **arithmetic_of(device),
        **trainer.precision.declares.record(),
        **source_of(config.model.name),
        **({} if config.data.source in SOURCES else {"data_fingerprint": data.fingerprint}),
    }
    environment = describe_environment(device, **settings, machine=name_machine(device, world))
    facts = {
        metrics.TEST_IMAGES: len(data.test),
        metrics.CLASSES: len(data.classes),
        metrics.TEST_SET: data.test.fingerprint(data.classes),
    }
    return Parts(data, train, test, trainer, count_steps(config, train), environment, facts, taken.words)


def keep_type(parts: Parts, config: Config, world: World, state: Mapping[str, Any]) -> Parts:
    """The parts of a run that goes on, in the type that its first part took, whatever would be taken here."""
    first = first_type(config, state)
    if first is None:
        return parts
    if first.dtype != parts.environment[metrics.PRECISION_DTYPE]:
        device = world.device
        train = make_loader(config, parts.data.train, device, training=True, world=world)
        trainer = build_trainer(with_type(config, first.dtype), parts.data, train, device, world)
        environment = parts.environment | {metrics.PRECISION_DTYPE: first.dtype}
        parts = dataclasses.replace(parts, train=train, trainer=trainer, environment=environment)
    return dataclasses.replace(parts, said=first.words)


def make_loader(
    config: Config, images: ImageSet, device: torch.device, *, training: bool, world: World | None = None
) -> DeviceLoader:
    """The loader of the training or the test images as the config says."""
    return DeviceLoader(
        images,
        batch_size=config.batch_size if training else config.eval.batch_size,
        device=device,
        mean=config.data.mean,
        std=config.data.std,
        augment=training and config.data.augment,
        shuffle=training,
        seed=config.seed,
        channels_last=is_channels_last(config, device),
        pinned=machine.queues_copies(device),
        rank=world.rank if world else 0,
        processes=world.size if world else 1,
    )


def build_trainer(
    config: Config, data: Dataset, train: DeviceLoader, device: torch.device, world: World | None = None
) -> Trainer:
    """Model, optimizer, schedule under the backend. Same seed, same first weights, whatever the backend."""
    config = with_type(config, take_type(config, device, world).dtype)
    torch.manual_seed(config.seed)
    options = dataclasses.asdict(config.model)
    model = build_model(num_classes=len(data.classes), **options).to(device)
    if is_channels_last(config, device):
        model = model.to(memory_format=torch.channels_last)
    if config.fuse:
        from ampcompare.fusion.modules import fuse_model  # here: it loads torchvision

        fuse_model(model, blocks=not compiles(config.execution))
    options = dataclasses.asdict(config.precision)
    precision = build_precision(config.backend, device, **options, fuse=config.fuse, seed=config.seed)
    if config.fuse and is_cuda(device):  # on a CPU the separate ops are faster
        from ampcompare.fusion.batch import fuse_batches

        fuse_batches(train, precision.input_dtype)
    prepared = precision.prepare(model, build_optimizer(config, model, device))
    if not isinstance(prepared, tuple) or len(prepared) != 2:
        why = f"its prepare gave a {type(prepared).__name__}; expected model and optimizer"
        raise UserError(f"backend={config.backend!r}: {why}")
    model, optimizer = prepared
    per_epoch = steps_per_epoch(config, train)
    name, total = config.schedule.name, config.epochs * per_epoch
    warmup = config.schedule.warmup_epochs * per_epoch
    schedule = partial(learning_rate_factor, name=name, warmup_steps=warmup, total_steps=total)
    parts = (model, optimizer, LambdaLR(optimizer, schedule), precision, config.training)
    compiled = compiles(config.execution)
    if captures(config.execution):
        images = min(config.batch_size, train.sample_count)
        return GraphTrainer(*parts, compiled=compiled, make_batch=train.batch, images=images)
    if world and world.size > 1:
        return ShardedTrainer(wrap(model), *parts[1:], world=world)
    return Trainer(*parts, compiled=compiled)


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> Optimizer:
    """The optimizer over all of the model's parameters."""
    options, parameters = config.optimizer, list(model.parameters())
    common: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
    common["fused"] = is_fused(config, device)
    try:
        if options.name == "sgd":
            return torch.optim.SGD(parameters, momentum=options.momentum, nesterov=options.nesterov, **common)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.name]
        return kind(parameters, capturable=captures(config.execution), **common)
    except RuntimeError as problem:
        raise UserError(f"optimizer.fused={options.fused}: {problem}; set optimizer.fused=false") from None


def is_fused(config: Config, device: torch.device) -> bool:
    """Whether the optimizer is fused: as the config says, or else on a GPU."""
    return is_cuda(device) if config.optimizer.fused is None else config.optimizer.fused
