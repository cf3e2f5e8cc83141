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

# Without an answer for so long there is no network; applies to each connection and read, not to the whole.
NETWORK_TIMEOUT_SECONDS = 8.0

log = logging.getLogger(__name__)


class Archive(NamedTuple):
    """One of the two, as torchvision, which takes seconds to import, has it: `file` unpacks to `folder`."""

    name: str  # data.source
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


def load(root: str | None, which: Archive = CIFAR10) -> Dataset:
    """The 50,000 training and 10,000 test images, 3x32x32, from `root` (by default the cache folder).

    torchvision looks in `root` for the unpacked batches, then for their archive, then downloads that; it
    checks each file's MD5 before it unpickles it. Raises UserError if none of this works.
    """
    return load_or_build(which.name, which.md5, lambda: _read(root, which))


def load_100(root: str | None) -> Dataset:
    """The same of CIFAR-100."""
    return load(root, CIFAR100)


def find_files(which: Archive) -> tuple[Path | None, Path]:
    """Where the data is without a `data.root`, decoded or as its authors publish it (None: nowhere yet), and
    the folder that it would come into. Only looks. Raises OSError if there is no home folder.
    """
    folder = cache_folder()
    places = (get_cache_path(which.name, which.md5), folder / which.folder, folder / which.file)
    return next((place for place in places if place.exists()), None), folder


def _read(root: str | None, which: Archive) -> Dataset:
    from torchvision import datasets

    folder: Path | str = root or "the cache folder"
    before = socket.getdefaulttimeout()
    try:
        folder = Path(root).expanduser() if root else cache_folder()
        log.info("reading %s in %s, this once (fetching it if it is not there)", which.label, folder)
        # torchvision opens connections without one and would wait for ever behind a silent firewall.
        socket.setdefaulttimeout(NETWORK_TIMEOUT_SECONDS)
        reader = getattr(datasets, which.name.upper())
        train, test = (reader(str(folder), train=train, download=True) for train in (True, False))
    except Exception as error:  # network, disk, archive and unpickling errors; all have the same cure
        what = f"{which.label} is not in {str(folder)!r} and cannot be fetched ({reason(error)})"
        todo = f"put {which.file} (MD5 {which.md5}) into that folder or set data.root to one that holds it"
        raise UserError(
            f"data.source={which.name}: {what}: {todo}; data.source=synthetic needs no data"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    # torchvision holds a transposed view of the original [N, 3, 32, 32]: turning it back copies nothing.
    images = (np.ascontiguousarray(split.data.transpose(0, 3, 1, 2)) for split in (train, test))
    pairs = [*zip(images, (np.array(split.targets, np.int64) for split in (train, test)), strict=True)]
    return Dataset.from_images(pairs[0], pairs[1], tuple(train.classes))
