"""Images in class folders, train/<class>/* and test/<class>/*, in a folder or an archive."""

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
from ampcompare.data.dataset import Dataset
from ampcompare.errors import UserError, reason

SPLITS = ("train", "test")
EXPECTED = "give a folder or a tar or zip archive of train/<class>/<image> and test/<class>/<image>"
# Pillow would also pass an EPS file to Ghostscript, which runs programs.
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Modes with more than 8 bits per channel; a conversion to RGB would clip values silently.
DEEP_MODES = ("I", "F")

log = logging.getLogger(__name__)


def load(root: str | None) -> Dataset:
    """Decode the images of a folder or archive, or read them from the cache.

    Raises:
        UserError: The root is missing, unreadable or has no class folders. Or an image does not decode,
            differs in size from the first, or has more than 8 bits per channel.
    """
    if not root:
        raise UserError(f"data.root is not set: {EXPECTED}")
    try:
        path = Path(root).expanduser()
        if path.is_dir():
            identity = f"folder {_hash_listing(path)}"
        else:
            with path.open("rb") as file:
                identity = f"archive {hashlib.file_digest(file, 'sha256').hexdigest()}"
        return load_or_build("image_folder", identity, lambda: _read(path))
    except UnusableFolder as problem:
        raise UserError(f"data.root={root!r}: {problem}") from problem
    except READ_ERRORS as error:
        which = f": {error.filename!r}" if isinstance(error, OSError) and error.filename else ""
        raise UserError(f"data.root={root!r}: cannot be read ({reason(error)}{which}): {EXPECTED}") from error


class UnusableFolder(Exception):
    """An image or a class folder cannot be used."""


# RuntimeError: an unknown ~user, an encrypted zip file; ValueError: a NUL in the name.
READ_ERRORS = (OSError, ValueError, RuntimeError, EOFError, tarfile.TarError, zipfile.BadZipFile)


def _hash_listing(root: Path) -> str:
    """Return a hash of path, size and timestamps of each file; links are followed.

    The timestamps are mtime and ctime: tools that unpack or copy may set mtime to anything, but not ctime.
    """
    entries = []
    for split in SPLITS:
        for folder, _, names in os.walk(root / split, followlinks=True):
            for path in (os.path.join(folder, name) for name in names):
                file = os.stat(path)
                entries.append(
                    (os.path.relpath(path, root), file.st_size, file.st_mtime_ns, file.st_ctime_ns)
                )
    return digest(json.dumps(sorted(entries)))


@contextmanager
def _open_folder(path: Path) -> Iterator[Path]:
    """Return a context with the folder that has train/ and test/.

    An archive is unpacked to a temporary folder. It may have one top folder that contains everything.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ampcompare-") as unpacked:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                zipped.extractall(unpacked)
        else:
            with tarfile.open(path) as tarred:
                tarred.extractall(unpacked, filter="data")
        inner = [entry for entry in Path(unpacked).iterdir() if not _is_hidden(entry.name)]
        has_top_folder = len(inner) == 1 and inner[0].is_dir() and inner[0].name not in SPLITS
        yield inner[0] if has_top_folder else Path(unpacked)


def _is_hidden(name: str) -> bool:
    """Return whether a name is hidden, or was added to an archive by macOS."""
    return name.startswith(".") or name == "__MACOSX"


def _is_image(path: str) -> bool:
    name = os.path.basename(path)
    return name.lower().endswith(SUFFIXES) and not _is_hidden(name) and os.path.isfile(path)  # excludes pipes


def _read(path: Path) -> Dataset:
    # Imported here, since it takes seconds and 160 MB and the cache does not need it.
    from torchvision.datasets import ImageFolder

    with _open_folder(path) as folder:
        train, test = (ImageFolder(str(folder / split), is_valid_file=_is_image) for split in SPLITS)
        unmatched = sorted({*train.classes} ^ {*test.classes})
        if unmatched:
            raise UnusableFolder(
                f"class folder {unmatched[0]!r} is in only one of train and test; both need all classes"
            )
        log.info("decoding %s images for the cache", f"{len(train) + len(test):,}")
        size = _decode(train.samples[0][0], folder).shape[:2]
        pairs = []
        for split in (train, test):
            images = np.empty((len(split), 3, *size), np.uint8)
            for index, (name, _) in enumerate(split.samples):
                pixels = _decode(name, folder)
                if pixels.shape[:2] != size:
                    height, width = pixels.shape[:2]
                    raise UnusableFolder(
                        f"image {os.path.relpath(name, folder)!r} is {width}x{height} pixels "
                        f"but the first one is {size[1]}x{size[0]}; resize all images to one size"
                    )
                images[index] = pixels.transpose(2, 0, 1)
            pairs.append((images, np.array(split.targets, np.int64)))
        return Dataset.from_images(pairs[0], pairs[1], tuple(train.classes))


def _decode(path: str, folder: Path) -> np.ndarray:
    """Decode an image to RGB, uint8 [H, W, 3].

    Raises:
        UnusableFolder: It does not decode, or has more than 8 bits per channel.
    """
    from PIL import Image

    image_name = f"image {os.path.relpath(path, folder)!r}"
    try:
        image: Any = Image.open(path, formats=FORMATS)
        if not image.mode.startswith(DEEP_MODES):
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # a damaged file raises any of a dozen exception types
        raise UnusableFolder(
            f"{image_name} cannot be decoded ({reason(error)}); replace or remove it"
        ) from error
    raise UnusableFolder(f"{image_name} has more than 8 bits per channel; convert it to 8 bits")
