"""The files of CIFAR-10 and CIFAR-100, made small: found, fetched, verified, and the line when that fails."""

import functools
import hashlib
import http.server
import io
import pickle
import socket
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from ampcompare.data.dataset import build_dataset
from ampcompare.data.sources import SOURCES, cifar10
from ampcompare.errors import UserError

BOTH = {which.name: which for which in (cifar10.CIFAR10, cifar10.CIFAR100)}


class SmallArchive:
    """A miniature of the archive as its authors made it, with torchvision's class told of its checksums."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: cifar10.Archive) -> None:
        self.which, self.reader = which, getattr(datasets, which.name.upper())
        count = SOURCES[which.name].classes
        self.known_md5 = self.reader.tgz_md5
        self.classes = tuple(f"class {i}" for i in range(count))
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (60, 3072), np.uint8)
        self.labels = [i * 7 % count for i in range(60)]
        is_ten = which is cifar10.CIFAR10
        train = [f"data_batch_{i}" for i in range(1, 6)] if is_ten else ["train"]
        ends = [*range(0, 51, 50 // len(train)), 60]
        test, meta = ("test_batch", "batches.meta") if is_ten else ("test", "meta")
        key = "labels" if is_ten else "fine_labels"
        parts = {
            name: pickle.dumps({"data": self.pixels[first:end], key: self.labels[first:end]}, protocol=2)
            for name, first, end in zip([*train, test], ends[:-1], ends[1:], strict=True)
        }
        names = self.reader.meta["key"]
        parts[meta] = pickle.dumps({names: self.classes}, protocol=2)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in parts.items():
                member = tarfile.TarInfo(f"{self.reader.base_folder}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        self.archive = buffer.getvalue()
        sums = {name: hashlib.md5(data).hexdigest() for name, data in parts.items()}
        monkeypatch.setattr(self.reader, "tgz_md5", hashlib.md5(self.archive).hexdigest())
        monkeypatch.setattr(self.reader, "train_list", [[name, sums[name]] for name in train])
        monkeypatch.setattr(self.reader, "test_list", [[test, sums[test]]])
        monkeypatch.setattr(self.reader, "meta", {**self.reader.meta, "md5": sums[meta]})
        with socket.socket() as free:  # nothing is fetched unless a test says so
            free.bind(("127.0.0.1", 0))
            self.come_from(monkeypatch, free.getsockname()[1])

    def come_from(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        monkeypatch.setattr(self.reader, "url", f"http://127.0.0.1:{port}/{self.which.file}")

    def check(self, dataset) -> None:
        images = self.pixels.reshape(60, 3, 32, 32)
        np.testing.assert_array_equal(dataset.train.images.numpy(), images[:50])
        np.testing.assert_array_equal(dataset.test.images.numpy(), images[50:])
        assert dataset.train.labels.tolist() + dataset.test.labels.tolist() == self.labels
        assert dataset.classes == self.classes


@pytest.fixture(params=BOTH)
def cifar(request, monkeypatch) -> SmallArchive:
    return SmallArchive(monkeypatch, BOTH[request.param])


def test_archive_is_read_without_network_and_found_in_the_cache_folder_by_default(
    cifar, tmp_path, cache_folder
):
    assert (cifar.reader.filename, cifar.known_md5) == (cifar.which.file, cifar.which.md5)
    for folder, root in ((tmp_path, str(tmp_path)), (cache_folder, None)):
        (folder / cifar.which.file).write_bytes(cifar.archive)
        cifar.check(build_dataset(cifar.which.name, root))
        for kept in cache_folder.glob("*.npz"):
            kept.unlink()


def test_archive_is_fetched_where_there_is_a_network(cifar, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / cifar.which.file).write_bytes(cifar.archive)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cifar.come_from(monkeypatch, server.server_port)
        cifar.check(build_dataset(cifar.which.name, str(tmp_path / "data")))
        server.shutdown()


def message_of(cifar: SmallArchive, root: Path) -> str:
    with pytest.raises(UserError) as error:
        build_dataset(cifar.which.name, str(root))
    return str(error.value)


@pytest.mark.parametrize("damaged", [False, True])
def test_no_network_and_no_or_a_damaged_archive_says_what_to_put_where(cifar, tmp_path, damaged):
    which = cifar.which
    if damaged:
        (tmp_path / which.file).write_bytes(cifar.archive[:-1])
    text = message_of(cifar, tmp_path)
    said = f"data.source={which.name}: {which.label} is not in {str(tmp_path)!r} and cannot be fetched ("
    assert text.startswith(said)
    assert f"put {which.file} (MD5 {which.md5}) into that folder" in text
    assert "data.source=synthetic needs no data" in text


def test_a_network_that_never_answers_does_not_hang(cifar, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "NETWORK_TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cifar.come_from(monkeypatch, silent.getsockname()[1])
        assert "timed out" in message_of(cifar, tmp_path)
    assert socket.getdefaulttimeout() is None
