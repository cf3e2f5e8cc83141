"""What is taken home of a GPU check: one archive, small enough to travel, written whole or not at all.

Records and figures go in, what is large and can be had again does not: checkpoints, the wheels' files,
caches. Long logs lose their middles. What still does not fit beside newer files stays behind; the archive
says which.
"""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 16 * 2**20 - 2**18  # what a file that is carried back may have, and a little less
LOG_BYTES = 2**18
LEFT_OUT = "left-out.txt"
SKIPPED_FOLDERS = ("checkpoints", "tmp", "__pycache__", "artifacts", "cache")


@dataclass
class Entry:
    """A file as it is packed: its path within the folder, its content, when it was written."""

    name: str
    content: bytes
    written: float


def pack(folder: Path, archive: Path, limit: int = LIMIT_BYTES) -> list[str]:
    """Write `archive` (`.tar.xz`) of `folder`; returns what was left out of it, a line each."""
    entries: list[Entry] = []
    left_out: list[str] = []
    for path in kept_files(folder):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        if path.suffix == ".log" and len(content) > LOG_BYTES:
            left_out.append(f"{name}: its middle, {len(content) - LOG_BYTES:,} bytes")
            content = without_middle(content)
        entries.append(Entry(name, content, path.stat().st_mtime))
    entries.sort(key=lambda e: e.written, reverse=True)
    budget = limit
    while True:
        taken, behind = fit(entries, budget)
        dropped = left_out + [
            f"{e.name}: {len(e.content):,} bytes, did not fit beside what is newer" for e in behind
        ]
        text = compress(folder.name, taken, dropped)
        if len(text) <= limit or not taken:
            break
        budget = budget * 9 // 10  # together they came to more than was reckoned
    fresh = archive.with_name(f"{archive.name}.new")
    with fresh.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, archive)
    return dropped


def kept_files(folder: Path) -> Iterator[Path]:
    """The files that are taken along. Links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith(".") or path.suffix in (".new", ".xz"):
            continue
        if path.is_dir() and path.name not in SKIPPED_FOLDERS:
            yield from kept_files(path)
        elif path.is_file():
            yield path


def without_middle(content: bytes) -> bytes:
    """A log's beginning and end."""
    half = LOG_BYTES // 2
    return (
        content[:half] + f"\n... {len(content) - LOG_BYTES:,} bytes left out ...\n".encode() + content[-half:]
    )


def fit(entries: list[Entry], budget: int) -> tuple[list[Entry], list[Entry]]:
    """Those that come to `budget` bytes compressed one by one, the first ones first, and the others."""
    taken: list[Entry] = []
    behind: list[Entry] = []
    for entry in entries:
        size = len(zlib.compress(entry.content, 6)) + 512
        if size <= budget:
            taken.append(entry)
            budget -= size
        else:
            behind.append(entry)
    return taken, behind


def compress(name: str, entries: list[Entry], left_out: list[str]) -> bytes:
    """The archive of a folder called `name`."""
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w:xz") as tar:
        note = [Entry(LEFT_OUT, "\n".join([*left_out, ""]).encode(), 0.0)] if left_out else []
        for entry in sorted(entries + note, key=lambda e: e.name):
            info = tarfile.TarInfo(f"{name}/{entry.name}")
            info.size, info.mtime = len(entry.content), int(entry.written)
            tar.addfile(info, io.BytesIO(entry.content))
    return text.getvalue()
