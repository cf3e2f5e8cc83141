"""Batches drawn on the device: the whole data set lives there as bytes, an epoch is a plan of indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.augment import batch_crop, batch_flip, normalization, normalize
from ampcompare.data.dataset import ImageSet

PADDING = 4


def draw_plan(count: int, seed: int, epoch: int, shuffle: bool = True, padding: int = PADDING) -> Tensor:
    """All random choices of one epoch, int64 [4, count] on the CPU: image, top, left, flip of each sample.

    A function of its arguments alone: the same on every device and after every resume, and the global
    random state is neither read nor changed. top and left lie in 0..2*padding, flip is 0 or 1.
    """
    mixed = np.random.SeedSequence([seed % 2**64, epoch]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(mixed) % 2**63)
    order = torch.randperm(count, generator=generator)
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    flip = torch.randint(0, 2, (1, count), generator=generator)
    if not shuffle:
        order = torch.arange(count)
    return torch.cat([order[None], offsets, flip])


class DeviceLoader:
    """Batches of normalised images for training (`augment`, `shuffle`) or evaluation (neither).

    Augmentation is a crop with padding 4 and a horizontal flip with probability one half, per sample.
    The last, short batch of an epoch is kept, so that each image comes exactly once. With several processes
    each loader gives its share of the same batches: every `processes`-th image from `rank` on. `pinned`: an
    epoch's plan goes to the device by pinned memory, behind what is queued there.

    Raises ValueError for a batch size below 1 or tensors that are no uint8 RGB images with int64 labels.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        batch_size: int,
        device: torch.device | str,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        channels_last: bool = False,
        pinned: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        if data.images.dtype != torch.uint8 or data.images.ndim != 4 or data.labels.dtype != torch.int64:
            raise ValueError("expected uint8 images [N, C, H, W] and int64 labels [N]")
        self.device, self.pinned, self.channels_last = torch.device(device), pinned, channels_last
        self.augment, self.shuffle, self.seed = augment, shuffle, seed
        self.batch_size, self.rank, self.processes = batch_size, rank, processes
        self.in_one_pass: Callable[..., Tensor] | None = None  # what makes images as `batch_in_one_pass` does
        self.dtype = torch.float32  # of the images that it makes
        # sync: once, before training; pageable memory to the device.
        self.images = data.images.to(self.device)
        self.labels = data.labels.to(self.device)
        self.scale, self.shift = normalization(mean, std, self.device)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.sample_count // self.batch_size)

    @property
    def sample_count(self) -> int:
        """Images in an epoch."""
        return self.labels.shape[0]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, float32 (or `dtype`) [B, C, H, W], and labels, int64 [B], from batch `start` on.

        Starting at batch k gives the same batches as skipping k. Nothing in here waits for the device.
        """
        if self.augment or self.shuffle:
            for plan in self.plans(epoch, start):
                yield self.batch(plan)
            return
        for batch in self._slices(start):
            images, labels = self.images[batch], self.labels[batch]
            if len(labels):  # fewer images than processes: nothing for some
                yield normalize(images, self.scale, self.shift, self.channels_last), labels

    def plans(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Yield what `batch` makes the batches of an epoch of: int64 [4, B], on the device."""
        slices, plan = self._slices(start), self._plan(epoch)
        yield from (plan[:, batch] for batch in slices)

    def positions(self) -> Tensor:
        """Where this loader's samples lie in an epoch of all processes, int64 [own] on the CPU."""
        every = torch.arange(self.sample_count)
        return torch.cat([every[batch] for batch in self._slices(0)])

    def whole_sizes(self) -> list[int]:
        """Images of each batch of an epoch, in all processes together."""
        return [min(self.batch_size, self.sample_count - first) for first in self._firsts()]

    def _firsts(self) -> range:
        return range(0, self.sample_count, self.batch_size)

    def _slices(self, start: int) -> list[slice]:
        """Where each batch lies in an epoch: every `processes`-th image from `rank` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start}: an epoch has {len(self)} batches")
        pairs = list(zip(self._firsts(), self.whole_sizes(), strict=True))[start:]
        return [slice(first + self.rank, first + size, self.processes) for first, size in pairs]

    def batch(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of some columns of a plan, int64 [4, B] on the device; safe inside a captured graph."""
        index, top, left, flip = plan.unbind(0)
        labels = self.labels.index_select(0, index)
        if self.in_one_pass:
            how = {"padding": PADDING, "augment": self.augment, "channels_last": self.channels_last}
            images = self.in_one_pass(self.images, plan, self.scale, self.shift, **how, dtype=self.dtype)
            return images, labels
        images = self.images.index_select(0, index)
        if self.augment:
            images = batch_flip(batch_crop(images, top, left, PADDING), flip)
        return normalize(images, self.scale, self.shift, self.channels_last), labels

    def _plan(self, epoch: int) -> Tensor:
        plan = draw_plan(self.sample_count, self.seed, epoch, self.shuffle)
        # From pinned memory the copy is queued and the host goes on.
        return plan.pin_memory().to(self.device, non_blocking=True) if self.pinned else plan.to(self.device)
