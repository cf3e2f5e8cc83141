"""Loaders of data that is on the device as a whole; an epoch is a plan of indices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.augment import crop_batch, flip_batch, make_normalization, normalize
from ampcompare.data.batch import Batch, is_image, map_tensors, to_memory_format
from ampcompare.data.dataset import ImageSplit, TensorSplit

PADDING = 4


def draw_plan(count: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """Draw all random choices of an epoch.

    The result depends on the arguments only, so it is the same on every device and after a resume. The global
    random state is neither read nor changed.

    Returns:
        int64 [4, count] on the CPU: for each sample the index of the image, top and left of the crop in
        0..2*PADDING, and 1 to flip it or 0.
    """
    generator = _make_generator(seed, epoch)
    order = torch.randperm(count, generator=generator)
    offsets = torch.randint(0, 2 * PADDING + 1, (2, count), generator=generator)
    flip = torch.randint(0, 2, (1, count), generator=generator)
    if not shuffle:
        order = torch.arange(count)
    return torch.cat([order[None], offsets, flip])


def draw_order(count: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """Draw the order of an epoch, int64 [count]: the first row of `draw_plan`."""
    return torch.randperm(count, generator=_make_generator(seed, epoch)) if shuffle else torch.arange(count)


def _make_generator(seed: int, epoch: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed % 2**64, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) % 2**63)


@dataclass(kw_only=True)
class ShardedLoader:
    """The base class of the loaders.

    An epoch has each sample once; its last batch may be shorter. Each of several processes gets its share of
    every batch: every `processes`-th sample, beginning with `rank`.

    Attributes:
        sample_count: The number of samples of an epoch in all processes together.
        batch_size: The number of samples of a batch in all processes together.
        shuffle: Whether each epoch has its own random order.
        channels_last: Whether images are in the channels_last memory format.
        pinned: Whether copies to the device use pinned memory, so that the host does not wait.
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
        """Return the number of batches in an epoch."""
        return -(-self.sample_count // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on, as inputs and targets, [B, ...] each."""
        raise NotImplementedError

    def epoch_with_sizes(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """Yield the batches of an epoch, each with its number of samples in all processes together."""
        sizes = (min(self.batch_size, self.sample_count - first) for first in self._get_batch_starts(start))
        return zip(self.epoch(epoch, start), sizes, strict=True)

    def get_shard_slices(self, start: int = 0) -> list[slice]:
        """Return the positions in the epoch of this process's share of each batch from `start` on."""
        slices = []
        for first in self._get_batch_starts(start):
            end = min(first + self.batch_size, self.sample_count)
            slices.append(slice(first + self.rank, end, self.processes))
        return slices

    def _get_batch_starts(self, start: int) -> range:
        return range(0, self.sample_count, self.batch_size)[start:]


class TensorLoader(ShardedLoader):
    """Batches gather on the device from tensors that are there as a whole.

    A batch is made from columns of the epoch's plan. With `pinned` nothing in an epoch waits for the device.

    Args:
        **options: Further attributes of `ShardedLoader`.
    """

    def __init__(self, data: TensorSplit, **options: Any) -> None:
        super().__init__(sample_count=len(data), **options)
        # sync: once, before training: a copy from pageable memory to the device; none on a CPU
        self.inputs = map_tensors(data.inputs, self._move_to_device)
        self.targets = map_tensors(data.targets, self._move_to_device)

    def _move_to_device(self, tensor: Tensor) -> Tensor:
        return to_memory_format(tensor.to(self.device), self.channels_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch from number `start` on."""
        # A last batch with fewer samples than processes is empty for some of them.
        return (self.batch(plan) for plan in self.plans(epoch, start) if plan.shape[1])

    def plans(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield the plan of each batch of an epoch, int64 [rows, B] on the device, for `batch`."""
        plan = self.draw(epoch)
        if self.pinned:
            plan = plan.pin_memory()  # the copy is queued, and the host does not wait
        plan = plan.to(self.device, non_blocking=self.pinned)
        yield from (plan[:, batch] for batch in self.get_shard_slices(start))

    def draw(self, epoch: int) -> Tensor:
        """Draw the plan of an epoch, int64 [rows, samples] on the CPU; the first row is the order."""
        return draw_order(self.sample_count, self.seed, epoch, self.shuffle)[None]

    def batch(self, plan: Tensor) -> Batch:
        """Make a batch from its plan, int64 [rows, B] on the device; may be captured in a CUDA graph."""

        def gather(tensor: Tensor) -> Tensor:
            if self.channels_last and is_image(tensor):
                # Gather in memory order, since index_select returns contiguous tensors.
                return tensor.permute(0, 2, 3, 1).index_select(0, plan[0]).permute(0, 3, 1, 2)
            return tensor.index_select(0, plan[0])

        return map_tensors(self.inputs, gather), map_tensors(self.targets, gather)


class DeviceLoader(TensorLoader):
    """Batches of normalised images, float32 [B, C, H, W], and labels, int64 [B].

    Augmentation is a crop with padding 4 and a horizontal flip with probability 1/2 for each sample.

    Args:
        mean: The mean of each channel, for pixels in 0..1.
        std: The standard deviation of each channel, for pixels in 0..1.
        augment: Whether to crop and flip.
        **options: Further attributes of `ShardedLoader`.
    """

    def __init__(
        self,
        data: ImageSplit,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(data, **options)
        self.augment = augment
        self.scale, self.shift = make_normalization(mean, std, self.device)

    def draw(self, epoch: int) -> Tensor:
        """Draw the plan of an epoch, int64 [4, samples] on the CPU."""
        return draw_plan(self.sample_count, self.seed, epoch, self.shuffle)

    def batch(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Make a batch from its plan, int64 [4, B] on the device; may be captured in a CUDA graph."""
        images: Any
        images, labels = super().batch(plan)
        if self.augment:
            images = flip_batch(crop_batch(images, plan[1], plan[2], PADDING), plan[3])
        return normalize(images, self.scale, self.shift, self.channels_last), labels  # type: ignore[return-value]
