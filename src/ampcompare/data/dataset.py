"""The two splits of a data set, in the forms that there are: images as bytes, tensors in memory, a map-style
data set, somebody's loader.

`len` of a split counts what `counts` says. `sample` is a batch of its beginning, the same in every run, from
which all that is random in it is told apart. `take` gives the split of some indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, default_collate

from ampcompare.data.batch import (
    Batch,
    count_samples,
    describe_structure,
    digest,
    hash_batch,
    map_tensors,
    split_pair,
    to_batch,
)
from ampcompare.data.seeding import SeparateRandomState, derive_seed, read_batches, seed_all
from ampcompare.errors import describe_type
from ampcompare.plugins import InvalidPluginOutput

MAX_CLASSES = 100_000  # ImageNet's largest list has 21,843
FINGERPRINT_IMAGES = 1_000  # images that the fingerprint of a split reads: of CIFAR-10's it takes 10 ms
FINGERPRINT_SAMPLES = 32  # samples of a data set that its fingerprint reads


class SampleRequest(NamedTuple):
    """Samples of an epoch: `indices` into the split, the first at `first`, the others `step` further each."""

    seed: int
    epoch: int
    first: int
    step: int
    indices: list[int]


class _SplitBase:
    """Named by its classes, its length and its `content`."""

    unit = "samples"

    def __len__(self) -> int:
        raise NotImplementedError

    def read_first_batch(self) -> Batch:
        """The beginning, made anew. Raises whatever somebody's code raises."""
        raise NotImplementedError

    @cached_property
    def sample(self) -> Batch:
        return self.read_first_batch()

    @cached_property
    def content(self) -> str:
        """Of what is drawn by generators that nobody can seed the kinds alone: one name in every process."""
        content = hash_batch(self.sample)
        return content if content == hash_batch(self.read_first_batch()) else describe_structure(self.sample)

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        return digest(repr((classes, len(self), self.content)))


@dataclass(frozen=True)
class TensorSet(_SplitBase):
    """Inputs and targets of a whole split, [N, ...] each, on the host."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return count_samples(self.inputs)

    def read_first_batch(self) -> Batch:
        return self.inputs, self.targets

    @cached_property
    def content(self) -> str:
        return hash_batch(self.sample)

    def select(self, indices: np.ndarray | list[int]) -> TensorSet:
        index = torch.as_tensor(indices)
        return type(self)(*(map_tensors(part, lambda tensor: tensor[index]) for part in self.sample))


@dataclass(frozen=True)
class ImageSet(TensorSet):
    """Images, uint8 [N, 3, H, W], and labels, int64 [N], indices into the data set's classes."""

    unit = "images"

    @property
    def images(self) -> Tensor:
        return self.inputs

    @property
    def labels(self) -> Tensor:
        return self.targets

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split: its classes, every label in order, and images evenly spaced over it."""
        looked_at = self.images[:: -(-len(self) // FINGERPRINT_IMAGES)]
        return digest(repr((classes, tuple(self.images.shape))), self.labels, looked_at)


@dataclass(frozen=True)
class SampleSet(_SplitBase):
    """A map-style data set: `data[i]` is one sample, `(inputs, targets)`, made anew each time."""

    data: Any
    file: Path  # of the function that it came from

    def __len__(self) -> int:
        return len(self.data)

    def read_first_batch(self) -> Batch:
        return self[SampleRequest(0, 0, 0, 1, list(range(min(FINGERPRINT_SAMPLES, len(self)))))]

    def select(self, indices: np.ndarray) -> SampleSet:
        return SampleSet(Subset(self.data, indices.tolist()), self.file)

    def __getitem__(self, places: SampleRequest) -> Batch:
        """The samples, each made with the generators seeded by its place: the same ones in any process.

        Raises what the data set raises, InvalidPluginOutput for what is no sample.
        """
        samples = []
        with SeparateRandomState():
            for number, index in enumerate(places.indices):
                seed_all(derive_seed(places.seed, places.epoch, places.first + number * places.step))
                try:
                    samples.append(split_pair(self.data[index]))
                except SystemExit as problem:  # a worker would end in silence
                    error = RuntimeError(f"SystemExit: {problem}")
                    raise error.with_traceback(problem.__traceback__) from None
        try:
            found = default_collate(samples)
        except (RuntimeError, TypeError, KeyError, ValueError) as problem:
            todo = "have the function return a DataLoader with a collate_fn for them"
            raise InvalidPluginOutput(f"its samples do not make one tensor ({problem}); {todo}") from None
        return to_batch(found)


@dataclass(frozen=True)
class BatchSet(_SplitBase):
    """Somebody's loader, which gives whole batches in an order of its own.

    `samples` in an epoch, where the loader tells; `batch_size`, where it has one.
    """

    loader: Any
    name: str
    file: Path
    samples: int | None
    batch_size: int | None
    unit = "batches"

    def __len__(self) -> int:
        return len(self.loader)

    def read_first_batch(self) -> Batch:
        first = next(read_batches(self.loader, self.name, self.file, 0, seed=0), None)
        if first is None:
            raise InvalidPluginOutput(
                f"{describe_type(self.loader)} that gave no batch; it has to begin anew each time"
            )
        return first

    @cached_property
    def content(self) -> str:
        return f"{self.samples} {super().content}"


Split: TypeAlias = TensorSet | SampleSet | BatchSet


@dataclass(frozen=True)
class Dataset:
    """Training and test split; `fingerprint` names their content, whatever file or folder it came from.

    `train_fingerprint` names training data that are left out of it, as others with each seed.

    `classes` are empty where the data are no classification with a class a sample. `recorded` is what a
    record's environment says of data that are not built in.
    """

    train: Any  # a `Split`; of a built-in source an ImageSet
    test: Any
    classes: tuple[str, ...]
    source: str = ""
    fingerprint: str = ""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    train_fingerprint: str = ""

    @classmethod
    def from_images(
        cls, train: tuple[Any, Any], test: tuple[Any, Any], classes: tuple[str, ...] | None = None
    ) -> Dataset:
        """What a source of images gives: of each split the images, uint8 [N, 3, H, W] of one size, and the
        labels, int64 [N]; classes without names go by their numbers. Raises ValueError for labels or sizes
        that do not fit.
        """
        splits = [ImageSet(*map(torch.as_tensor, pair)) for pair in (train, test)]
        shapes = [tuple(split.images.shape) for split in splits]
        if shapes[0][1:] != shapes[1][1:]:
            raise ValueError("training and test images differ in size")
        labels = torch.cat([split.labels for split in splits])
        most = MAX_CLASSES if classes is None else len(classes)
        if labels.min() < 0 or labels.max() >= most:
            raise ValueError(f"labels from {labels.min()} to {labels.max()}: expected 0 to {most - 1}")
        classes = tuple(map(str, range(int(labels.max()) + 1))) if classes is None else classes
        parts = (tensor for split in splits for tensor in (split.images, split.labels))
        return cls(splits[0], splits[1], classes, fingerprint=digest(repr((classes, *shapes)), *parts))
