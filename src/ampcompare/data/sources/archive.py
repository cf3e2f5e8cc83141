"""The files of a tar or zip archive, read as one stream into memory; nothing is ever extracted to disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ampcompare.data.sources.bounds import MAX_FILE_BYTES, gib, memory_budget_bytes
from ampcompare.data.sources.decode import is_image
from ampcompare.data.sources.tree import SPLITS, Tree, is_hidden
from ampcompare.errors import UserError

DECOMPRESSORS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
CHUNK_BYTES = 2**20

# A member's name, what it is, and its bytes if it is an image.
Member = tuple[str, bool, bytes | None]


def read_archive(path: Path, where: str) -> Tree:
    """Read a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip file, told by its content, not by its name.

    One leading folder that everything lies in is taken off the paths. Raises UserError naming the file if
    it is corrupt, truncated or no archive, and naming the member if that is a link or a device, has a path
    that is absolute, holds `..` or is not UTF-8, or is larger than 64 MiB.
    """
    files: dict[tuple[str, ...], bytes | None] = {}
    folders: set[tuple[str, ...]] = set()
    held_bytes, budget = 0, memory_budget_bytes()
    try:
        for name, is_folder, data in _members(path, where):
            parts = _safe_parts(name, where)
            if not parts or is_hidden(parts):
                continue
            folders.update(parts[:depth] for depth in range(1, len(parts)))
            if is_folder:
                folders.add(parts)
                continue
            files[parts] = data  # of a path that comes twice the last counts, as in tar itself
            held_bytes += len(data or b"")
            if held_bytes > budget:
                most = f"{gib(budget)}, half of this machine's memory"
                raise UserError(f"{where}: its images take more than {most}")
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"{where}: out of memory while reading it") from None
    except Exception as error:  # damage shows as any of a dozen types of tarfile, zipfile and the rest
        what = f"corrupt, truncated or no tar or zip archive ({str(error) or type(error).__name__})"
        raise UserError(f"{where}: {what}: get it again") from error
    return _without_leading_folder(where, files, folders)


def _members(path: Path, where: str) -> Iterator[Member]:
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(0)
        if start.startswith(ZIP_STARTS):
            yield from _zip_members(file, where)
            return
        opener = next((opener for magic, opener in DECOMPRESSORS.items() if start.startswith(magic)), None)
        yield from _tar_members(_Stream(opener(file) if opener else file), where)


class _Stream:
    """A decompressed tar, read forwards only, that never yields more at once than a member may hold."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.position = file, 0

    def read(self, size: int) -> bytes:
        if size > MAX_FILE_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        data = self.file.read(size)
        self.position += len(data)
        return data

    def tell(self) -> int:
        return self.position

    def seek(self, position: int) -> None:
        if position < self.position:
            raise tarfile.ReadError("a member lies before the one that it follows")
        while self.position < position and self.read(min(CHUNK_BYTES, position - self.position)):
            pass


class _StrictTarInfo(tarfile.TarInfo):
    """tarfile takes a damaged or missing header for the end of the archive; only a block of zeros is."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _StrictTarInfo:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {tar.offset}") from error


def _tar_members(stream: _Stream, where: str) -> Iterator[Member]:
    # The encoding is given because tarfile's own choice follows the locale.
    how: dict[str, Any] = {"tarinfo": _StrictTarInfo, "encoding": "utf-8", "errors": "surrogateescape"}
    tar = tarfile.TarFile(fileobj=stream, **how)  # type: ignore[arg-type]
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # or it keeps a kilobyte for each
        if not (member.isdir() or member.isfile()) or member.issparse():
            raise _refused(where, member.name, "is a link or a special file")
        _check_size(where, member.name, member.size)
        wanted = member.isfile() and _is_wanted(member.name)
        content = tar.extractfile(member) if wanted else None
        yield member.name, member.isdir(), content.read() if content else None
    # Read to the end: there lie the checksums of the compressed stream.
    while stream.read(CHUNK_BYTES):
        pass


def _zip_members(file: IO[bytes], where: str) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) != (promised := _zip_count(file)):
            raise zipfile.BadZipFile(f"{len(archive.infolist())} of {promised} members in its directory")
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(where, member.filename, "is a link or a special file")
            if member.flag_bits & 1:
                raise _refused(where, member.filename, "is encrypted")
            _check_size(where, member.filename, member.file_size)
            # Read whatever it is: opening compares the two copies of its name, reading checks its sum. An
            # image whose name in the directory was damaged might else pass for a file that is not wanted.
            data = archive.read(member)
            wanted = not member.is_dir() and _is_wanted(member.filename)
            yield member.filename, member.is_dir(), data if wanted else None


def _zip_count(file: IO[bytes]) -> int:
    """How many members the end record promises, which zipfile does not compare with those that it finds."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16 - 100))
    end = file.read()
    count = struct.unpack_from("<H", end, end.rindex(b"PK\x05\x06") + 10)[0]
    if count == 0xFFFF and b"PK\x06\x06" in end:
        count = struct.unpack_from("<Q", end, end.rindex(b"PK\x06\x06") + 32)[0]
    return count


def _safe_parts(name: str, where: str) -> tuple[str, ...]:
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[/\\]", name):
        raise _refused(where, name, "has an absolute path")
    if ".." in re.split(r"[/\\]", name):
        raise _refused(where, name, "has a path with '..' in it")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise _refused(where, name, "has a name that is not UTF-8") from None
    return _parts(name)


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _check_size(where: str, name: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise _refused(where, name, f"is larger than {MAX_FILE_BYTES // 2**20} MiB")


def _is_wanted(name: str) -> bool:
    return is_image(name) and not is_hidden(_parts(name))


def _refused(where: str, name: str, reason: str) -> UserError:
    return UserError(f"{where}: archive member {name!r} {reason}: refused; pack plain files and folders only")


def _without_leading_folder(
    where: str, files: dict[tuple[str, ...], bytes | None], folders: set[tuple[str, ...]]
) -> Tree:
    tops = {folder[0] for folder in folders}
    if len(tops) == 1 and not tops.intersection(SPLITS):
        folders = {folder[1:] for folder in folders if len(folder) > 1}
        files = {path[1:] or path: data for path, data in files.items()}
    content = {"/".join(path): data for path, data in files.items() if data is not None}
    paths = list(files)
    files.clear()
    # Each image's encoded bytes are let go as it is decoded.
    return Tree(where, paths, folders, content.pop)
