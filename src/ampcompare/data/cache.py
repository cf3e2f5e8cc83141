"""Decoded images on disk, so that only the first load of a source is slow.

One uncompressed .npz file each, named after the digest of its source; whole or absent, also with several
writers, and never unpickled. The cache is only ever a help: whatever is wrong with it is said in one line,
and the data is built from its source.
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

# Part of every name: raise it when the file's layout, or what a source is decoded to, changes.
FORMAT = 3

log = logging.getLogger(__name__)


def get_cache_path(source: str, identity: str) -> Path:
    """Where this source's images are kept, whether they are there or not. Raises OSError without a home."""
    return cache_folder() / f"{source}-{digest(f'{FORMAT} {source} {identity}')}.npz"


def load_or_build(source: str, identity: str, build: Callable[[], Dataset]) -> Dataset:
    """The images stored under this source's identity, or else those of `build()`, stored for next time.

    identity: text that changes whenever the source's content does. Only `build` can raise.
    """
    try:
        path = get_cache_path(source, identity)
        if path.exists():
            return _load(path)
    except Exception as error:  # of a damaged file as any of a dozen exception types
        log.warning("the data cache cannot be used (%s): building the data anew", reason(error))
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
        todo = "set AMPCOMPARE_CACHE to a folder with room to load faster next time"
        log.warning("cannot keep the decoded data (%s): %s", reason(error), todo)
    return data


def _load(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as kept:
        train, test = ((kept[f"{split}_images"], kept[f"{split}_labels"]) for split in ("train", "test"))
        return Dataset.from_images(train, test, tuple(kept["classes"].tolist()))
