"""CIFAR-10 and CIFAR-100 (its 100 fine classes), fetched and verified by torchvision."""

import logging
import socket
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ampcompare.data.cache import get_cache_path, load_or_build
from ampcompare.data.dataset import Dataset
from ampcompare.errors import UserError, reason
from ampcompare.runtime.atomic_files import cache_folder

# The time without an answer after which there is no network; for each connection and read.
NETWORK_TIMEOUT_SECONDS = 8.0

log = logging.getLogger(__name__)


class Archive(NamedTuple):
    """The archive of a data set; the values are torchvision's, which takes seconds to import.

    Attributes:
        name: The value of `data.source`.
        file: The name of the archive.
        folder: The folder that the archive unpacks to.
    """

    name: str
    label: str
    file: str
    folder: str
    md5: str


CIFAR10 = Archive(
    *("cifar10", "CIFAR-10", "cifar-10-python.tar.gz", "cifar-10-batches-py"),
    md5="c58f30108f718f92721af3b95e74349a",
)
CIFAR100 = Archive(
    *("cifar100", "CIFAR-100", "cifar-100-python.tar.gz", "cifar-100-python"),
    md5="eb9058c3a382ffc7106e4002c42a8d85",
)


class DownloadError(UserError):
    """The archive is not there and cannot be downloaded, or is damaged."""


def load(root: str | None, which: Archive = CIFAR10) -> Dataset:
    """Load the 50,000 training and 10,000 test images, 3x32x32.

    torchvision uses the unpacked batches in `root`, or the archive there, or downloads the archive. It checks
    the MD5 of each file before it unpickles it.

    Args:
        root: The folder, by default the cache folder.

    Raises:
        DownloadError: The data is not there and cannot be downloaded, or is damaged.
    """
    return load_or_build(which.name, which.md5, lambda: _read(root, which))


def load_cifar100(root: str | None) -> Dataset:
    """Load CIFAR-100 as `load` does."""
    return load(root, CIFAR100)


def find_files(which: Archive) -> tuple[Path | None, Path]:
    """Find the data that `load` uses without a `root`.

    Returns:
        The decoded data, unpacked folder or archive (None if there is none yet), and the cache folder.

    Raises:
        OSError: There is no home folder.
    """
    folder = cache_folder()
    paths = (get_cache_path(which.name, which.md5), folder / which.folder, folder / which.file)
    return next((path for path in paths if path.exists()), None), folder


def _read(root: str | None, which: Archive) -> Dataset:
    from torchvision import datasets

    folder: Path | str = root or "the cache folder"
    before = socket.getdefaulttimeout()
    try:
        folder = Path(root).expanduser() if root else cache_folder()
        log.info("reading %s from %s (downloading it if it is not there)", which.label, folder)
        # torchvision sets no timeout, so it would wait for ever behind a silent firewall.
        socket.setdefaulttimeout(NETWORK_TIMEOUT_SECONDS)
        reader = getattr(datasets, which.name.upper())
        train, test = (reader(str(folder), train=train, download=True) for train in (True, False))
    except Exception as error:  # network, disk, archive and unpickling errors have the same remedy
        raise DownloadError(
            f"data.source={which.name}: {which.label} is not in {str(folder)!r} and cannot be downloaded "
            f"({reason(error)}); put {which.file} (MD5 {which.md5}) into that folder, or set data.root to "
            "the folder that has it; data.source=synthetic needs no files"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    # torchvision has a transposed view of the original [N, 3, 32, 32], so this copies nothing.
    pairs = []
    for split in (train, test):
        images = np.ascontiguousarray(split.data.transpose(0, 3, 1, 2))
        pairs.append((images, np.array(split.targets, np.int64)))
    return Dataset.from_images(pairs[0], pairs[1], tuple(train.classes))
