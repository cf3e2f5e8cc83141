"""The loaders of a run, and the checks of options against the data."""

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.config.schema import OPTIONS
from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.data.batch import Field, count_samples, hash_batch, list_tensors
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
        return BatchLoader(split, trains=training, **options)
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
    return max(0, min(MAX_WORKERS, count_cores() // (world.local_size if world else 1) - 1))


def check_processes(config: Config, processes: int) -> None:
    """Raise UserError for options that several processes cannot have."""
    what, size, penalty = f"with {processes} processes", config.batch_size, config.training.gradient_penalty
    if processes == 1:
        return
    if config.execution != "eager":
        raise UserError(f"execution={config.execution!r}: {what} only execution=eager is supported; use it")
    if penalty:
        why = f"{what} the gradients are complete only after the backward pass"
        raise UserError(f"training.gradient_penalty={penalty:g}: {why}; set it to 0 or use one process")
    if size < processes:
        raise UserError(f"batch_size={size}: {what} each needs at least one sample; use at least {processes}")


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
        for line in _data_conflicts(config, data):
            raise UserError(line)
    if world.size > 1:
        _check_same_data(config, data, world)
    if not isinstance(data.train, LoaderSplit):
        check_last_batch(len(data.train), config.batch_size, world)


def _data_conflicts(config: Config, data: Dataset) -> Iterator[str]:
    """Yield a message for each option that the data do not allow, with what to do."""
    source, execution, workers = config.data.source, config.execution, config.data.workers
    for key, split in (("batch_size", data.train), ("eval.batch_size", data.test)):
        size, loader_size = config.value(key), split.batch_size if isinstance(split, LoaderSplit) else None
        is_asked = split is data.train or size != OPTIONS[key].default
        if is_asked and loader_size not in (None, size):
            todo = f"set {key}={loader_size}, or add a parameter batch_size to the function and use it"
            yield f"{key}={size}: the DataLoader of {source} has batches of {loader_size}; {todo}"
    train = data.train
    samples = train.samples if isinstance(train, LoaderSplit) else len(train)
    if samples is not None and config.batch_size > samples:
        unit = "samples" if isinstance(train, LoaderSplit) else train.unit
        todo = f"use a batch_size of at most {samples}"
        yield f"batch_size={config.batch_size}: {source} has only {samples} training {unit}; {todo}"
    for key in ("data.mean", "data.std") if not isinstance(data.train, ImageSplit) else ():
        if (value := config.value(key)) != OPTIONS[key].default:
            why = f"only RGB images of dtype uint8 are normalised, {source} returns other data"
            yield f"{key}={value}: {why}; leave the option out and normalise in the function"
    if uses_cuda_graph(execution) and not isinstance(data.train, TensorSplit):
        why = f"{source} returns a Dataset or a DataLoader"
        todo = "return tensors, or use execution=eager or execution=compile"
        yield f"execution={execution!r}: the CUDA graph makes the batches itself, but {why}; {todo}"
    loads_itself = isinstance(data.train, LoaderSplit)
    # Data in memory have no workers; a user's own loader may have some.
    none_asked = workers is None or (workers == 0 and not loads_itself)
    if not (none_asked or isinstance(data.train, SampleSplit)):
        kind = "a DataLoader" if loads_itself else "data in memory"
        why = f"workers are for a map-style Dataset, {source} returns {kind}"
        yield f"data.workers={workers}: {why}; leave it out"


def _check_same_data(config: Config, data: Dataset, world: DistributedContext) -> None:
    """Raise UserError if the processes have different data.

    Each process takes its samples by their numbers, so all must have the same data in the same order.
    """
    batch_sets = [split for split in (data.train, data.test) if isinstance(split, LoaderSplit)]
    contents = world.gather([hash_batch(split.sample) for split in batch_sets])
    if any(other != contents[0] for other in contents):
        why = f"each of the {world.size} processes runs the DataLoader and takes its part of each batch"
        todo = "return the Dataset instead of a DataLoader, or use one process"
        what = "yields different batches in each process (a DistributedSampler, its own generator?)"
        raise UserError(f"data.source={config.data.source!r}: {why}, but it {what}; {todo}")
    # The fingerprints have the lengths in them.
    names = world.gather((data.fingerprint, data.train_fingerprint))
    if any(other != names[0] for other in names):
        why = f"the {world.size} processes have different data, but need the same"
        todo = "seed the random choices in the function, and give all machines the same files"
        raise UserError(f"data.source={config.data.source!r}: {why}; {todo}")


def find_nonfinite_values(loader: Any) -> tuple[str, str]:
    """Check the training data for NaN and infinite values, to explain a loss that is not finite.

    Tensors on the device are checked as a whole, otherwise the first batches of the first epoch. Waits for
    the device.

    Args:
        loader: The loader of the training data.

    Returns:
        What was found, such as `the training inputs contain NaN` ("" if nothing), and which data were checked
        ("" if reading them fails).
    """
    try:
        if isinstance(loader, TensorLoader):
            batches, checked = iter([(loader.inputs, loader.targets)]), "the training data"
        else:
            batches = islice(loader.epoch(0), MAX_CHECKED_BATCHES)
            checked = f"the first {min(len(loader), MAX_CHECKED_BATCHES)} training batches"
        for batch in batches:
            for field, name in zip(batch, ("inputs", "targets"), strict=True):
                for tensor in filter(torch.is_floating_point, list_tensors(field)):
                    if not tensor.isfinite().all():
                        value = "NaN" if tensor.isnan().any() else "infinite values"
                        return f"the training {name} contain {value}", checked
    except Exception:  # the run has failed already; this only explains it
        return "", ""
    return "", checked


def _are_classes(targets: Field) -> bool:
    """Return whether the targets may be one class for each sample."""
    return isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()


def describe_training_data(data: Dataset) -> str:
    """Return how many training samples there are, in batches if a loader of the user makes them."""
    train = data.train
    if not isinstance(train, LoaderSplit):
        return f"{len(train):,} training {train.unit}"
    batches = f"{len(train):,} training batches"
    return batches if train.samples is None else f"{train.samples:,} training samples in {batches}"


def _may_be_images(split: Split) -> bool:
    """Return whether the inputs have the form of RGB or grey images: [N, 1 or 3, H, W], in any dtype."""
    inputs = split.sample[0]
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)


def data_warnings(config: Config, data: Dataset) -> list[str]:
    """Return warnings to show before the training: about the data, and diagnostics that are left out."""
    warnings = []
    if uses_compile(config.execution) and (every := config.diagnostics.every) is not None:
        why = f"execution={config.execution} cannot record activations"
        warnings.append(f"diagnostics.every={every} records gradients only: {why}")
    source = config.data.source
    if config.data.root is not None and get_source(source).load is None:
        why = f"not passed to {source}; pass it with data.kwargs"
        warnings.append(f"data.root={config.data.root!r}: {why}")
    if not isinstance(data.train, ImageSplit) and _may_be_images(data.train):
        warnings.append(
            f"data of {source} are used unchanged: crop, flip and normalisation are for RGB images of "
            "dtype uint8"
        )
    if isinstance(data.train, LoaderSplit) and data.train.batch_size is None:
        size = count_samples(data.train.sample[0])
        if size != config.batch_size:
            warnings.append(f"batch_size={config.batch_size}: the first batch of {source} has {size} samples")
    is_asked = isinstance(data.train, SampleSplit | LoaderSplit) and config.task.loss == CROSS_ENTROPY
    if is_asked and not data.classes and _are_classes(data.train.sample[1]):
        todo = "add an attribute `classes` (their names) or `num_classes` to the Dataset"
        warnings.append(
            f"{source} does not give the number of classes, so the network does not get num_classes; {todo}"
        )
    return warnings
