"""The files of a report: their folder, and each written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder, replacing

PAGE_NAME = "index.html"


def prepare_folder(out: str | Path) -> Path:
    """The folder for the report, created if need be. Raises UserError where it cannot be written to."""
    return make_folder(Path(out), f"--out {str(out)!r}")


def write_file(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all, in a folder that is created if need be. Raises UserError."""
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {reason(problem)}") from None
    return path
