"""From a data source to its training and test split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ampcompare import plugins
from ampcompare.data import given
from ampcompare.data.arrays import Arrays
from ampcompare.data.pairs import Unfit
from ampcompare.data.sources import source_of
from ampcompare.data.splits import BatchSet, ImageSet, SampleSet, TensorSet
from ampcompare.errors import UserError

__all__ = ["Dataset", "ImageSet", "build_dataset"]

SUBSET_SEED = 2_023


@dataclass(frozen=True)
class Dataset:
    """Training and test split; `fingerprint` names their content, whatever file or folder it came from.

    `train_fingerprint` names training data that are left out of it, as others with each seed.

    `classes` are empty where the data are no classification with a class a sample. `recorded` is what a
    record's environment says of data that are not built in.
    """

    train: Any  # of a kind of `splits.Split`; of a built-in source images
    test: Any
    classes: tuple[str, ...]
    source: str
    fingerprint: str
    recorded: Mapping[str, Any] = field(default_factory=dict)
    train_fingerprint: str = ""

    @property
    def repeats(self) -> bool:
        """Whether the same batches come again in another process, as far as was seen before training."""
        return all(getattr(split, "repeats", True) for split in (self.train, self.test))


def build_dataset(
    source: str,
    root: str | None = None,
    train_limit: int | None = None,
    test_limit: int | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    batch_sizes: tuple[int, int] = (128, 512),
    seed: int = 223,
) -> Dataset:
    """Load the data of one of `SOURCES`, or of a function from elsewhere.

    A limit takes a class-balanced subset (a random one where there are no classes): the same one each time,
    and part of every larger one. `kwargs` are what the source takes (`Source.arguments`, or a function's
    own); `batch_sizes` (of training, of evaluation) and `seed` are for a function from elsewhere. Raises
    UserError for whatever is wrong with the arguments or the data.
    """
    limits = {"train": train_limit, "test": test_limit}
    for split, limit in limits.items():
        if limit is not None and limit < 1:
            raise UserError(f"data.{split}_limit={limit}: must be at least 1, or null for all images")
    declared = source_of(source)  # raises for a name that is none
    kwargs = kwargs or {}
    if declared.load is None:
        return _given(source, limits, given.Builder(source, kwargs, batch_sizes, seed))
    declared.check(kwargs)
    return _of_arrays(declared.load(root, train_limit, test_limit, **kwargs), limits, source)


def _given(source: str, limits: Mapping[str, int | None], builder: given.Builder) -> Dataset:
    found = given.take(builder)
    if found.images is not None:
        data = _of_arrays(found.images, limits, source)
        return replace(data, recorded={"data_fingerprint": data.fingerprint})
    parts = {"train": found.train, "test": found.test}
    train, test = (_cut(name, split, limits[name], source, found.classes) for name, split in parts.items())
    # The training data of a function that takes the seed may be others with each: the test data tell them.
    of_train = train.fingerprint(found.classes)
    names = [f"{len(train)} {train.counts}", test.fingerprint(found.classes)]
    if not (is_seeded := builder.names("seed")):
        names.append(of_train)
    fingerprint = f"{hashlib.sha256(repr(names).encode()).hexdigest()[:16]}-{len(train)}-{len(test)}"
    recorded = {"data_fingerprint": fingerprint}
    if not (isinstance(train, TensorSet) and isinstance(test, TensorSet)):
        # Of what is not in memory the fingerprint knows the beginning alone.
        recorded["data_source"] = builder.found.source
    left_out = of_train if is_seeded else ""
    return Dataset(train, test, found.classes, source, fingerprint, recorded, left_out)


def _of_arrays(arrays: Arrays, limits: Mapping[str, int | None], source: str) -> Dataset:
    splits = {
        "train": (arrays.train_images, arrays.train_labels),
        "test": (arrays.test_images, arrays.test_labels),
    }
    made = []
    for name, (images, labels) in splits.items():
        chosen = _chosen(name, limits[name], labels, source, "images")
        if chosen is not None:
            images, labels = images[chosen], labels[chosen]
        made.append(ImageSet(torch.from_numpy(images), torch.from_numpy(labels)))
    train, test = made
    fingerprint = f"{arrays.fingerprint[:16]}-{len(train)}-{len(test)}"
    return Dataset(train, test, arrays.classes, source, fingerprint)


def _cut(
    name: str, split: given.Form, limit: int | None, source: str, classes: tuple[str, ...]
) -> given.Form:
    """The split, or as much of it as the limit says. Raises UserError."""
    if limit is None:
        return split
    if isinstance(split, BatchSet):
        todo = (
            "limit it in the function, or give max_steps" if name == "train" else "limit it in the function"
        )
        raise UserError(f"data.{name}_limit={limit}: {source} returned a loader of its own; {todo}")
    labels = given.labels_of(split) if classes else None
    if labels is None:
        labels = np.zeros(len(split), np.int64)
    chosen = _chosen(name, limit, labels, source, split.counts)
    if chosen is None:
        return split
    if isinstance(split, TensorSet):
        return split.take(chosen)
    if split.chosen is not None:
        chosen = split.chosen[chosen]
    try:
        return given.looked_at(SampleSet(split.data, split.file, chosen))
    except Unfit as problem:
        raise plugins.DATA.refusal(source, f"train={name == 'train'}: {problem}") from None


def _chosen(
    split: str, limit: int | None, labels: np.ndarray, source: str, counted: str
) -> np.ndarray | None:
    """Indices of a subset of `limit`, None for all. Raises UserError."""
    count = len(labels)
    if limit is not None and limit > count:
        todo = f"give at most {count}, or null for all"
        raise UserError(f"data.{split}_limit={limit}: {source} has {count} {split} {counted}; {todo}")
    return balanced_subset(labels, limit) if limit is not None and limit < count else None


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
