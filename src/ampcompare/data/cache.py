"""A cache of decoded images on disk, so that only the first load of a source is slow.

Each source has one uncompressed .npz file, named after the source's hash. A file is written atomically, also
with several writers, and is never unpickled. If the cache cannot be used, a warning says so and the data is
built from its source.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.data.batch import digest
from ampcompare.data.dataset import Dataset
from ampcompare.errors import reason
from ampcompare.runtime.atomic_files import cache_folder, replacing

# Part of every file name. Increase it when the file's layout or the decoding of a source changes.
FORMAT = 3

log = logging.getLogger(__name__)


def get_cache_path(source: str, identity: str) -> Path:
    """Return the cache file of a source, which need not exist.

    Args:
        source: The value of `data.source`.
        identity: Text that changes whenever the content of the source changes.

    Raises:
        OSError: There is no home folder.
    """
    return cache_folder() / f"{source}-{digest(f'{FORMAT} {source} {identity}')}.npz"


def load_or_build(source: str, identity: str, build: Callable[[], Dataset]) -> Dataset:
    """Return the cached images of a source, or build and cache them. Only `build` can raise.

    Args:
        source: The value of `data.source`.
        identity: Text that changes whenever the content of the source changes.
        build: Reads the images from the source. It is called only if the cache has none.
    """
    try:
        path = get_cache_path(source, identity)
        if path.exists():
            return _load(path)
    except Exception as error:  # a damaged file raises any of a dozen exception types
        log.warning("the data cache cannot be used (%s); the data are decoded again", reason(error))
    data = build()
    arrays: dict[str, Any] = {"classes": np.array(data.classes)}
    for name, split in (("train", data.train), ("test", data.test)):
        arrays |= {f"{name}_images": split.images.numpy(), f"{name}_labels": split.labels.numpy()}
    try:
        path = get_cache_path(source, identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        log.warning(
            "the decoded data cannot be cached (%s); "
            "the next run decodes them again, unless AMPCOMPARE_CACHE names a folder with free space",
            reason(error),
        )
    return data


def _load(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as arrays:
        train, test = ((arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in ("train", "test"))
        return Dataset.from_images(train, test, tuple(arrays["classes"].tolist()))
