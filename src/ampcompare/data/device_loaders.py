"""Batches drawn on the device: the whole data set lives there, an epoch is a plan of indices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.augment import batch_crop, batch_flip, normalization, normalize
from ampcompare.data.batch import Batch, is_image, map_tensors, to_memory_format
from ampcompare.data.dataset import ImageSet, TensorSet

PADDING = 4


def draw_plan(count: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """All random choices of one epoch, int64 [4, count] on the CPU: image, top, left, flip of each sample.

    A function of its arguments alone: the same on every device and after every resume, and the global
    random state is neither read nor changed. top and left lie in 0..2*PADDING, flip is 0 or 1.
    """
    generator = _generator(seed, epoch)
    order = torch.randperm(count, generator=generator)
    offsets = torch.randint(0, 2 * PADDING + 1, (2, count), generator=generator)
    flip = torch.randint(0, 2, (1, count), generator=generator)
    if not shuffle:
        order = torch.arange(count)
    return torch.cat([order[None], offsets, flip])


def draw_order(count: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """The first row of `draw_plan` alone, int64 [count]."""
    return torch.randperm(count, generator=_generator(seed, epoch)) if shuffle else torch.arange(count)


def _generator(seed: int, epoch: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed % 2**64, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) % 2**63)


@dataclass(kw_only=True)
class ShardedLoader:
    """Batches of `batch_size`, the last, short one kept, so that each sample comes exactly once.

    With several processes each takes its share of the same batches: every `processes`-th sample from `rank`
    on. `sample_count` in an epoch is that of all processes.
    """

    sample_count: int
    batch_size: int
    device: torch.device | str
    shuffle: bool = False
    seed: int = 0
    channels_last: bool = False
    pinned: bool = False
    rank: int = 0
    processes: int = 1

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.sample_count // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on: the same as skipping `start`."""
        raise NotImplementedError

    def epoch_with_sizes(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """The same with the samples of each batch in all processes together."""
        sizes = (min(self.batch_size, self.sample_count - first) for first in self._batch_starts(start))
        return zip(self.epoch(epoch, start), sizes, strict=True)

    def shard_slices(self, start: int = 0) -> list[slice]:
        """Where this process's share of each batch from number `start` on lies in an epoch."""
        size, count = self.batch_size, self.sample_count
        firsts = self._batch_starts(start)
        return [slice(first + self.rank, min(first + size, count), self.processes) for first in firsts]

    def _batch_starts(self, start: int) -> range:
        return range(0, self.sample_count, self.batch_size)[start:]


class TensorLoader(ShardedLoader):
    """Batches of tensors that lie on the device whole, gathered there by some columns of an epoch's plan. An
    epoch has the order that images of the same seed have.

    `pinned`: an epoch's plan goes to the device by pinned memory, behind what is queued there. Nothing in an
    epoch waits for the device.
    """

    def __init__(self, data: TensorSet, **how: Any) -> None:
        """`how`: as for `ShardedLoader`."""
        super().__init__(sample_count=len(data), **how)
        # sync: once, before training; pageable memory to the device. On a CPU they stay where they are.
        self.inputs, self.targets = (
            map_tensors(field, self._move_to_device) for field in (data.inputs, data.targets)
        )

    def _move_to_device(self, tensor: Tensor) -> Tensor:
        return to_memory_format(tensor.to(self.device), self.channels_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        # Fewer samples than processes: nothing for some.
        return (self.batch(plan) for plan in self.plans(epoch, start) if plan.shape[1])

    def plans(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield what `batch` makes the batches of an epoch of: int64 [rows, B], on the device."""
        plan = self.draw(epoch)
        # From pinned memory the copy is queued and the host goes on.
        plan = plan.pin_memory().to(self.device, non_blocking=True) if self.pinned else plan.to(self.device)
        yield from (plan[:, batch] for batch in self.shard_slices(start))

    def draw(self, epoch: int) -> Tensor:
        """All random choices of an epoch, int64 [rows, samples] on the CPU; the first row is the order."""
        return draw_order(self.sample_count, self.seed, epoch, self.shuffle)[None]

    def batch(self, plan: Tensor) -> Batch:
        """The batch of columns of a plan, int64 [rows, B] on the device; safe inside a captured graph."""

        def gathered(tensor: Tensor) -> Tensor:
            if self.channels_last and is_image(tensor):
                # Gathered as it lies; index_select would turn it back.
                return tensor.permute(0, 2, 3, 1).index_select(0, plan[0]).permute(0, 3, 1, 2)
            return tensor.index_select(0, plan[0])

        return map_tensors(self.inputs, gathered), map_tensors(self.targets, gathered)


class DeviceLoader(TensorLoader):
    """Batches of normalised images, float32 [B, C, H, W], and labels, int64 [B], for training (`augment`,
    `shuffle`) or evaluation (neither). Augmentation is a crop with padding 4 and a horizontal flip with
    probability one half, per sample.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool = False,
        **how: Any,
    ) -> None:
        """`how`: as for `ShardedLoader`."""
        super().__init__(data, **how)
        self.augment = augment
        self.scale, self.shift = normalization(mean, std, self.device)

    def draw(self, epoch: int) -> Tensor:
        return draw_plan(self.sample_count, self.seed, epoch, self.shuffle)

    def batch(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        images: Any
        images, labels = super().batch(plan)
        if self.augment:
            images = batch_flip(batch_crop(images, plan[1], plan[2], PADDING), plan[3])
        return normalize(images, self.scale, self.shift, self.channels_last), labels  # type: ignore[return-value]
