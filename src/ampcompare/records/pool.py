"""Many files read by several processes: parsing is Python's work, of which 800,000 rows take 15 seconds.

The helpers are Python processes of their own, not forks: a fork of a program with threads may hang, and a
spawned one would run the caller's script again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ampcompare.records.offline import read_fragment
from ampcompare.records.run import Fragment

WORTH_BYTES = 60_000_000  # below it the start of a helper (0.5 s) costs more than it saves
MAX_PROCESSES = 8


def read_fragments(paths: Sequence[Path]) -> list[Fragment]:
    """The fragment of each file, in order; large amounts with a helper for each further processor."""
    count = min(_processors(), MAX_PROCESSES, len(paths))
    if count < 2 or sum(size_of(path) for path in paths) < WORTH_BYTES:
        return [read_fragment(path) for path in paths]
    # Largest first, each to the pile that is smallest so far. The first pile is read here.
    piles: list[list[int]] = [[] for _ in range(count)]
    weights = [0] * count
    for number in sorted(range(len(paths)), key=lambda n: -size_of(paths[n])):
        lightest = weights.index(min(weights))
        piles[lightest].append(number)
        weights[lightest] += 1 + size_of(paths[number])
    helpers = [_Helper([paths[number] for number in pile]) for pile in piles[1:]]
    found: dict[int, Fragment] = {number: read_fragment(paths[number]) for number in piles[0]}
    for helper, pile in zip(helpers, piles[1:], strict=True):
        found |= dict(zip(pile, helper.result(), strict=True))
    return [found[number] for number in range(len(paths))]


class _Helper:
    """One process that reads some files."""

    def __init__(self, paths: list[Path]) -> None:
        package = str(Path(__file__).resolve().parents[2])
        before = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{before}" if before else package}
        command = [sys.executable, "-c", "from ampcompare.records.pool import help_out; help_out()"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as file:  # it died; `result` says so
            pickle.dump(paths, file)

    def result(self) -> list[Fragment]:
        """Its fragments. Raises RuntimeError if it died."""
        assert self._process.stdout is not None
        content = self._process.stdout.read()
        if self._process.wait():
            raise RuntimeError(f"a process that read runs ended with exit code {self._process.returncode}")
        return pickle.loads(content)  # noqa: S301 - written by this very program


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def size_of(path: Path) -> int:
    """Bytes of a file; none of one that cannot be asked: its reader will say what is wrong with it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def help_out() -> None:
    """What a helper does: read the files named on stdin, write their fragments to stdout."""
    paths = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by this very program
    pickle.dump([read_fragment(path) for path in paths], sys.stdout.buffer)
