"""Output folders, the cache folder, and files that are written as a whole or not at all."""

import contextlib
import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ampcompare.errors import UserError, reason


def make_folder(folder: Path, option: str) -> Path:
    """Make the folder, check that a file can be written there, and return it.

    Args:
        option: The option and its value, for the message.

    Raises:
        UserError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise UserError(f"{option}: cannot be written to ({reason(problem)}); name another folder") from None
    return folder


def cache_folder() -> Path:
    """Return `$AMPCOMPARE_CACHE`, else `$XDG_CACHE_HOME/ampcompare`, else `~/.cache/ampcompare`.

    Raises:
        OSError: There is no home folder.
    """
    chosen = os.environ.get("AMPCOMPARE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
            return Path(base) / "ampcompare"
        return Path.home() / ".cache" / "ampcompare"
    except RuntimeError as error:
        raise OSError(f"AMPCOMPARE_CACHE={chosen!r}: {error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` at the end and is on the disk by then.

    After any exception `path` is unchanged. A killed process leaves `NAME.*.tmp`.

    Raises:
        OSError: The file could not be written.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # never made, or on a disk that has gone
            temporary.unlink()
        raise


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, with null for numbers that are not finite.

    Raises:
        UserError: The file cannot be written; the message names `--json`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise UserError(
            f"--json {str(path)!r}: cannot be written ({reason(problem)}); name another file"
        ) from None


def finite(value: Any) -> Any:
    """Return the value with None for each number that is not finite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def _sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a whole file, and its folder where there is none; return the path.

    The file is either complete or as it was before. Lone surrogates in a text are replaced.

    Raises:
        UserError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {reason(problem)}") from None
    return path
