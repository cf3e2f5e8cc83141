"""How the samples of an epoch are cut into batches, and a batch into the shares of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from ampcompare.data.batch import Batch


class Shares:
    """Batches of `batch_size`, the last, short one kept, so that each sample comes exactly once.

    With several processes each takes its share of the same batches: every `processes`-th sample from `rank`
    on. Raises ValueError for a batch size below 1.
    """

    def __init__(self, sample_count: int, batch_size: int, rank: int = 0, processes: int = 1) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.sample_count = sample_count  # in an epoch, of all processes
        self.batch_size, self.rank, self.processes = batch_size, rank, processes

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.sample_count // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on: the same as skipping `start`."""
        raise NotImplementedError

    def shares(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """The same with the samples of each batch in all processes together."""
        return zip(self.epoch(epoch, start), islice(self.whole_sizes(), start, None), strict=True)

    def positions(self) -> Tensor:
        """Where this loader's samples lie in an epoch of all processes, int64 [own] on the CPU."""
        every = torch.arange(self.sample_count)
        return torch.cat([every[batch] for batch in self.slices()])

    def whole_sizes(self) -> list[int]:
        """Samples of each batch of an epoch, in all processes together."""
        return [min(self.batch_size, self.sample_count - first) for first in self._firsts()]

    def _firsts(self) -> range:
        return range(0, self.sample_count, self.batch_size)

    def slices(self, start: int = 0) -> list[slice]:
        """Where this process's share of each batch from number `start` on lies in an epoch."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start}: an epoch has {len(self)} batches")
        pairs = list(zip(self._firsts(), self.whole_sizes(), strict=True))[start:]
        return [slice(first + self.rank, first + size, self.processes) for first, size in pairs]
