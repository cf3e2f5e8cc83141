"""The files of a report: their folder, and each written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ampcompare.errors import UserError

PAGE_NAME = "index.html"


def prepare_folder(out: str | Path) -> Path:
    """The folder for the report, created if need be. Raises UserError where it cannot be written to."""
    folder = Path(out)
    probe = folder / f".{PAGE_NAME}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise UserError(f"--out {str(out)!r}: cannot be written to ({reason}); name another folder") from None
    return folder


def write_file(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all, its folder where that is missing. Raises UserError."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        half.write_bytes(content)
        half.replace(path)
    except OSError as problem:
        with suppress(OSError):  # there may be none, nor a folder for it
            half.unlink()
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from None
    return path
