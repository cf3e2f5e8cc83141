"""CIFAR-100 with its 100 fine classes: the same images' size, number and archive as CIFAR-10."""

from __future__ import annotations

from ampcompare.data.arrays import Arrays
from ampcompare.data.sources import cifar10

ARCHIVE = "cifar-100-python.tar.gz"
ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
CIFAR100 = cifar10.Archive("cifar100", "CIFAR-100", ARCHIVE, ARCHIVE_MD5, "cifar-100-python", "CIFAR100")


def load(root: str | None) -> Arrays:
    """The 50,000 training and 10,000 test images, as `cifar10.load` has them. Raises UserError."""
    return cifar10.load(root, CIFAR100)
