"""The files of CIFAR-10 and CIFAR-100, made small: found, fetched, verified, and the line when that fails."""

import hashlib
import io
import pickle
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest
from support.outside import Outside
from support.refusals import line_of
from torchvision import datasets

from ampcompare.data.factory import build_dataset
from ampcompare.data.sources import cifar10


class SmallArchive:
    """A miniature of CIFAR-100 as its authors made it, with torchvision's class told of its checksums."""

    which, reader = cifar10.CIFAR100, datasets.CIFAR100

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.known_md5 = self.reader.tgz_md5
        self.classes = tuple(f"class {i}" for i in range(100))
        self.pixels = np.random.default_rng(0).integers(0, 256, (60, 3072), np.uint8)
        self.labels = [i * 7 % 100 for i in range(60)]
        parts = {
            "train": {"data": self.pixels[:50], "fine_labels": self.labels[:50]},
            "test": {"data": self.pixels[50:], "fine_labels": self.labels[50:]},
            "meta": {self.reader.meta["key"]: self.classes},
        }
        sums = {}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in parts.items():
                data = pickle.dumps(content, protocol=2)
                sums[name] = hashlib.md5(data).hexdigest()
                member = tarfile.TarInfo(f"{self.reader.base_folder}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        self.archive = buffer.getvalue()
        told = {
            "tgz_md5": hashlib.md5(self.archive).hexdigest(),
            "meta": {**self.reader.meta, "md5": sums["meta"]},
        }
        told |= {f"{split}_list": [[split, sums[split]]] for split in ("train", "test")}
        for name, value in told.items():
            outside.replace(self.reader, name, value)
        self.download_from("http://127.0.0.1:9/nobody-listens-there")

    def download_from(self, url: str) -> None:
        self._outside.replace(self.reader, "url", url)

    def check(self, dataset) -> None:
        splits = dataset.train, dataset.test
        found = np.concatenate([split.images.numpy() for split in splits])
        np.testing.assert_array_equal(found, self.pixels.reshape(60, 3, 32, 32))
        assert [label for split in splits for label in split.labels.tolist()] == self.labels
        assert dataset.classes == self.classes


@pytest.fixture
def cifar(outside: Outside) -> SmallArchive:
    return SmallArchive(outside)


def test_archive_is_read_without_network_and_found_in_the_cache_folder_by_default(
    cifar, tmp_path, cache_folder
):
    assert (cifar.reader.filename, cifar.known_md5) == (cifar.which.file, cifar.which.md5)
    assert (datasets.CIFAR10.filename, datasets.CIFAR10.tgz_md5) == (
        cifar10.CIFAR10.file,
        cifar10.CIFAR10.md5,
    )
    for folder, root in ((tmp_path, str(tmp_path)), (cache_folder, None)):
        (folder / cifar.which.file).write_bytes(cifar.archive)
        cifar.check(build_dataset(cifar.which.name, root))
        for kept in cache_folder.glob("*.npz"):
            kept.unlink()


def get_error_message(cifar: SmallArchive, root: Path) -> str:
    """Return the line of the error that a load raises."""
    return line_of(build_dataset, cifar.which.name, str(root))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_missing_or_damaged_archive_without_network_is_one_line_with_the_file_to_provide(
    cifar, tmp_path, damaged
):
    which = cifar.which
    if damaged:
        (tmp_path / which.file).write_bytes(cifar.archive[:-1])
    text = get_error_message(cifar, tmp_path)
    message = (
        f"data.source={which.name}: {which.label} is not in {str(tmp_path)!r} and cannot be downloaded ("
    )
    assert text.startswith(message)
    assert f"put {which.file} (MD5 {which.md5}) into that folder" in text
    assert "data.source=synthetic needs no files" in text


def test_a_network_that_never_answers_does_not_hang(cifar, tmp_path, outside: Outside):
    """The time that is allowed is shortened to 0.3 s."""
    set_timeout = socket.setdefaulttimeout
    outside.replace(socket, "setdefaulttimeout", lambda seconds: set_timeout(seconds and 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cifar.download_from(f"http://127.0.0.1:{silent.getsockname()[1]}/x")
        assert "timed out" in get_error_message(cifar, tmp_path)
    assert socket.getdefaulttimeout() is None
