"""Creation of a data set from a data source."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare import plugins
from ampcompare.data import user_data
from ampcompare.data.batch import digest
from ampcompare.data.dataset import Dataset, ImageSplit, LoaderSplit, TensorSplit
from ampcompare.data.seeding import wrap_data_errors
from ampcompare.data.sources import get_source
from ampcompare.errors import UserError

__all__ = ["Dataset", "ImageSplit", "build_dataset", "draw_balanced_subset"]

SUBSET_SEED = 2_023


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
    """Load the data of a built-in source or of a plug-in.

    A limit selects a class-balanced subset, or a random one if the classes are not known. The subset is the
    same each time and part of every larger one.

    Args:
        source: The value of `data.source`.
        root: The folder or archive of a built-in source; None for its default.
        train_limit: The number of training samples, None for all.
        test_limit: The number of test samples, None for all.
        kwargs: The user's arguments for the source, `data.kwargs`.
        batch_sizes: The batch sizes of training and evaluation. Only a plug-in gets them.
        seed: The seed of the run. Only a plug-in gets it.

    Raises:
        UserError: An argument or the data is invalid.
    """
    limits = {"train": train_limit, "test": test_limit}
    declared = get_source(source)
    kwargs = kwargs or {}
    if declared.load is None:
        return _build_user_dataset(source, limits, kwargs, batch_sizes, seed)
    defaults = {"root": root, "train_limit": train_limit, "test_limit": test_limit}
    data = plugins.call(declared.loader, kwargs, key=user_data.KWARGS, name=source, defaults=defaults)
    return _limit_splits(data, limits, source)


def _limit_splits(data: Dataset, limits: Mapping[str, int | None], source: str) -> Dataset:
    train = _limit_split("train", data.train, limits, source)
    test = _limit_split("test", data.test, limits, source)
    fingerprint = f"{data.fingerprint}-{len(train)}-{len(test)}"
    return replace(data, train=train, test=test, source=source, fingerprint=fingerprint)


def _build_user_dataset(
    source: str,
    limits: Mapping[str, int | None],
    kwargs: Mapping[str, Any],
    sizes: tuple[int, int],
    seed: int,
) -> Dataset:
    train: Any
    test: Any
    (train, test), function, is_seeded = user_data.load(source, kwargs, sizes, seed)
    try:
        if user_data.is_image_split(train) and user_data.is_image_split(test):
            images = [(split.inputs, split.targets.long()) for split in (train, test)]
            data = _limit_splits(Dataset.from_images(images[0], images[1]), limits, source)
            return replace(data, takes_seed=is_seeded)
        train = _limit_split("train", train, limits, source)
        test = _limit_split("test", test, limits, source)
        for split in (train, test):
            with wrap_data_errors(source, f"the first samples for train={split is train}", function.file):
                split.content  # noqa: B018 - computes and caches it
        classes = user_data.find_classes(train, test)
    except ValueError as problem:
        raise plugins.DATA.make_error(source, str(problem)) from None
    train_fingerprint = train.fingerprint(classes)
    parts = [f"{len(train)} {train.unit}", test.fingerprint(classes)]
    if not is_seeded:  # training data of a function that takes the seed may differ with the seed
        parts.append(train_fingerprint)
    fingerprint = f"{digest(repr(parts))}-{len(train)}-{len(test)}"
    recorded = {}
    if not (isinstance(train, TensorSplit) and isinstance(test, TensorSplit)):
        # The fingerprint of data that is not in memory covers only its first batch.
        recorded["data_source"] = function.source
    return Dataset(
        train,
        test,
        classes,
        source,
        fingerprint,
        recorded,
        train_fingerprint=train_fingerprint if is_seeded else "",
        takes_seed=is_seeded,
    )


def _limit_split(name: str, split: Any, limits: Mapping[str, int | None], source: str) -> Any:
    """Return the split, or a subset of it if there is a limit.

    Raises:
        UserError: The limit is too large, or the split is a loader, which cannot be limited.
    """
    limit = limits[name]
    if limit is None:
        return split
    if isinstance(split, LoaderSplit):
        max_steps = ", or set max_steps" if name == "train" else ""
        raise UserError(
            f"data.{name}_limit={limit}: {source} returned a DataLoader, which cannot be shortened; "
            f"return fewer samples{max_steps}"
        )
    count = len(split)
    if limit > count:
        raise UserError(
            f"data.{name}_limit={limit}: {source} has {count} {name} {split.unit}; "
            f"set at most {count}, or null for all"
        )
    if limit == count:
        return split
    return split.select(draw_balanced_subset(user_data.get_labels(split), limit))


def draw_balanced_subset(labels: np.ndarray, limit: int) -> np.ndarray:
    """Draw a class-balanced subset with a fixed seed.

    Args:
        labels: int64 [N].

    Returns:
        Indices, int64 [limit]. The classes take turns, so a smaller subset is the beginning of a larger one.
    """
    # PCG64's raw stream is guaranteed to stay the same between NumPy versions; its permutations are not.
    keys = np.random.PCG64(SUBSET_SEED).random_raw(len(labels))
    by_class = np.lexsort((keys, labels))
    counts = np.bincount(labels)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(len(labels)) - np.repeat(firsts, counts)
    return by_class[np.lexsort((labels[by_class], rank))[:limit]]
