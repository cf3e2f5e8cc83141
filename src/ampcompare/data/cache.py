"""Decoded data sets on disk, so that only the first load of a source is slow.

One uncompressed .npz file each, named after the fingerprint of its source; whole or absent, also with several
writers, and never unpickled. The cache is only ever a help: whatever is wrong with it is said in one line,
and the data is built from its source.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.data.arrays import Arrays
from ampcompare.errors import reason
from ampcompare.program.files import cache_folder, replacing

# Part of every name: raise it when the file's layout, or what a source is decoded to, changes.
FORMAT = 2

log = logging.getLogger("ampcompare")


def cached_file(source: str, identity: str) -> Path:
    """Where this source's arrays are kept, whether they are there or not. Raises OSError without a home."""
    key = hashlib.sha256(f"{FORMAT}\n{source}\n{identity}".encode()).hexdigest()
    return cache_folder() / f"{source}-{key[:32]}.npz"


def load_or_build(source: str, identity: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays stored under this source's identity, or else those of `build()`, stored for next time.

    identity: text that changes whenever the source's content does. Only `build` can raise.
    """
    try:
        path = cached_file(source, identity)
    except OSError as error:
        log.warning("no data cache (%s): set AMPCOMPARE_CACHE to a folder to load faster next time", error)
        return build()
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays: dict[str, Any] = dict(stored)
        classes, fingerprint = tuple(arrays.pop("classes").tolist()), str(arrays.pop("fingerprint"))
        return Arrays(**arrays, classes=classes, fingerprint=fingerprint)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except Exception as error:  # any damage at all: a zip reader meets it as one of a dozen exception types
        log.warning("data cache %s is not usable (%s): building it again", path, reason(error))
    built = build()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **vars(built))
    except OSError as error:
        todo = "set AMPCOMPARE_CACHE to a folder with room to load faster next time"
        what = "cannot keep the decoded data in %s (%s): going on without; %s"
        log.warning(what, path.parent, reason(error), todo)
    return built
