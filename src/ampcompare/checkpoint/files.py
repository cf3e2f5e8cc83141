"""Checkpoint files: written whole or not at all, checked when read, never executed.

A file is what `torch.save` writes and a line with the SHA-256 of it behind, so that `torch.load` reads it
too. It is written beside its place, flushed to disk and renamed. Of a run the last two are kept, and the best
of those saved after an evaluation, which has `.best` in its name. Reading unpickles tensors and plain values
alone (`weights_only=True`).
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ampcompare.errors import reason
from ampcompare.program.files import replacing

FORMAT = 2  # raise it when what a checkpoint holds changes
KEPT = 2
DAMAGED = ".damaged"
RECORDED = "recorded"
_NAME = re.compile(r"step-(\d+)(\.best)?\.pt")
_TRAILER = b"\nsha256:"
_TRAILER_BYTES = len(_TRAILER) + 64 + 1


class CheckpointError(Exception):
    """A file that is no whole checkpoint, in words."""


class _Writer:
    """What `torch.save` writes to: hashes, keeps an error for later, as PyTorch's writer aborts on one."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: it is on the disk then. Or OSError is raised and the file is as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        writer = _Writer(file)
        torch.save({"format": FORMAT, **state}, writer)  # type: ignore[arg-type]
        if writer.error:
            raise writer.error
        file.write(_TRAILER + writer.hash.hexdigest().encode() + b"\n")


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, its tensors on the CPU. Raises CheckpointError for anything but a whole one."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise CheckpointError(reason(problem)) from None
    payload, trailer = content[:-_TRAILER_BYTES], content[-_TRAILER_BYTES:]
    if not trailer.startswith(_TRAILER):
        raise CheckpointError("it has no checksum at its end: cut short, or no checkpoint")
    if trailer[len(_TRAILER) : -1] != hashlib.sha256(payload).hexdigest().encode():
        raise CheckpointError("its checksum does not match")
    return _unpickle(io.BytesIO(payload))


def peek(path: Path) -> dict[str, Any]:
    """The same without checksum, and without reading what is in the tensors: to look at config and step."""
    return _unpickle(path, mmap=True)


def _unpickle(source: Any, **options: Any) -> dict[str, Any]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickles that are none of PyTorch's
            state = torch.load(source, map_location="cpu", weights_only=True, **options)
    except Exception as problem:  # PyTorch's readers meet damage as a dozen types of exception
        raise CheckpointError(f"PyTorch cannot read it ({type(problem).__name__})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise CheckpointError(f"its format is {found!r}, this version reads {FORMAT}")
    return state


class Store:
    """The checkpoints of one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: Path | None = None  # the file that `load` found
        self._lock: BinaryIO | None = None

    def lock(self) -> bool:
        """Take the folder for this process, until it ends however it does; False if another one has it."""
        import fcntl

        if self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            self._lock = file
            for left in self.folder.glob("*.tmp"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
        return True

    def unlock(self) -> None:
        """Give the folder free."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def mark_recorded(self, step: int, say: Callable[[str], None]) -> None:
        """Note that the run ended at this step and its record is whole: there is nothing to go on with."""
        if self.files():
            path = self.folder / RECORDED
            try:
                path.write_text(f"{step}\n")
            except OSError as problem:
                say(f"{path} could not be written ({reason(problem)}): resume=auto will end this run again")

    def is_recorded(self, step: int) -> bool:
        """Whether the run was ended at this step with its record whole."""
        try:
            return (self.folder / RECORDED).read_text() == f"{step}\n"
        except (OSError, ValueError):
            return False

    def files(self) -> list[Path]:
        """Newest first, by step. Raises OSError where the folder cannot be read."""
        if not self.folder.is_dir():
            return []
        found = [(int(m[1]), bool(m[2]), p) for p in self.folder.iterdir() if (m := _NAME.fullmatch(p.name))]
        return [path for _, _, path in sorted(found, reverse=True)]

    def save(self, state: dict[str, Any], *, best: bool = False) -> Path:
        """Write the state, let go of files that are not kept. Raises OSError; what was there stays then."""
        path = self.folder / f"step-{state['step']:09d}{'.best' if best else ''}.pt"
        write(path, state)
        files = self.files()
        bests = [file for file in files if file.name.endswith(".best.pt")]
        for file in set(files) - {path, *files[:KEPT], *bests[:1]}:
            file.unlink(missing_ok=True)
        return path

    def load(self, say: Callable[[str], None]) -> dict[str, Any] | None:
        """The newest whole checkpoint. A damaged one is said, put aside under another name, passed over."""
        for path in self.files():
            try:
                state = read(path)
                self.loaded = path
                return state
            except CheckpointError as problem:
                aside = path.replace(path.with_name(path.name + DAMAGED))
                what = f"checkpoint {path.name} is damaged ({problem})"
                say(f"{what}: the one before is used; it is now {aside}")
        return None
