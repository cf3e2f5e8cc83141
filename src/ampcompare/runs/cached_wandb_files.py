"""Reads `.wandb` files, each once and then from the cache, and says which of their runs still run."""

import hashlib
import pickle
import stat
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.runs.run_record import TIMESTAMP, RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.runtime.file_locks import is_locked
from ampcompare.wandb_client import framing

# The client flushes every 15 s by default. A run is dead after four missed flushes, or three missed rows.
RUNNING_SECONDS = 60.0
RUNNING_ROWS = 3
CHECKPOINTS = "checkpoints"  # folder in an output_dir, next to `wandb`
MAX_GAP_ROWS = 100  # last rows of a run, between which gaps are measured
MAX_GAP_SECONDS = 24 * 3600  # a larger gap does not count

FileSignature = tuple[Any, ...]  # identifies a file in the cache: `_signature`


def read_wandb_files(paths: Sequence[Path], memory: Any) -> list[RunRecord]:
    """Return the part of a run in each file, in order.

    Files that may still be written to are not cached.
    """
    now = time.time()
    cached_read = memory.cache(_read_pickled)
    read = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a full disk nothing is cached
        for path in paths:
            signature = _signature(path, now)
            read.append(_unpickle(cached_read(*signature)) if signature else read_wandb_file(path))
    for run in read:
        if run.exit_code is None and _is_running(run, now):
            run.state = RunState.RUNNING
            run.ended_as = ""
    return read


def _signature(path: Path, now: float) -> FileSignature:
    """Return what identifies a file in the cache; empty for a file that may be written to."""
    try:
        status = path.stat()
    except OSError:  # its reader says what is wrong
        return ()
    if not stat.S_ISREG(status.st_mode) or status.st_mtime > now - RUNNING_SECONDS:
        return ()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, _version()


def _read_pickled(path: str, size: int, written: int, changed: int, version: str) -> bytes:
    """Return the pickled result of `read_wandb_file`; the other arguments are part of the cache key.

    It is pickled here because joblib would read the pickle of an object in Python, five times slower.
    """
    return pickle.dumps(read_wandb_file(Path(path)), pickle.HIGHEST_PROTOCOL)


def _unpickle(pickled: bytes) -> RunRecord:
    run: RunRecord = pickle.loads(pickled)  # noqa: S301 - pickled above, and joblib's cache is one of pickles
    return run


@cache
def _version() -> str:
    """Return a hash of the source text of the readers, which identifies their version in the cache."""
    folders = (Path(__file__).parent, Path(framing.__file__).parent)
    texts = [file.read_bytes() for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _is_running(run: RunRecord, now: float) -> bool:
    """Return whether a run without an exit record is still running.

    It is if its checkpoints are locked, or if its file changed within the last minute or within three of its
    own logging intervals (50 steps of 5 s are four minutes).
    """
    if run.last_write is None:
        return False
    output_dir = run.paths[0].absolute().parent.parent.parent
    with suppress(OSError):  # the lock belongs to another user
        if is_locked(output_dir / CHECKPOINTS / run.id / "lock"):
            return True
    _, timestamps = run.logged_numbers(TIMESTAMP)
    gaps = np.diff(timestamps[np.isfinite(timestamps)][-MAX_GAP_ROWS:])
    gaps = gaps[(gaps > 1) & (gaps < MAX_GAP_SECONDS)]  # the row of an evaluation follows at once
    pause = RUNNING_ROWS * float(np.median(gaps)) if len(gaps) else 0.0
    return abs(now - run.last_write.timestamp()) <= max(RUNNING_SECONDS, pause)
