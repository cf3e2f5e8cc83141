"""Decoded data sets on disk, so that only the first load of a source is slow.

One uncompressed .npz file each, named after the fingerprint of its source. A file is written beside its
place, flushed to disk and renamed, so that it is whole or absent, also with several writers. What is read
is checked (the zip format's CRC, key, dtypes, shapes, label range) and never unpickled. The cache is only
ever a help: whatever is wrong with it is said in one line, and the data is built from its source.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.data.arrays import Arrays
from ampcompare.errors import reason
from ampcompare.program.files import cache_folder, replacing

# Part of every key: raise it when the file's layout, or what a source is decoded to, changes.
FORMAT = 1
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
ABANDONED_SECONDS = 24 * 3600

log = logging.getLogger("ampcompare")


def cached_file(source: str, identity: str) -> Path:
    """Where this source's arrays are kept, whether they are there or not. Raises OSError without a home."""
    return cache_folder() / f"{source}-{_key(source, identity)[:32]}.npz"


def _key(source: str, identity: str) -> str:
    text = f"{FORMAT}\n{source}\n{identity}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def load_or_build(source: str, identity: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays stored under this source's identity, or else those of `build()`, stored for next time.

    identity: text that changes whenever the source's content does. Only `build` can raise.
    """
    key = _key(source, identity)
    try:
        path = cached_file(source, identity)
    except OSError as error:
        log.warning("no data cache (%s): set AMPCOMPARE_CACHE to a folder to load faster next time", error)
        return build()
    cached = _load(path, key)
    if cached is not None:
        return cached
    arrays = build()
    _store(path, key, arrays)
    return arrays


def _load(path: Path, key: str) -> Arrays | None:
    try:
        if not path.exists():
            return None
        if not path.is_file():
            raise ValueError("not a file")
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                raise ValueError("it belongs to other data")
            arrays: dict[str, Any] = {name: stored[name] for name in ARRAYS}
            classes = tuple(stored["classes"].tolist())
            return Arrays(**arrays, classes=classes, fingerprint=str(stored["fingerprint"])).checked()
    except Exception as error:  # any damage at all: a zip reader meets it as one of a dozen exception types
        log.warning("data cache %s is not usable (%s): building it again", path, reason(error))
        return None


def _store(path: Path, key: str, arrays: Arrays) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        with replacing(path) as file:
            parts: dict[str, Any] = {name: np.asarray(value) for name, value in vars(arrays).items()}
            np.savez(file, key=np.array(key), **parts)
    except OSError as error:
        todo = "set AMPCOMPARE_CACHE to a folder with room to load faster next time"
        what = "cannot keep the decoded data in %s (%s): going on without; %s"
        log.warning(what, path.parent, reason(error), todo)


def _remove_abandoned(path: Path) -> None:
    """Remove what a process that was killed while writing this very file left behind, a day later."""
    for file in path.parent.glob(f"{path.stem}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # another process was first
            if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                file.unlink()
