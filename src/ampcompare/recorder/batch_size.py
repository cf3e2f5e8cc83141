"""The number of samples in a trainer's batch, as its data loader determines it.

A batch itself does not tell: its tensors may have one row for all samples (sequences without padding), or
several for each.
"""

from collections.abc import Sized
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

ACCELERATES_LOADER = "DataLoaderShard.__iter__"  # one process's part of the loader inside it
ACCELERATES_SAMPLER = "BatchSamplerShard"  # one process's part of the batches


def count_batch_samples(loader: Any, index: int) -> int | None:
    """Return the number of samples of the data set in a batch.

    Args:
        loader: The loader of this process.
        index: The position of the batch in its epoch, from 0.

    Returns:
        None where only the batch itself could tell: an iterable data set, a batch sampler of the user's own,
        several loaders, a loader that is not PyTorch's.
    """
    if not _yields_batches_of_sampler(loader):
        return None
    sampler = loader.batch_sampler
    if type(sampler).__name__ == ACCELERATES_SAMPLER:
        return _count_samples_of_process(sampler)
    # A batch sampler of the user's own may have batches of any size, whatever its attributes are.
    if type(sampler) is not BatchSampler or not isinstance(sampler.sampler, Sized):
        return None
    left = len(sampler.sampler) - index * sampler.batch_size
    samples = min(sampler.batch_size, left)
    return samples if index >= 0 and samples > 0 else None


def _yields_batches_of_sampler(loader: Any) -> bool:
    """Return whether a loader yields one batch for each batch of its sampler."""
    if not isinstance(loader, DataLoader):
        return False
    if type(loader).__iter__.__qualname__ == ACCELERATES_LOADER:
        loader = getattr(loader, "base_dataloader", loader)
    return type(loader).__iter__ is DataLoader.__iter__


def _count_samples_of_process(sampler: Any) -> int | None:
    """Return the samples of each batch of accelerate's sampler, which completes the last one."""
    if type(sampler.batch_sampler) is not BatchSampler or not (sampler.even_batches or sampler.drop_last):
        return None
    parts = sampler.num_processes if sampler.split_batches else 1
    return int(sampler.batch_size) // parts
