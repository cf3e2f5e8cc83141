"""Images in class folders, train/<class>/* and test/<class>/*, as a folder or as an archive of one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import numpy as np

from ampcompare.data.arrays import Arrays
from ampcompare.data.cache import load_or_build
from ampcompare.data.sources.archive import read_archive
from ampcompare.data.sources.bounds import MAX_FILE_BYTES
from ampcompare.data.sources.decode import decode_images
from ampcompare.data.sources.tree import EXPECTED, SPLITS, Tree, arrange, is_hidden
from ampcompare.errors import UserError, reason

log = logging.getLogger("ampcompare")


def load(root: str | None) -> Arrays:
    """Decode the folder or archive at `root`, or read what an earlier call kept of the same content.

    Raises UserError for a root that is missing or unreadable, and as `read_archive`, `arrange` and
    `decode_images` do.
    """
    if not root:
        needs = f"data.source=image_folder needs a folder or archive of {EXPECTED}"
        raise UserError(f"data.root is not set: {needs}")
    where = f"data.root={root!r}"
    try:
        path = Path(root).expanduser()
        if path.is_dir():
            tree, identity = _scan(path, where)
            return load_or_build("image_folder", identity, lambda: _decode(tree))
        if path.is_file():
            identity = f"archive {_sha256(path)}"
            return load_or_build("image_folder", identity, lambda: _decode(read_archive(path, where)))
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # the last two: a NUL character, an unknown ~user
        raise UserError(f"{where}: cannot be read ({reason(error)})") from error
    problem = "neither a file nor a folder" if exists else "no such file or folder"
    raise UserError(f"{where}: {problem}: give a folder or a tar or zip archive of {EXPECTED}")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _decode(tree: Tree) -> Arrays:
    layout = arrange(tree)
    count = sum(len(layout.paths[split]) for split in SPLITS)
    log.info("%s: decoding %s images, this once", tree.where, f"{count:,}")
    images = decode_images([layout.paths[split] for split in SPLITS], tree.read, tree.where)
    labels = [np.array(layout.labels[split], np.int64) for split in SPLITS]
    return Arrays.of((images[0], labels[0]), (images[1], labels[1]), layout.classes)


def _scan(root: Path, where: str) -> tuple[Tree, str]:
    """List train/ and test/ three levels deep, and name the content by path, size and times of each file.

    The times are both that of the last write and that of the last change of any kind: tools that unpack
    or copy may set the first to anything, but not the second. Links are followed.
    """
    files: list[tuple[str, ...]] = []
    folders: set[tuple[str, ...]] = set()
    stamps: list[tuple[object, ...]] = []
    base = os.fsencode(root)

    # In bytes, so that names mean the same under every locale.
    def visit(parts: tuple[str, ...]) -> None:
        for entry in os.scandir(os.path.join(base, *(part.encode() for part in parts))):
            path = (*parts, _name(entry.name, parts, where))
            if is_hidden(path):
                continue
            if entry.is_dir():
                folders.add(path)
                if path[0] in SPLITS and len(path) < 3:
                    visit(path)
                continue
            if not entry.is_file():
                raise UserError(f"{where}: {'/'.join(path)!r} is a broken link or a special file: remove it")
            files.append(path)
            if path[0] in SPLITS:
                status = entry.stat()
                stamps.append((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))

    def read(path: str) -> bytes:
        try:
            with open(os.path.join(base, path.encode()), "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise UserError(f"{where}: image {path!r} cannot be read ({reason(error)})") from error
        if len(data) > MAX_FILE_BYTES:
            most = f"{MAX_FILE_BYTES // 2**20} MiB"
            raise UserError(f"{where}: image {path!r} is larger than {most}: remove it")
        return data

    visit(())
    listing = json.dumps([sorted(folders), sorted(stamps)])
    return Tree(where, files, folders, read), f"folder {hashlib.sha256(listing.encode()).hexdigest()}"


def _name(name: bytes, parts: tuple[str, ...], where: str) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        shown = "/".join([*parts, name.decode(errors="backslashreplace")])
        raise UserError(f"{where}: the name of {shown!r} is not UTF-8: rename it") from None
