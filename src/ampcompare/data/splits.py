"""The two splits of a data set, in the forms that there are: images as bytes, tensors in memory, a map-style
data set, somebody's loader.

`len` of a split counts what `counts` says. `sample` is a batch of its beginning, the same in every run, from
which all that is random in it is told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from ampcompare.data.batch import Batch, count_samples, each, tensors
from ampcompare.data.pairs import EXPECTED, Unfit, as_batch, digest, kinds_of
from ampcompare.data.seeded import apart, mix, seed_all
from ampcompare.errors import kind_of

LOOKED_AT = 1_000  # images that the fingerprint of a split reads: of CIFAR-10's it takes 10 ms
FIRST = 32  # samples of a data set that its fingerprint reads


class Places(NamedTuple):
    """Samples of an epoch: `indices` into the split, the first at `first`, the others `step` further each."""

    seed: int
    epoch: int
    first: int
    step: int
    indices: list[int]


@dataclass(frozen=True)
class ImageSet:
    """images: uint8 [N, 3, H, W]; labels: int64 [N], indices into the data set's classes."""

    images: Tensor
    labels: Tensor
    counts = "images"

    def __len__(self) -> int:
        return self.labels.shape[0]

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split: its classes, every label in order, and images evenly spaced over it."""
        found = hashlib.sha256(repr((classes, tuple(self.images.shape))).encode())
        found.update(self.labels.numpy().tobytes())
        found.update(self.images[:: -(-len(self) // LOOKED_AT)].contiguous().numpy().tobytes())
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class TensorSet:
    """Inputs and targets of a whole split, [N, ...] each, on the host."""

    inputs: Any
    targets: Any
    counts = "samples"

    def __len__(self) -> int:
        return count_samples(self.inputs)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for part in self.sample for t in tensors(part))

    @property
    def sample(self) -> Batch:
        return self.inputs, self.targets

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split by its content."""
        return _name(classes, len(self), digest(self.sample))

    def take(self, indices: Sequence[int] | np.ndarray) -> TensorSet:
        index = torch.as_tensor(indices)
        return TensorSet(*(each(part, lambda tensor: tensor[index]) for part in self.sample))

    def batch(self, places: Places) -> Batch:
        return self.take(places.indices).sample


@dataclass(frozen=True)
class SampleSet:
    """A map-style data set: `data[i]` is one sample, `(inputs, targets)`, made anew each time.

    `chosen`: the indices of a subset. `sample` and `repeats` (whether two looks at the beginning were equal)
    are found by `looked_at`.
    """

    data: Any
    file: Path  # of the function that it came from
    chosen: np.ndarray | None = None
    sample: Batch = ()  # type: ignore[assignment]
    repeats: bool = True
    counts = "samples"

    def __len__(self) -> int:
        return len(self.data) if self.chosen is None else len(self.chosen)

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split by its length and its first samples."""
        return _name(classes, len(self), digest(self.sample) if self.repeats else kinds_of(self.sample))

    def batch(self, places: Places) -> Batch:
        """The samples, each made with the generators seeded by its place: the same ones in any process.

        Raises what the data set raises, Unfit for what is no sample.
        """
        if get_worker_info() is not None:  # a process of its own: nobody else draws there
            return self._batch(places)
        with apart():
            return self._batch(places)

    def _batch(self, places: Places) -> Batch:
        seed, epoch, first, step, indices = places
        if self.chosen is not None:
            indices = self.chosen[indices].tolist()
        samples = []
        if callable(many := getattr(self.data, "__getitems__", None)):
            seed_all(mix(seed, epoch, first))
            samples = [_checked(sample) for sample in many(indices)]
        else:
            for number, index in enumerate(indices):
                seed_all(mix(seed, epoch, first + number * step))
                samples.append(_checked(self.data[index]))
        try:
            found = default_collate(samples)
        except (RuntimeError, TypeError, KeyError, ValueError) as problem:
            todo = "have the function return a DataLoader with a collate_fn for them"
            raise Unfit(f"its samples do not make one tensor ({problem}); {todo}") from None
        return as_batch(found, "a batch of its samples")


@dataclass(frozen=True)
class BatchSet:
    """Somebody's loader, which gives whole batches in an order of its own. `len` counts batches.

    `samples` in an epoch, where the loader tells; `batch_size`, where it has one.
    """

    loader: Any
    file: Path
    batches: int
    samples: int | None
    batch_size: int | None
    sample: Batch
    repeats: bool
    counts = "batches"

    def __len__(self) -> int:
        return self.batches

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split by its length and its first batch."""
        content = digest(self.sample) if self.repeats else kinds_of(self.sample)
        return _name(classes, len(self), f"{self.samples} {content}")


Split: TypeAlias = ImageSet | TensorSet | SampleSet | BatchSet


def _checked(sample: Any) -> Any:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        raise Unfit(f"a sample is {kind_of(sample)}{size}; {EXPECTED}")
    return sample


def _name(classes: tuple[str, ...], count: int, content: str) -> str:
    return hashlib.sha256(repr((classes, count, content)).encode()).hexdigest()[:16]
