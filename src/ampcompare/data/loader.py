"""Batches drawn on the device: the whole data set lives there, an epoch is a plan of indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.augment import batch_crop, batch_flip, normalization, normalize
from ampcompare.data.batch import Batch, each, in_layout, is_image
from ampcompare.data.splits import ImageSet, TensorSet

PADDING = 4


def draw_plan(count: int, seed: int, epoch: int, shuffle: bool = True, padding: int = PADDING) -> Tensor:
    """All random choices of one epoch, int64 [4, count] on the CPU: image, top, left, flip of each sample.

    A function of its arguments alone: the same on every device and after every resume, and the global
    random state is neither read nor changed. top and left lie in 0..2*padding, flip is 0 or 1.
    """
    generator = _generator(seed, epoch)
    order = torch.randperm(count, generator=generator)
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
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


class Shares:
    """Batches of `batch_size`, the last, short one kept, so that each sample comes exactly once.

    With several processes each takes its share of the same batches: every `processes`-th sample from `rank`
    on. Raises ValueError for a batch size below 1.
    """

    def __init__(
        self,
        sample_count: int,
        *,
        batch_size: int,
        device: torch.device | str,
        shuffle: bool = False,
        seed: int = 0,
        channels_last: bool = False,
        pinned: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.sample_count = sample_count  # in an epoch, of all processes
        self.batch_size, self.rank, self.processes = batch_size, rank, processes
        self.device, self.pinned, self.channels_last = torch.device(device), pinned, channels_last
        self.shuffle, self.seed = shuffle, seed

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.sample_count // self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on: the same as skipping `start`."""
        raise NotImplementedError

    def shares(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """The same with the samples of each batch in all processes together."""
        return zip(self.epoch(epoch, start), self.whole_sizes()[start:], strict=True)

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
        firsts, size, count = self._firsts()[start:], self.batch_size, self.sample_count
        return [slice(first + self.rank, min(first + size, count), self.processes) for first in firsts]


class Planned(Shares):
    """Batches made on the device, each of some columns of an epoch's plan.

    `pinned`: an epoch's plan goes to the device by pinned memory, behind what is queued there. Nothing in an
    epoch waits for the device.
    """

    def plans(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield what `batch` makes the batches of an epoch of: int64 [rows, B], on the device."""
        slices, plan = self.slices(start), self.draw(epoch)
        # From pinned memory the copy is queued and the host goes on.
        plan = plan.pin_memory().to(self.device, non_blocking=True) if self.pinned else plan.to(self.device)
        yield from (plan[:, batch] for batch in slices)

    def draw(self, epoch: int) -> Tensor:
        """All random choices of an epoch, int64 [rows, samples] on the CPU; the first row is the order."""
        return draw_plan(self.sample_count, self.seed, epoch, self.shuffle)


class TensorLoader(Planned):
    """Batches of tensors that lie on the device whole, gathered there; the tensors of a batch are its own.

    An epoch has the order that images of the same seed have.
    """

    def __init__(self, data: TensorSet, **how: Any) -> None:
        """`how`: as for `Planned`."""
        super().__init__(len(data), **how)
        # sync: once, before training; pageable memory to the device. On a CPU they stay where they are.
        self.inputs, self.targets = (each(field, self._placed) for field in (data.inputs, data.targets))

    def _placed(self, tensor: Tensor) -> Tensor:
        return in_layout(tensor.to(self.device), self.channels_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on: the same as skipping `start`."""
        for plan in self.plans(epoch, start):
            if plan.shape[1]:  # fewer samples than processes: nothing for some
                yield self.batch(plan)

    def batch(self, plan: Tensor) -> Batch:
        """The batch of some columns of a plan, int64 [1, B] on the device; safe inside a captured graph."""
        index = plan[0]

        def gathered(tensor: Tensor) -> Tensor:
            if self.channels_last and is_image(tensor):
                # Gathered as it lies; index_select would turn it back.
                return tensor.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
            return tensor.index_select(0, index)

        return each(self.inputs, gathered), each(self.targets, gathered)

    def draw(self, epoch: int) -> Tensor:
        return draw_order(self.sample_count, self.seed, epoch, self.shuffle)[None]


class DeviceLoader(Planned):
    """Batches of normalised images for training (`augment`, `shuffle`) or evaluation (neither).

    Augmentation is a crop with padding 4 and a horizontal flip with probability one half, per sample.
    Raises ValueError for a batch size below 1 or tensors that are no uint8 RGB images with int64 labels.
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
        super().__init__(len(data), **how)
        if data.images.dtype != torch.uint8 or data.images.ndim != 4 or data.labels.dtype != torch.int64:
            raise ValueError("expected uint8 images [N, C, H, W] and int64 labels [N]")
        self.augment = augment
        # sync: once, before training; pageable memory to the device.
        self.images = data.images.to(self.device)
        self.labels = data.labels.to(self.device)
        self.scale, self.shift = normalization(mean, std, self.device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, float32 [B, C, H, W], and labels, int64 [B], from batch `start` on.

        Starting at batch k gives the same batches as skipping k. Nothing in here waits for the device.
        """
        if self.augment or self.shuffle:
            for plan in self.plans(epoch, start):
                yield self.batch(plan)
            return
        for batch in self.slices(start):
            images, labels = self.images[batch], self.labels[batch]
            if len(labels):  # fewer images than processes: nothing for some
                yield normalize(images, self.scale, self.shift, self.channels_last), labels

    def batch(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of some columns of a plan, int64 [4, B] on the device; safe inside a captured graph."""
        index, top, left, flip = plan.unbind(0)
        labels = self.labels.index_select(0, index)
        images = self.images.index_select(0, index)
        if self.augment:
            images = batch_flip(batch_crop(images, top, left, PADDING), flip)
        return normalize(images, self.scale, self.shift, self.channels_last), labels
