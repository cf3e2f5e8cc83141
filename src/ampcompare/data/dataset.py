"""The training and test split of a data set.

A split is one of: images as bytes, tensors in memory, a map-style data set, or a loader of the user's. Its
length is in `unit`. Its `sample` is the first batch, the same in every run.
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
FINGERPRINT_IMAGES = 1_000  # images that a fingerprint reads (10 ms for CIFAR-10)
FINGERPRINT_SAMPLES = 32  # samples of a map-style data set that a fingerprint reads


class SampleRequest(NamedTuple):
    """The samples of one batch, requested from a `SampleSplit`.

    Attributes:
        seed: The seed of the run.
        epoch: From 0.
        first: The position of the first sample in the epoch.
        step: The distance from one sample to the next in the epoch: the number of processes.
        indices: The index of each sample in the split.
    """

    seed: int
    epoch: int
    first: int
    step: int
    indices: list[int]


class _BaseSplit:
    """The base class of the splits.

    Attributes:
        unit: The unit of its length.
    """

    unit = "samples"

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def size(self) -> int | None:
        """The number of samples; None if the user's loader does not tell it."""
        return len(self)

    def read_first_batch(self) -> Batch:
        """Return the first batch, made again in each call. May raise any exception of a plug-in."""
        raise NotImplementedError

    @cached_property
    def sample(self) -> Batch:
        """The first batch."""
        return self.read_first_batch()

    @cached_property
    def content(self) -> str:
        """A hash of the first batch, or a description of its structure if it differs in each call.

        It differs if random choices come from a generator that cannot be seeded.
        """
        content = hash_batch(self.sample)
        is_repeatable = content == hash_batch(self.read_first_batch())
        return content if is_repeatable else describe_structure(self.sample)

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Return a hash of classes, length and content."""
        return digest(repr((classes, len(self), self.content)))


@dataclass(frozen=True)
class TensorSplit(_BaseSplit):
    """A split in memory.

    Attributes:
        inputs: A tensor [N, ...] or a dict of such tensors, on the host.
        targets: A tensor [N, ...] or a dict of such tensors, on the host.
    """

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return count_samples(self.inputs)

    def read_first_batch(self) -> Batch:
        """Return the whole split."""
        return self.inputs, self.targets

    @cached_property
    def content(self) -> str:
        """A hash of the whole split."""
        return hash_batch(self.sample)

    def select(self, indices: np.ndarray | list[int]) -> TensorSplit:
        """Return the split of some samples."""
        index = torch.as_tensor(indices)
        return type(self)(*(map_tensors(part, lambda tensor: tensor[index]) for part in self.sample))


@dataclass(frozen=True)
class ImageSplit(TensorSplit):
    """A split of images in memory.

    Inputs are images, uint8 [N, 3, H, W]. Targets are labels, int64 [N], indices of the data set's classes.
    """

    unit = "images"

    @property
    def images(self) -> Tensor:
        """The images, uint8 [N, 3, H, W]."""
        return self.inputs

    @property
    def labels(self) -> Tensor:
        """The labels, int64 [N]."""
        return self.targets

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Return a hash of the classes, all labels, and evenly spaced images."""
        some_images = self.images[:: -(-len(self) // FINGERPRINT_IMAGES)]
        return digest(repr((classes, tuple(self.images.shape))), self.labels, some_images)


@dataclass(frozen=True)
class SampleSplit(_BaseSplit):
    """A map-style data set, from which `data[i]` makes one sample, `(inputs, targets)`.

    Attributes:
        file: The file of the function that returned it.
    """

    data: Any
    file: Path

    def __len__(self) -> int:
        return len(self.data)

    def read_first_batch(self) -> Batch:
        """Return the first samples as a batch."""
        return self[SampleRequest(0, 0, 0, 1, list(range(min(FINGERPRINT_SAMPLES, len(self)))))]

    def select(self, indices: np.ndarray) -> SampleSplit:
        """Return the split of some samples."""
        return SampleSplit(Subset(self.data, indices.tolist()), self.file)

    def __getitem__(self, request: SampleRequest) -> Batch:
        """Return the requested samples as a batch.

        Before each sample the generators are seeded by its position, so it is the same in any process.

        Raises:
            InvalidPluginOutput: A sample is no pair, or samples cannot be combined into one tensor.
        """
        samples = []
        with SeparateRandomState():
            for number, index in enumerate(request.indices):
                seed_all(derive_seed(request.seed, request.epoch, request.first + number * request.step))
                try:
                    samples.append(split_pair(self.data[index]))
                except SystemExit as problem:  # it would end a worker without a message
                    error = RuntimeError(f"SystemExit: {problem}")
                    raise error.with_traceback(problem.__traceback__) from None
        try:
            batch = default_collate(samples)
        except (RuntimeError, TypeError, KeyError, ValueError) as problem:
            raise InvalidPluginOutput(
                f"its samples cannot be stacked into one tensor ({problem}); "
                "return samples of equal shape, or a DataLoader with a collate_fn"
            ) from None
        return to_batch(batch)


@dataclass(frozen=True)
class LoaderSplit(_BaseSplit):
    """A loader of the user's, which returns whole batches in its own order.

    Attributes:
        name: The name of the plug-in, the value of `data.source`.
        file: The file of the plug-in.
        samples: The number of samples in an epoch, None if the loader does not tell it.
        batch_size: The batch size, None if the loader does not tell it.
    """

    loader: Any
    name: str
    file: Path
    samples: int | None
    batch_size: int | None
    unit = "batches"

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def size(self) -> int | None:
        """The number of samples in an epoch, None if the loader does not tell it."""
        return self.samples

    def read_first_batch(self) -> Batch:
        """Return the loader's first batch.

        Raises:
            InvalidPluginOutput: The loader has no batch.
        """
        first = next(read_batches(self.loader, self.name, self.file, 0, seed=0), None)
        if first is None:
            raise InvalidPluginOutput(
                f"{describe_type(self.loader)} that yielded no batch; "
                "each iteration must start from the first batch"
            )
        return first

    @cached_property
    def content(self) -> str:
        """The number of samples, and a hash or description of the first batch."""
        return f"{self.samples} {super().content}"


Split: TypeAlias = TensorSplit | SampleSplit | LoaderSplit


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Attributes:
        train: The training split, a `Split`; an ImageSplit for a built-in source.
        classes: The names of the classes, empty if a sample does not have one class.
        source: The name of the source.
        fingerprint: A hash of the content, which does not depend on file or folder.
        recorded: Entries of the record's environment about the code that made the data.
        train_fingerprint: A hash of training data that may differ with the seed and are not in `fingerprint`.
        takes_seed: Whether a user's function made the data and took the seed.
    """

    train: Any
    test: Any
    classes: tuple[str, ...]
    source: str = ""
    fingerprint: str = ""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    train_fingerprint: str = ""
    takes_seed: bool = False

    @classmethod
    def from_images(
        cls, train: tuple[Any, Any], test: tuple[Any, Any], classes: tuple[str, ...] | None = None
    ) -> Dataset:
        """Create a data set of images.

        Args:
            train: Images, uint8 [N, 3, H, W], and labels, int64 [N].
            test: The same for the test split, with images of the same size.
            classes: The names of the classes; by default their numbers.

        Raises:
            ValueError: Image sizes differ, or a label is out of range.
        """
        splits = [ImageSplit(*map(torch.as_tensor, pair)) for pair in (train, test)]
        shapes = [tuple(split.images.shape) for split in splits]
        if shapes[0][1:] != shapes[1][1:]:
            raise ValueError("training and test images differ in size")
        labels = torch.cat([split.labels for split in splits])
        count = MAX_CLASSES if classes is None else len(classes)
        if labels.min() < 0 or labels.max() >= count:
            raise ValueError(f"labels from {labels.min()} to {labels.max()}: expected 0 to {count - 1}")
        if classes is None:
            classes = tuple(str(number) for number in range(int(labels.max()) + 1))
        parts = (tensor for split in splits for tensor in (split.images, split.labels))
        return cls(splits[0], splits[1], classes, fingerprint=digest(repr((classes, *shapes)), *parts))
