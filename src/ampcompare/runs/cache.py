"""The cache on disk: records that were read. It is safe to delete."""

import logging
import warnings
from typing import Any

from ampcompare.errors import reason
from ampcompare.runtime.atomic_files import cache_folder

log = logging.getLogger(__name__)


def open_cache(name: str) -> Any:
    """Return one part of the cache, a folder of this name, as a `joblib.Memory`.

    If no folder can be created, a warning says so and nothing is cached.
    """
    import joblib

    # joblib logs a traceback for a damaged entry, which is recreated anyway.
    logging.getLogger("joblib").setLevel(logging.ERROR)
    try:
        return joblib.Memory(cache_folder() / name, verbose=0)
    except OSError as problem:
        log.warning(
            "the cache of %s cannot be used (%s); AMPCOMPARE_CACHE can name another folder",
            name,
            reason(problem),
        )
        return joblib.Memory(None, verbose=0)


def trim_cache(memory: Any, limit: str) -> None:
    """Delete the least recently used entries of a part, down to a limit such as `1G`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.reduce_size(limit)
