"""From a data source to the training and test images as uint8 tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.sources import source_of
from ampcompare.errors import UserError

SUBSET_SEED = 2_023
LOOKED_AT = 1_000  # images that the fingerprint of a split reads: of CIFAR-10's it takes 10 ms


@dataclass(frozen=True)
class ImageSet:
    """images: uint8 [N, 3, H, W]; labels: int64 [N], indices into the data set's classes."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """Names the split: its classes, every label in order, and images evenly spaced over it."""
        digest = hashlib.sha256(repr((classes, tuple(self.images.shape))).encode())
        digest.update(self.labels.numpy().tobytes())
        digest.update(self.images[:: -(-len(self) // LOOKED_AT)].contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Dataset:
    """Training and test split; `fingerprint` names their content, whatever file or folder it came from."""

    train: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    source: str
    fingerprint: str


def build_dataset(
    source: str, root: str | None = None, train_limit: int | None = None, test_limit: int | None = None
) -> Dataset:
    """Load the images of one of `SOURCES`.

    A limit takes a class-balanced subset: the same one each time, and part of every larger one.
    Raises UserError for whatever is wrong with the arguments or the data.
    """
    for key, limit in (("train_limit", train_limit), ("test_limit", test_limit)):
        if limit is not None and limit < 1:
            raise UserError(f"data.{key}={limit}: must be at least 1, or null for all images")
    arrays = source_of(source).load(root, train_limit, test_limit)
    train = _take("train", arrays.train_images, arrays.train_labels, train_limit, source)
    test = _take("test", arrays.test_images, arrays.test_labels, test_limit, source)
    fingerprint = f"{arrays.fingerprint[:16]}-{len(train)}-{len(test)}"
    return Dataset(train, test, arrays.classes, source, fingerprint)


def balanced_subset(labels: np.ndarray, limit: int, seed: int = SUBSET_SEED) -> np.ndarray:
    """Indices of `limit` samples, drawn at random with a fixed seed, classes as even as they allow.

    labels: int64 [N]. Returns int64 [limit], class after class in turn, so that a smaller limit's subset
    is the beginning of a larger one's.
    """
    # PCG64's raw stream is guaranteed to stay the same between NumPy versions; its permutations are not.
    keys = np.random.PCG64(seed).random_raw(len(labels))
    by_class = np.lexsort((keys, labels))
    counts = np.bincount(labels)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(len(labels)) - np.repeat(firsts, counts)
    return by_class[np.lexsort((labels[by_class], rank))[:limit]]


def _take(split: str, images: np.ndarray, labels: np.ndarray, limit: int | None, source: str) -> ImageSet:
    count = len(labels)
    if limit is not None and limit > count:
        todo = f"give at most {count}, or null for all"
        raise UserError(f"data.{split}_limit={limit}: {source} has {count} {split} images; {todo}")
    if limit is not None and limit < count:
        chosen = balanced_subset(labels, limit)
        images, labels = images[chosen], labels[chosen]
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels))
