"""The loaders of a run, and the checks of options against the data."""

import dataclasses
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.config.schema import OPTIONS
from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.data.batch import Batch, Field, count_samples, list_tensors
from ampcompare.data.dataset import ImageSplit, LoaderSplit, SampleSplit, Split, TensorSplit
from ampcompare.data.device_loaders import DeviceLoader, TensorLoader
from ampcompare.data.factory import Dataset
from ampcompare.data.host_loaders import BatchLoader, SampleLoader
from ampcompare.data.sources import get_source
from ampcompare.errors import UserError
from ampcompare.system.device import is_channels_last, is_cuda
from ampcompare.system.distributed import DistributedContext, check_last_batch
from ampcompare.system.environment import count_cores
from ampcompare.training.torch_compile import uses_compile, uses_cuda_graph

MAX_WORKERS = 4
MAX_CHECKED_BATCHES = 50  # batches that are read to explain a loss that is not finite
EVAL_SEED = 0  # the same samples in every run, even if a data set draws them at random


def make_loader(
    config: Config,
    split: Split,
    device: torch.device,
    *,
    training: bool,
    world: DistributedContext | None = None,
) -> Any:
    """Return the loader of the training or the test split.

    Images and tensors in memory get a loader that makes batches on the device (DeviceLoader, TensorLoader).
    Other data get a SampleLoader or a BatchLoader.
    """
    options: dict[str, Any] = {
        "device": device,
        "seed": config.seed if training else EVAL_SEED,
        "channels_last": is_channels_last(config.memory_format, device),
        "pinned": is_cuda(device),
        "rank": world.rank if world else 0,
        "processes": world.size if world else 1,
    }
    if isinstance(split, LoaderSplit):
        return BatchLoader(split, **options)
    options |= {"batch_size": config.batch_size if training else config.eval.batch_size, "shuffle": training}
    if isinstance(split, ImageSplit):
        augment = training and config.data.augment
        return DeviceLoader(split, mean=config.data.mean, std=config.data.std, augment=augment, **options)
    if isinstance(split, TensorSplit):
        return TensorLoader(split, **options)
    return SampleLoader(split, name=config.data.source, workers=count_workers(config, world), **options)


def count_workers(config: Config, world: DistributedContext | None = None) -> int:
    """Return the number of DataLoader workers for each training process on this machine."""
    if config.data.workers is not None:
        return config.data.workers
    cores = count_cores() // (world.local_size if world else 1)
    return max(0, min(MAX_WORKERS, cores - 1))


def check_processes(config: Config, processes: int) -> None:
    """Raise UserError for options that several processes cannot have."""
    if processes == 1:
        return
    if config.execution != "eager":
        raise UserError(
            f"execution={config.execution!r}: with {processes} processes only execution=eager is supported; "
            "use it"
        )
    if config.training.gradient_penalty:
        raise UserError(
            f"training.gradient_penalty={config.training.gradient_penalty:g}: with {processes} processes "
            "the gradients are complete only after the backward pass; set it to 0 or use one process"
        )
    if config.batch_size < processes:
        raise UserError(
            f"batch_size={config.batch_size}: with {processes} processes each needs at least one sample; "
            f"use at least {processes}"
        )


def with_batch_size_of_loader(config: Config, data: Dataset) -> Config:
    """Return the options with the batch size of the user's DataLoader, if no batch size is given.

    A loader that does not tell its batch size has that of its first batch.
    """
    if not isinstance(data.train, LoaderSplit) or "batch_size" not in config.not_given:
        return config
    size = data.train.batch_size or count_samples(data.train.sample[0])
    return dataclasses.replace(config, batch_size=size)


def check_data(config: Config, data: Dataset, world: DistributedContext) -> None:
    """Raise UserError, in all processes, for options that the data do not allow."""
    with world.raise_on_all_ranks():
        _check_batch_sizes(config, data)
        _check_normalisation(config, data)
        _check_cuda_graph(config, data)
        _check_workers(config, data)
        check_shared_batches(config, data, world.size)
    if world.size > 1:
        _check_same_data(config, data, world)
    if not isinstance(data.train, LoaderSplit):
        check_last_batch(len(data.train), config.batch_size, world)


def _check_batch_sizes(config: Config, data: Dataset) -> None:
    """Raise UserError for a batch size that the user's DataLoader does not have, or that is too large."""
    source = config.data.source
    for key, split in (("batch_size", data.train), ("eval.batch_size", data.test)):
        size = config.value(key)
        loader_size = split.batch_size if isinstance(split, LoaderSplit) else None
        is_asked = split is data.train or size != OPTIONS[key].default
        if is_asked and loader_size not in (None, size):
            raise UserError(
                f"{key}={size}: the DataLoader of {source} has batches of {loader_size}; "
                f"set {key}={loader_size}, or add a parameter batch_size to the function and use it"
            )
    train = data.train
    samples = train.size
    if samples is not None and config.batch_size > samples:
        unit = "samples" if isinstance(train, LoaderSplit) else train.unit
        raise UserError(
            f"batch_size={config.batch_size}: {source} has only {samples} training {unit}; "
            f"use a batch_size of at most {samples}"
        )


def _check_normalisation(config: Config, data: Dataset) -> None:
    """Raise UserError for mean and standard deviation of data that are not normalised."""
    if isinstance(data.train, ImageSplit):
        return
    for key in ("data.mean", "data.std"):
        value = config.value(key)
        if value != OPTIONS[key].default:
            raise UserError(
                f"{key}={value}: only RGB images of dtype uint8 are normalised, "
                f"{config.data.source} returns other data; leave the option out and normalise in the function"
            )


def _check_cuda_graph(config: Config, data: Dataset) -> None:
    """Raise UserError for a CUDA graph of steps on data that are not in memory."""
    if uses_cuda_graph(config.execution) and not isinstance(data.train, TensorSplit):
        raise UserError(
            f"execution={config.execution!r}: the CUDA graph makes the batches itself, "
            f"but {config.data.source} returns a Dataset or a DataLoader; "
            "return tensors, or use execution=eager or execution=compile"
        )


def _check_workers(config: Config, data: Dataset) -> None:
    """Raise UserError for workers of data that have none, or of a DataLoader that has its own."""
    workers = config.data.workers
    if workers is None or isinstance(data.train, SampleSplit):
        return
    is_loader = isinstance(data.train, LoaderSplit)
    if workers == 0 and not is_loader:  # data in memory have none
        return
    kind = "a DataLoader" if is_loader else "data in memory"
    raise UserError(
        f"data.workers={workers}: workers are for a map-style Dataset, {config.data.source} returns {kind}; "
        "leave it out"
    )


def check_shared_batches(config: Config, data: Dataset, processes: int) -> None:
    """Raise UserError for a user's DataLoader in several processes, which cannot share its batches."""
    if processes > 1 and any(isinstance(split, LoaderSplit) for split in (data.train, data.test)):
        raise UserError(
            f"data.source={config.data.source!r}: returns a DataLoader, whose batches {processes} processes "
            "cannot share; return the Dataset instead, or use one process"
        )


def _check_same_data(config: Config, data: Dataset, world: DistributedContext) -> None:
    """Raise UserError if the processes have different data.

    Each process takes its samples by their numbers, so all must have the same data in the same order.
    """
    # The fingerprints have the lengths in them.
    fingerprints = world.gather((data.fingerprint, data.train_fingerprint))
    if any(other != fingerprints[0] for other in fingerprints):
        raise UserError(
            f"data.source={config.data.source!r}: the {world.size} processes have different data, "
            "but need the same; "
            "seed the random choices in the function, and give all machines the same files"
        )


def find_nonfinite_values(loader: Any) -> tuple[str, str]:
    """Check the training data for NaN and infinite values, to explain a loss that is not finite.

    Tensors on the device are checked as a whole, otherwise the first batches of the first epoch. Waits for
    the device.

    Returns:
        What was found, such as `the training inputs contain NaN` ("" if nothing), and which data were checked
        ("" if reading them fails).
    """
    try:
        if isinstance(loader, TensorLoader):
            checked = "the training data"
            found = _find_nonfinite_value((loader.inputs, loader.targets))
        else:
            checked = f"the first {min(len(loader), MAX_CHECKED_BATCHES)} training batches"
            batches = islice(loader.epoch(0), MAX_CHECKED_BATCHES)
            found = next(filter(None, map(_find_nonfinite_value, batches)), "")
    except Exception:  # the run has failed already; this only explains it
        return "", ""
    return found, checked


def _find_nonfinite_value(batch: Batch) -> str:
    """Return which part of a batch contains NaN or infinite values; "" if all are finite."""
    for field, name in zip(batch, ("inputs", "targets"), strict=True):
        for tensor in filter(torch.is_floating_point, list_tensors(field)):
            if not tensor.isfinite().all():
                value = "NaN" if tensor.isnan().any() else "infinite values"
                return f"the training {name} contain {value}"
    return ""


def _are_classes(targets: Field) -> bool:
    """Return whether the targets may be one class for each sample."""
    return isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()


def describe_training_data(data: Dataset) -> str:
    """Return how many training samples there are, in batches if a loader of the user makes them."""
    train = data.train
    if not isinstance(train, LoaderSplit):
        return f"{len(train):,} training {train.unit}"
    if train.samples is None:
        return f"{len(train):,} training batches"
    return f"{train.samples:,} training samples in {len(train):,} training batches"


def _may_be_images(split: Split) -> bool:
    """Return whether the inputs have the form of RGB or grey images: [N, 1 or 3, H, W], in any dtype."""
    inputs = split.sample[0]
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)


def data_warnings(config: Config, data: Dataset) -> list[str]:
    """Return warnings to show before the training: about the data, and diagnostics that are left out."""
    warnings = []
    source = config.data.source
    every = config.diagnostics.every
    if uses_compile(config.execution) and every is not None:
        warnings.append(
            f"diagnostics.every={every} records gradients only: "
            f"execution={config.execution} cannot record activations"
        )
    if config.data.root is not None and get_source(source).load is None:
        warnings.append(f"data.root={config.data.root!r}: not passed to {source}; pass it with data.kwargs")
    if not isinstance(data.train, ImageSplit) and _may_be_images(data.train):
        warnings.append(
            f"data of {source} are used unchanged: crop, flip and normalisation are for RGB images of "
            "dtype uint8"
        )
    if isinstance(data.train, LoaderSplit) and data.train.batch_size is None:
        size = count_samples(data.train.sample[0])
        if size != config.batch_size:
            warnings.append(f"batch_size={config.batch_size}: the first batch of {source} has {size} samples")
    needs_classes = isinstance(data.train, SampleSplit | LoaderSplit) and config.task.loss == CROSS_ENTROPY
    if needs_classes and not data.classes and _are_classes(data.train.sample[1]):
        warnings.append(
            f"{source} does not give the number of classes, so the network does not get num_classes; "
            "add an attribute `classes` (their names) or `num_classes` to the Dataset"
        )
    return warnings
