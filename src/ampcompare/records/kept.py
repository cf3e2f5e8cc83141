"""What was read from run files, kept on the disk, so that a second report need not read them again.

One file for each run file of some size, `runs/SIZE-SHA256.run` in the cache's folder: named after the bytes
that were read, all of them, and the code that read them. So a changed file is read again whatever its time
says, a copied or moved one is not. An entry is written beside its place and renamed, begins with a checksum
and is never unpickled. All entries together stay below `MOST_BYTES`; those not used for longest go. The cache
is only ever a help, and safe to delete: whatever is wrong with it is said in one line, and the file is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from ampcompare.errors import reason
from ampcompare.program.files import cache_folder
from ampcompare.records.offline import name_state
from ampcompare.records.packing import pack, unpack
from ampcompare.records.run import Fragment
from ampcompare.records.signs import sign_file

WORTH_BYTES = 100_000  # a smaller file is read as fast as an entry
MOST_BYTES = 2**30
MOST_THREADS = 8
ABANDONED_SECONDS = 24 * 3600

log = logging.getLogger("ampcompare")


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class KeptFragments:
    """The cache as one load of runs uses it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._sizes: frozenset[str] = frozenset()  # of the run files that there are entries of
        self._has_new = False
        self._lock = threading.Lock()  # `keep` is called from the threads of `pool.py`
        try:
            self._folder = cache_folder() / "runs"
            self._sizes = frozenset(entry.name.partition("-")[0] for entry in os.scandir(self._folder))
        except OSError:  # none yet, or none to be had; `keep` says so
            pass

    def find(self, paths: Sequence[Path]) -> dict[Path, Fragment]:
        """The fragments of those files that were read before and are what they were then."""
        if not self._sizes:
            return {}
        # Hashing leaves the interpreter to other threads.
        with ThreadPoolExecutor(min(processors(), MOST_THREADS)) as pool:
            found = zip(paths, pool.map(self._find, paths), strict=True)
            return {path: fragment for path, fragment in found if fragment}

    def _find(self, path: Path) -> Fragment | None:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or str(status.st_size) not in self._sizes:
                return None
            sign = sign_file(path)
        except OSError:  # its reader will say what is wrong with it
            return None
        assert self._folder is not None
        entry = self._folder / f"{sign}.run"
        try:
            fragment = unpack(entry.read_bytes(), path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            log.warning("what was kept of %s is not usable (%s): reading it again", path, reason(problem))
            return None
        if fragment:
            fragment.last_write = datetime.fromtimestamp(status.st_mtime, UTC)
            name_state(fragment, time.time())
            with contextlib.suppress(OSError):  # another's folder, or one that may not be written to
                os.utime(entry)  # it was of use
        return fragment

    def keep(self, fragment: Fragment, sign: str) -> None:
        """Keep what was read of a file; `sign` is that of its content, empty where it was not read whole."""
        size = int(sign.partition("-")[0] or 0)
        if fragment.state == "running" or not fragment.has_run_record or size < WORTH_BYTES:
            return
        with contextlib.suppress(
            TypeError, ValueError, RecursionError
        ):  # values that JSON does not give back
            content = pack(fragment)
            with self._lock:
                self._write(f"{sign}.run", content)

    def _write(self, name: str, content: bytes) -> None:
        if self._folder is None:
            return
        temporary = self._folder / f"{name}.{secrets.token_hex(4)}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
                temporary.replace(self._folder / name)
            finally:
                temporary.unlink(missing_ok=True)
            self._has_new = True
        except OSError as problem:
            todo = "set AMPCOMPARE_CACHE to a folder with room to read them faster next time"
            what = "cannot keep what was read of runs in %s (%s): going on without; %s"
            log.warning(what, self._folder, reason(problem), todo)
            self._folder = None  # said once

    def tidy(self) -> None:
        """Remove what was not used for longest, where there is too much, and what a killed process left."""
        if self._folder is None or not self._has_new:
            return
        with contextlib.suppress(OSError):  # another process was first, or the folder is gone
            room = MOST_BYTES
            found = [(entry, entry.stat()) for entry in os.scandir(self._folder)]
            for entry, status in sorted(found, key=lambda pair: -pair[1].st_mtime):
                is_old = time.time() - status.st_mtime > ABANDONED_SECONDS
                room -= status.st_size
                if room < 0 or (entry.name.endswith(".tmp") and is_old):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry)
