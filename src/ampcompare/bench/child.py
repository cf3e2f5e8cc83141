"""A measurement in a process of its own: its argument is a JSON object, it prints one. Free of torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.program.child import answer_of


def measure(
    program: str | Path, request: Mapping[str, Any], what: str, threads: int | None = None
) -> dict[str, Any]:
    """Run a module of `ampcompare.bench`, or a file, which prints its answer last. Raises UserError.

    A child that ends otherwise than by a UserError has its own words, a traceback, on stderr. `threads` is
    how many CPU threads PyTorch and its libraries may use there, None for their own choice.
    """
    environment = dict(os.environ)
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    words = [str(program)] if isinstance(program, Path) else ["-m", f"ampcompare.bench.{program}"]
    command = [sys.executable, *words, json.dumps(request)]
    done = answer_of(command, environment)
    if done.returncode:
        (last,) = done.stderr.strip().splitlines()[-1:] or [f"no message, exit code {done.returncode}"]
        if not (message := last.partition("UserError: ")[2]):
            print(done.stderr, file=sys.stderr, end="")
        raise UserError(f"bench: {what} failed: {message or last}")
    return json.loads(done.stdout.strip().splitlines()[-1])
