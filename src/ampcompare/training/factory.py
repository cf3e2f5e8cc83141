"""Builds data, model, optimizer and trainer from the config."""

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ampcompare.config.load import Config
from ampcompare.config.schema import ONE_ULP, TaskConfig
from ampcompare.data.batch import list_tensors
from ampcompare.data.dataset import ImageSplit, Split, TensorSplit
from ampcompare.data.factory import Dataset, build_dataset
from ampcompare.data.sources import SOURCES
from ampcompare.data.sources.cifar10 import DownloadError
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.errors import UserError, describe_type
from ampcompare.models import BUILT_IN, RESNETS, build_model
from ampcompare.precision import build_precision, get_backend
from ampcompare.precision.base import UnsupportedModel
from ampcompare.precision.keep_fp32 import KeepFp32Error
from ampcompare.precision.weight_dtypes import find_lazy_modules
from ampcompare.system import device as machine
from ampcompare.system.device import is_channels_last, is_cuda
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.cuda_graph import GraphTrainer
from ampcompare.training.loop import steps_per_epoch
from ampcompare.training.preflight import create_lazy_weights, run_preflight
from ampcompare.training.task import build_task
from ampcompare.training.torch_compile import uses_compile, uses_cuda_graph
from ampcompare.training.trainer import Trainer, learning_rate_factor, wrap_in_ddp
from ampcompare.training.weight_perturbation import perturb_weights


def allows_tf32(config: Config) -> bool:
    """Return whether fp32 products round to TF32: the backend uses it, or the option asks for it."""
    return config.tf32 or get_backend(config.backend).uses_tf32


def load_data(config: Config) -> Dataset:
    """Return the data that the config names.

    Raises:
        UserError: The data cannot be loaded.
    """
    data, sizes = config.data, (config.batch_size, config.eval.batch_size)
    more: dict[str, Any] = {"kwargs": data.kwargs, "batch_sizes": sizes, "seed": config.seed}
    try:
        return build_dataset(data.source, data.root, data.train_limit, data.test_limit, **more)
    except DownloadError as problem:
        if config.model.name in (*BUILT_IN, *RESNETS):
            raise
        raise UserError(f"{problem}; for your own data set: data.source=./data.py:build") from problem


def build_trainer(
    config: Config,
    data: Dataset,
    train: Any,
    device: torch.device,
    world: DistributedContext | None = None,
    *,
    test: Any = None,
) -> Trainer:
    """Return a trainer: model, optimizer and schedule under the backend.

    Equal seeds give equal initial weights under every backend. If network, data or task are the user's, the
    network runs on two samples of `test` first.

    Args:
        config: The options of the run.
        train: The loader of the training split.
        device: The device of this process.
        world: The processes of the run.
        test: The loader of the test split; None: no preflight.

    Raises:
        UserError: Model, data and options do not fit.
    """
    machine.seed_process(config.seed)
    options = dataclasses.asdict(config.model)
    model = build_model(num_classes=len(data.classes) or None, **options).to(device)
    if find_lazy_modules(model):
        with (world or DistributedContext()).raise_on_all_ranks():
            create_lazy_weights(model, config, train)
    if is_channels_last(config.memory_format, device):
        set_channels_last(model)
    options = dataclasses.asdict(config.precision)
    try:
        tf32 = allows_tf32(config)
        precision = build_precision(config.backend, device, **options, tf32=tf32, seed=config.seed)
        prepared = precision.prepare(model, build_optimizer(config, model, device))
    except (KeepFp32Error, UnsupportedModel) as problem:
        raise UserError(problem) from None
    kinds = (nn.Module, Optimizer)
    if not isinstance(prepared, tuple) or not all(map(isinstance, prepared, kinds)) or len(prepared) != 2:
        why = f"its convert returned {describe_type(prepared)}; expected (model, optimizer)"
        raise UserError(f"backend={config.backend!r}: {why}")
    model, optimizer = prepared
    task = build_task(config, device)
    if test is not None and not is_built_in(config):
        with (world or DistributedContext()).raise_on_all_ranks():
            run_preflight(task, model, precision, config, test, data)
    in_parts = config.training.accumulate > 1 or (world is not None and world.size > 1)
    if in_parts and not has_equal_target_counts(data.train):
        task = task.weighted_by_targets()
    if config.training.perturb_weights == ONE_ULP:
        perturb_weights(optimizer, precision, config.seed)
    per_epoch = steps_per_epoch(config, train)
    schedule = partial(
        learning_rate_factor,
        name=config.schedule.name,
        warmup_steps=config.schedule.warmup_epochs * per_epoch,
        total_steps=config.epochs * per_epoch,
        milestones=[epoch * per_epoch for epoch in config.schedule.milestones or ()],
        gamma=config.schedule.gamma,
    )
    parts = (model, optimizer, LambdaLR(optimizer, schedule), precision, config.training, task)
    if world and world.rank:  # initial weights are equal everywhere, dropout must differ
        machine.seed_process(config.seed, world.rank)
    compiled = uses_compile(config.execution)
    if uses_cuda_graph(config.execution):
        images = min(config.batch_size, train.sample_count)
        return GraphTrainer(*parts, compiled=compiled, make_batch=train.batch, images=images)
    if world and world.size > 1:
        model = wrap_in_ddp(model, find_unused_parameters=config.training.find_unused_parameters)
        return Trainer(model, *parts[1:], world=world)
    return Trainer(*parts, compiled=compiled)


def set_channels_last(model: nn.Module) -> None:
    """Lay 4-d weights and buffers out in channels_last, in place.

    `Module.to` would convert the 5-d weights of volumes too, which have no such layout.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def has_equal_target_counts(split: Split) -> bool:
    """Return whether every sample surely has the same number of targets that count.

    Nobody knows this of data outside memory: sequences may differ in length and contain -100.
    """
    if not isinstance(split, TensorSplit):
        return isinstance(split, ImageSplit)
    whole = (t for t in list_tensors(split.targets) if not (t.is_floating_point() or t.is_complex()))
    return not any(bool((t == IGNORED_TARGET).any()) for t in whole)


def is_built_in(config: Config) -> bool:
    """Return whether network, data and task are built in, so that they fit each other."""
    built_in = (*BUILT_IN, *RESNETS)
    return config.model.name in built_in and config.data.source in SOURCES and config.task == TaskConfig()


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> Optimizer:
    """Return the optimizer over all parameters of the model."""
    options, parameters = config.optimizer, list(model.parameters())
    common: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
    common["fused"] = is_fused(config, device)
    try:
        if options.name == "sgd":
            return torch.optim.SGD(parameters, momentum=options.momentum, nesterov=options.nesterov, **common)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.name]
        return kind(parameters, capturable=uses_cuda_graph(config.execution), **common)
    except RuntimeError as problem:
        raise UserError(f"optimizer.fused={options.fused}: {problem}; set optimizer.fused=false") from None


def is_fused(config: Config, device: torch.device) -> bool:
    """Return whether the optimizer is fused: by the option, or by default on a GPU."""
    return is_cuda(device) if config.optimizer.fused is None else config.optimizer.fused
