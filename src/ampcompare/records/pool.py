"""Many files read by several processes: 800,000 rows take a processor some 13 seconds.

The helpers are Python processes of their own, not forks: a fork of a program with threads may hang, and a
spawned one would run the caller's script again. What was read before is not read again (`kept.py`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ampcompare.records.kept import KeptFragments, processors
from ampcompare.records.offline import read_signed
from ampcompare.records.run import Fragment

WORTH_BYTES = 60_000_000  # below it the start of a helper (0.3 s) costs more than it saves
MAX_PROCESSES = 8
AHEAD = 2  # files that a helper is given at a time: it reads while its last fragment is fetched


def read_fragments(paths: Sequence[Path]) -> list[Fragment]:
    """The fragment of each file, in order; large amounts with a helper for each further processor."""
    kept = KeptFragments()
    found = kept.find(paths)
    left = [path for path in paths if path not in found]
    work = deque(sorted(left, key=size_of, reverse=True))
    count = min(processors(), MAX_PROCESSES, len(left))
    if sum(map(size_of, left)) < WORTH_BYTES:
        count = 1

    def take(path: Path, read: tuple[Fragment, str]) -> None:
        found[path], sign = read
        kept.keep(found[path], sign)

    helpers = [_Helper(work, take) for _ in range(1, count)]
    try:
        while (path := _next(work)) is not None:
            take(path, read_signed(path))
        for helper in helpers:
            helper.finish()
    finally:
        for helper in helpers:
            helper.end()
    kept.tidy()
    return [found[path] for path in paths]


def _next(work: deque[Path]) -> Path | None:
    try:
        return work.popleft()
    except IndexError:  # another thread had the last one
        return None


class _Helper:
    """One process that reads files, and the thread that hands them over and takes what comes back.

    Each fragment is fetched as soon as it is read, so that the helper never holds more than one.
    """

    def __init__(self, work: deque[Path], take: Callable[[Path, tuple[Fragment, str]], None]) -> None:
        package = str(Path(__file__).resolve().parents[2])
        before = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{before}" if before else package}
        command = [sys.executable, "-c", "from ampcompare.records.pool import help_out; help_out()"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
        self._work, self._take = work, take
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asked: deque[Path] = deque()
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            while True:
                while len(asked) < AHEAD and (path := _next(self._work)) is not None:
                    asked.append(path)
                    pickle.dump(path, to)
                    to.flush()
                if not asked:
                    break
                self._take(asked.popleft(), pickle.load(back))  # noqa: S301 - written by this very program
            to.close()
        except Exception as problem:  # told by `finish`, in the thread that waits
            self._problem = problem

    def finish(self) -> None:
        """Wait for the last fragment. Raises RuntimeError if the process died."""
        self._thread.join()
        self._close()  # its pipes are at their end: it ends, if it has not
        if code := self._process.wait():
            raise RuntimeError(f"a process that read runs ended with exit code {code}") from self._problem
        if self._problem:
            raise self._problem

    def end(self) -> None:
        """End the process, if it has not ended by itself."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # it died, and what was to be written is of no use
                assert pipe is not None
                pipe.close()


def size_of(path: Path) -> int:
    """Bytes of a file; none of one that cannot be asked: its reader will say what is wrong with it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def help_out() -> None:
    """What a helper does: read the files that are named on stdin, write each one's fragment to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that waits; it ends this one
    while True:
        try:
            path = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by this very program
        except EOFError:
            return
        pickle.dump(read_signed(path), sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()
