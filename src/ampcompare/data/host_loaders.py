"""Loaders of batches that are made on the host, by DataLoader workers or by a loader of the user's.

They have no plans, so making a batch cannot be captured in a CUDA graph. The host may wait for data, never
for the device.
"""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ampcompare import plugins
from ampcompare.data.batch import Batch, count_samples, map_tensors, to_memory_format
from ampcompare.data.dataset import LoaderSplit, SampleRequest, SampleSplit
from ampcompare.data.device_loaders import ShardedLoader, draw_order
from ampcompare.data.seeding import read_batches


class _HostLoader(ShardedLoader):
    """The base class of loaders that copy batches from the host to the device.

    With `pinned` the host does not wait for copies.
    """

    def move_to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device."""
        return map_tensors(batch[0], self._move), map_tensors(batch[1], self._move)

    def _move(self, tensor: Tensor) -> Tensor:
        if self.pinned and tensor.get_device() < 0 and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # from a loader that does not pin memory
        # PyTorch reuses freed pinned memory only after its copy is done.
        return to_memory_format(tensor.to(self.device, non_blocking=self.pinned), self.channels_last)


class SampleLoader(_HostLoader):
    """Batches of a map-style data set.

    Order and random choices depend only on (seed, epoch, position). So the batches are the same with any
    number of workers and processes, and after a resume within an epoch.

    Args:
        name: The name of the plug-in.
        workers: The number of DataLoader workers; with 0 this process makes the batches.
        **options: Further attributes of `ShardedLoader`.
    """

    def __init__(self, data: SampleSplit, *, name: str, workers: int = 0, **options: Any) -> None:
        super().__init__(sample_count=len(data), **options)
        self.name = name
        self.file = data.file
        self._requests: list[SampleRequest] = []  # the sampler; the DataLoader is used for all epochs
        # A forked worker has modules that were imported from files and cannot be imported by name.
        forks = workers and "fork" in multiprocessing.get_all_start_methods()
        dataset: Any = data
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            pin_memory=self.pinned,
            multiprocessing_context="fork" if forks else None,
            generator=torch.Generator(),  # otherwise each epoch draws from the global one
            persistent_workers=workers > 0,
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `start` on."""
        order = draw_order(self.sample_count, self.seed, epoch, self.shuffle)
        requests = (
            SampleRequest(self.seed, epoch, own.start, own.step, order[own].tolist())
            for own in self.get_shard_slices(start)
        )
        self._requests[:] = (request for request in requests if request.indices)
        for batch in read_batches(self._loader, self.name, self.file, epoch, first=start):
            yield self.move_to_device(batch)


class BatchLoader(_HostLoader):
    """Batches of a user's loader, moved to the device.

    Its generators are seeded from (seed, epoch) at the beginning of an epoch. After a resume within an epoch,
    earlier batches are skipped. Only one process has such batches.

    Args:
        **options: Further attributes of `ShardedLoader`, except the batch size.
    """

    def __init__(self, data: LoaderSplit, **options: Any) -> None:
        size = data.batch_size or count_samples(data.sample[0])
        super().__init__(sample_count=len(data) * size, batch_size=size, **options)
        self.data = data
        self.name = data.name

    def __len__(self) -> int:
        return len(self.data)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `start` on.

        Raises:
            UserError: The loader raises, or has fewer batches than its length says.
        """
        batches = read_batches(self.data.loader, self.name, self.data.file, epoch, seed=self.seed)
        for number in range(len(self)):
            batch = next(batches, None)
            if batch is None:
                raise plugins.DATA.make_error(
                    self.name,
                    f"the loader yielded {number} batches in epoch {epoch}, but its len() is {len(self)}; "
                    "len() must be right, and each iteration must start from the first batch",
                )
            if number >= start:
                yield self.move_to_device(batch)
