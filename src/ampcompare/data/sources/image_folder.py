"""Images in class folders, train/<class>/* and test/<class>/*, as a folder or as an archive of one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.data.batch import digest
from ampcompare.data.cache import load_or_build
from ampcompare.data.splits import Dataset
from ampcompare.errors import UserError, reason

SPLITS = ("train", "test")
EXPECTED = "train/<class>/<image> and test/<class>/<image>"
# Only decoders of plain pictures: Pillow would also hand an EPS file to Ghostscript, which runs programs.
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# More than 8 bits a channel: converting to RGB would clip the values without a word.
DEEP_MODES = ("I", "F")

log = logging.getLogger("ampcompare")


def load(root: str | None) -> Dataset:
    """Decode the folder or archive at `root`, or read what an earlier call kept of the same content.

    Raises UserError for a root that is missing, unreadable or no such folder, and for images that do not
    decode, are of another size than the first, or have more than 8 bits a channel.
    """
    todo = f"give a folder or a tar or zip archive of {EXPECTED}"
    if not root:
        raise UserError(f"data.root is not set: {todo}")
    where = f"data.root={root!r}"
    try:
        path = Path(root).expanduser()
        if path.is_dir():
            identity = f"folder {_listing(path)}"
        else:
            with path.open("rb") as file:
                identity = f"archive {hashlib.file_digest(file, 'sha256').hexdigest()}"
        return load_or_build("image_folder", identity, lambda: _read(path, where))
    except (OSError, ValueError, RuntimeError) as error:  # the last: an unknown ~user, an encrypted zip file
        which = f": {error.filename!r}" if isinstance(error, OSError) and error.filename else ""
        raise UserError(f"{where}: cannot be read ({reason(error)}{which}): {todo}") from error


def _listing(root: Path) -> str:
    """Names the content by path, size and times of each file, links followed.

    The times are both that of the last write and that of the last change of any kind: tools that unpack or
    copy may set the first to anything, but not the second.
    """
    stamps = []
    for split in SPLITS:
        for folder, _, names in os.walk(root / split, followlinks=True):
            for path in (os.path.join(folder, name) for name in names):
                file = os.stat(path)
                stamps.append((os.path.relpath(path, root), file.st_size, file.st_mtime_ns, file.st_ctime_ns))
    return digest(json.dumps(sorted(stamps)))


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The folder with train/ and test/ in it: itself, or a temporary one with what is in the archive, without
    a leading folder that everything lies in.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ampcompare-") as made:
        try:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as zipped:
                    zipped.extractall(made)
            else:
                with tarfile.open(path) as tarred:
                    tarred.extractall(made, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise ValueError(f"corrupt, truncated or no tar or zip archive: {reason(error)}") from error
        inner = [entry for entry in Path(made).iterdir() if not _is_hidden(entry.name)]
        leads = len(inner) == 1 and inner[0].is_dir() and inner[0].name not in SPLITS
        yield inner[0] if leads else Path(made)


def _is_hidden(name: str) -> bool:
    """Hidden files, and what macOS adds to archives, are no data."""
    return name.startswith(".") or name == "__MACOSX"


def _is_image(path: str) -> bool:
    name = os.path.basename(path)
    return name.lower().endswith(SUFFIXES) and not _is_hidden(name) and os.path.isfile(path)  # no pipe


def _read(path: Path, where: str) -> Dataset:
    # Imported here: it takes seconds and 160 MB, and decoded data that were kept do without.
    from torchvision.datasets import ImageFolder

    with _unpacked(path) as folder:
        for split in SPLITS:
            if not (folder / split).is_dir():
                found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
                what = f"there is no folder {split!r} in it (found: {found})"
                raise UserError(f"{where}: {what}: expected {EXPECTED}")
        train, test = (ImageFolder(str(folder / split), is_valid_file=_is_image) for split in SPLITS)
        for name in sorted({*train.classes} ^ {*test.classes}):
            has, lacks = SPLITS if name in train.classes else SPLITS[::-1]
            what = f"class folder {name!r} is in {has!r} but not in {lacks!r}"
            raise UserError(f"{where}: {what}: each class needs images in both")
        "".join(train.classes).encode()  # a name that is not UTF-8 could go into no record
        log.info("%s: decoding %s images, this once", where, f"{len(train) + len(test):,}")
        height, width, _ = _pixels(train.samples[0][0], folder, where).shape
        pairs = []
        for split in (train, test):
            images = np.empty((len(split), 3, height, width), np.uint8)
            for index, (name, _) in enumerate(split.samples):
                pixels = _pixels(name, folder, where)
                if pixels.shape[:2] != (height, width):
                    size = f"{pixels.shape[1]}x{pixels.shape[0]}"
                    what = f"image {os.path.relpath(name, folder)!r} is {size} pixels but the first one is"
                    todo = "all images must have one size; resize them first"
                    raise UserError(f"{where}: {what} {width}x{height}: {todo}")
                images[index] = pixels.transpose(2, 0, 1)
            pairs.append((images, np.array(split.targets, np.int64)))
        return Dataset.of_images(pairs[0], pairs[1], tuple(train.classes))


def _pixels(path: str, folder: Path, where: str) -> np.ndarray:
    """RGB, uint8 [H, W, 3]."""
    from PIL import Image

    said = f"{where}: image {os.path.relpath(path, folder)!r}"
    try:
        image: Any = Image.open(path, formats=FORMATS)
        if not image.mode.startswith(DEEP_MODES):
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # a decoder meets damage as any of a dozen exception types
        raise UserError(f"{said} does not decode ({reason(error)}): replace it or remove it") from error
    raise UserError(f"{said} has more than 8 bits a channel: convert it to 8 bits first")
