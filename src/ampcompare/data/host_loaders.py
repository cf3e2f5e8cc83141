"""Batches made on the host: of a map-style data set by workers, or by somebody's own loader.

They have no plans, and so none of their batches can be part of a captured CUDA graph. A wait is one of the
host for the data, never for the device.
"""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ampcompare import plugins
from ampcompare.data.batch import Batch, count_samples, map_tensors, to_memory_format
from ampcompare.data.dataset import BatchSet, SampleRequest, SampleSet
from ampcompare.data.device_loaders import ShardedLoader, draw_order
from ampcompare.data.seeding import read_batches


class _HostLoader(ShardedLoader):
    """Batches put on the device. With `pinned` the host waits for no copy: it makes the next batch while the
    device works on what is queued.
    """

    def put(self, batch: Batch) -> Batch:
        """The batch on the device."""
        return map_tensors(batch[0], self._move), map_tensors(batch[1], self._move)

    def _move(self, tensor: Tensor) -> Tensor:
        if self.pinned and tensor.get_device() < 0 and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # of a loader that does not pin: a copy on the host
        # Pinned memory that is let go is given out again only when its copy is done.
        return to_memory_format(tensor.to(self.device, non_blocking=self.pinned), self.channels_last)


class SampleLoader(_HostLoader):
    """Batches of a map-style data set, made by `workers` processes.

    Order and random choices are functions of (seed, epoch, position): the same batches with any number of
    workers and processes, and from batch k on after a resume. 0 workers: this process makes them.
    """

    def __init__(self, data: SampleSet, *, name: str, workers: int = 0, **how: Any) -> None:
        """`how`: as for `ShardedLoader`."""
        super().__init__(sample_count=len(data), **how)
        self.name, self.file = name, data.file
        self._places: list[SampleRequest] = []  # the sampler of a DataLoader that lives longer than an epoch
        # Forked, they have the modules of files, which no other process can import by name.
        forks = workers and "fork" in multiprocessing.get_all_start_methods()
        by_places: Any = data
        self._loader: DataLoader[Any] = DataLoader(
            by_places,
            batch_size=None,
            sampler=self._places,
            num_workers=workers,
            pin_memory=self.pinned,
            multiprocessing_context="fork" if forks else None,
            generator=torch.Generator(),  # else each epoch would draw from the global one
            persistent_workers=workers > 0,
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = draw_order(self.sample_count, self.seed, epoch, self.shuffle)
        places = (
            SampleRequest(self.seed, epoch, own.start, own.step, order[own].tolist())
            for own in self.shard_slices(start)
        )
        self._places[:] = (place for place in places if place.indices)
        yield from map(self.put, read_batches(self._loader, self.name, self.file, epoch, first=start))


class BatchLoader(_HostLoader):
    """Somebody's loader, as it is, its batches put on the device.

    Its generators are seeded as an epoch begins, of (seed, epoch); batch k of an epoch is had by skipping k.
    Several processes all run it, and each keeps its share of each batch.
    """

    def __init__(self, data: BatchSet, *, trains: bool = True, **how: Any) -> None:
        """`how`: as for `ShardedLoader`, but for the batch size."""
        size = data.batch_size or count_samples(data.sample[0])
        super().__init__(sample_count=len(data) * size, batch_size=size, **how)
        self.data, self.name, self.trains = data, data.name, trains

    def __len__(self) -> int:
        return len(self.data)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from (batch for batch, _ in self.epoch_with_sizes(epoch, start))

    def epoch_with_sizes(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        batches = read_batches(self.data.loader, self.name, self.data.file, epoch, seed=self.seed)
        for number in range(len(self)):
            if (whole := next(batches, None)) is None:
                why = f"gave {number} of the {len(self)} batches that its len promises in epoch {epoch}"
                todo = "it has to begin anew each time, and to tell its length"
                raise plugins.DATA.make_error(self.name, f"the loader {why}; {todo}")
            if number < start:
                continue
            size = count_samples(whole[0])
            if self.trains and size < self.processes:
                why = f"has {size} samples, fewer than the {self.processes} processes"
                raise plugins.DATA.make_error(self.name, f"batch {number} of epoch {epoch} {why}")
            inputs, targets = (
                map_tensors(field, lambda t: t[self.rank :: self.processes]) for field in whole
            )
            if count_samples(inputs):
                yield self.put((inputs, targets)), size
