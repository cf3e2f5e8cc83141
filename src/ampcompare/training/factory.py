"""Builds data, model, optimizer and trainer from the config."""

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ampcompare.config.load import Config
from ampcompare.config.schema import ONE_ULP, TaskConfig
from ampcompare.data.batch import Batch, list_tensors
from ampcompare.data.dataset import ImageSplit, Split, TensorSplit
from ampcompare.data.factory import Dataset, build_dataset
from ampcompare.data.sources import SOURCES
from ampcompare.data.sources.cifar10 import DownloadError
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.errors import UserError, describe_type
from ampcompare.models import BUILT_IN, RESNETS, build_model
from ampcompare.precision import build_precision, get_backend
from ampcompare.precision.base import Precision, UnsupportedModel
from ampcompare.precision.casting import name_dtype
from ampcompare.precision.keep_fp32 import KeepFp32Error
from ampcompare.precision.weight_dtypes import ONCE, find_lazy_modules
from ampcompare.system import device as machine
from ampcompare.system.device import is_channels_last, is_cuda
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.cuda_graph import GraphTrainer
from ampcompare.training.fp32_remedy import find_fp32_remedy
from ampcompare.training.loop import steps_per_epoch
from ampcompare.training.preflight import create_lazy_weights, run_preflight
from ampcompare.training.task import build_task
from ampcompare.training.torch_compile import uses_compile, uses_cuda_graph
from ampcompare.training.trainer import Trainer, learning_rate_factor, wrap_in_ddp
from ampcompare.training.weight_perturbation import perturb_weights

log = logging.getLogger(__name__)


def allows_tf32(config: Config) -> bool:
    """Return whether fp32 products round to TF32: the backend uses it, or the option asks for it."""
    return config.tf32 or get_backend(config.backend).uses_tf32


def load_data(config: Config) -> Dataset:
    """Return the data that the config names.

    Raises:
        UserError: The data cannot be loaded.
    """
    data = config.data
    try:
        return build_dataset(
            data.source,
            data.root,
            data.train_limit,
            data.test_limit,
            kwargs=data.kwargs,
            batch_sizes=(config.batch_size, config.eval.batch_size),
            seed=config.seed,
        )
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
        train: The loader of the training split.
        world: The processes of the run; None: this process alone.
        test: The loader of the test split; None: no preflight.

    Raises:
        UserError: Model, data and options do not fit.
    """
    world = world or DistributedContext()
    model, optimizer, precision = _build_prepared(config, data, train, device, world)
    _check_eps(optimizer)
    task = build_task(config, device)
    if test is not None and not is_built_in(config):
        with world.raise_on_all_ranks():
            remedy = partial(find_remedy, config, data, train, device)
            run_preflight(task, model, precision, config, test, data, remedy)
    in_parts = config.training.accumulate > 1 or world.size > 1
    if in_parts and not has_equal_target_counts(data.train):
        task = task.weighted_by_targets()
    if config.training.perturb_weights == ONE_ULP:
        perturb_weights(optimizer, precision, config.seed)
    schedule = _build_schedule(config, optimizer, steps_per_epoch(config, train))
    if world.rank:  # initial weights are equal everywhere, dropout must differ
        machine.seed_process(config.seed, world.rank)
    if world.size > 1:
        model = wrap_in_ddp(model, find_unused_parameters=config.training.find_unused_parameters)
        return Trainer(model, optimizer, schedule, precision, config.training, task, world=world)
    compiled = uses_compile(config.execution)
    parts = (model, optimizer, schedule, precision, config.training, task)
    if uses_cuda_graph(config.execution):
        images = min(config.batch_size, train.sample_count)
        return GraphTrainer(*parts, compiled=compiled, make_batch=train.batch, images=images)
    return Trainer(*parts, compiled=compiled)


def find_remedy(
    config: Config, data: Dataset, train: Any, device: torch.device, load_batch: Callable[[], Batch]
) -> str:
    """Return what helps a batch that fails under the backend and runs in fp32, as the end of a message.

    Each trial builds the network again, in this process alone.
    """
    if get_backend(config.backend).is_fp32:
        return ""

    def build(changed: Config) -> tuple[nn.Module, Precision]:
        model, _, precision = _build_prepared(changed, data, train, device, DistributedContext())
        return model, precision

    return find_fp32_remedy(config, build, build_task(config, device), load_batch)


def _build_prepared(
    config: Config, data: Dataset, train: Any, device: torch.device, world: DistributedContext
) -> tuple[nn.Module, Optimizer, Precision]:
    """Return network and optimizer as the backend has prepared them, and the backend."""
    machine.seed_process(config.seed)
    network = _build_network(config, data, train, device, world)
    precision = _build_precision(config, device)
    model, optimizer = _prepare(precision, network, build_optimizer(config, network, device), config.backend)
    return model, optimizer, precision


def _build_network(
    config: Config, data: Dataset, train: Any, device: torch.device, world: DistributedContext
) -> nn.Module:
    """Return the network on the device, with all its weights and in its memory format."""
    options = dataclasses.asdict(config.model)
    network = build_model(num_classes=len(data.classes) or None, **options).to(device)
    if find_lazy_modules(network):
        with world.raise_on_all_ranks():
            create_lazy_weights(network, config, train)
    if is_channels_last(config.memory_format, device):
        set_channels_last(network)
    return network


def _build_precision(config: Config, device: torch.device) -> Precision:
    options = dataclasses.asdict(config.precision)
    tf32 = allows_tf32(config)
    try:
        return build_precision(config.backend, device, **options, tf32=tf32, seed=config.seed)
    except KeepFp32Error as problem:
        raise UserError(problem) from None


def _prepare(
    precision: Precision, network: nn.Module, optimizer: Optimizer, backend: str
) -> tuple[nn.Module, Optimizer]:
    """Return network and optimizer as the backend prepares them.

    Raises:
        UserError: The backend cannot train the network, or a plug-in returns something else.
    """
    try:
        prepared: Any = precision.prepare(network, optimizer)
    except (KeepFp32Error, UnsupportedModel) as problem:
        raise UserError(problem) from None
    is_pair = isinstance(prepared, tuple) and len(prepared) == 2
    if not is_pair or not isinstance(prepared[0], nn.Module) or not isinstance(prepared[1], Optimizer):
        raise UserError(
            f"backend={backend!r}: its convert returned {describe_type(prepared)}; "
            "expected (model, optimizer)"
        )
    return prepared


def _build_schedule(config: Config, optimizer: Optimizer, per_epoch: int) -> LambdaLR:
    """Return the schedule of the learning rate, for epochs of this number of steps."""
    schedule = config.schedule
    factor = partial(
        learning_rate_factor,
        name=schedule.name,
        warmup_steps=schedule.warmup_epochs * per_epoch,
        total_steps=config.epochs * per_epoch,
        milestones=[epoch * per_epoch for epoch in schedule.milestones or ()],
        gamma=schedule.gamma,
    )
    return LambdaLR(optimizer, factor)


def set_channels_last(model: nn.Module) -> None:
    """Lay 4-d weights and buffers out in channels_last, in place.

    `Module.to` would convert the 5-d weights of volumes too, which have no such layout.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def has_equal_target_counts(split: Split) -> bool:
    """Return whether every sample surely has the same number of targets that count.

    False for data outside memory, where this is not known: sequences may differ in length and contain -100.
    """
    if isinstance(split, ImageSplit):
        return True
    if not isinstance(split, TensorSplit):
        return False
    tensors = list_tensors(split.targets)
    classes = [t for t in tensors if not t.is_floating_point() and not t.is_complex()]
    return not any(bool((t == IGNORED_TARGET).any()) for t in classes)


def is_built_in(config: Config) -> bool:
    """Return whether network, data and task are built in, so that they fit each other."""
    built_in = (*BUILT_IN, *RESNETS)
    return config.model.name in built_in and config.data.source in SOURCES and config.task == TaskConfig()


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> Optimizer:
    """Return the optimizer over all parameters of the model."""
    options = config.optimizer
    parameters = list(model.parameters())
    common: dict[str, Any] = {
        "lr": options.lr,
        "weight_decay": options.weight_decay,
        "fused": is_fused(config, device),
    }
    try:
        if options.name == "sgd":
            return torch.optim.SGD(parameters, momentum=options.momentum, nesterov=options.nesterov, **common)
        adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.name]
        graph = uses_cuda_graph(config.execution)
        return adam(parameters, eps=options.eps, capturable=graph, **common)
    except RuntimeError as problem:
        raise UserError(f"optimizer.fused={options.fused}: {problem}; set optimizer.fused=false") from None


def _check_eps(optimizer: Optimizer) -> None:
    """Warn once if the eps of the optimizer is 0 in the dtype of the weights that it updates."""
    for group in optimizer.param_groups:
        for dtype in {weight.dtype for weight in group["params"]}:
            if "eps" in group and torch.tensor(group["eps"], dtype=dtype) == 0:
                log.warning(
                    f"the optimizer's eps of {group['eps']:g} is 0 in {name_dtype(dtype)} weights, so its "
                    "updates may divide by 0 and make the weights NaN; set optimizer.eps=1e-4",
                    extra=ONCE,
                )


def is_fused(config: Config, device: torch.device) -> bool:
    """Return whether the optimizer is fused: by the option, or by default on a GPU."""
    return is_cuda(device) if config.optimizer.fused is None else config.optimizer.fused
