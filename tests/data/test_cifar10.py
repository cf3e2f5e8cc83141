"""CIFAR-10's own files, made small: found, fetched, verified, and the one line when that fails."""

import functools
import hashlib
import http.server
import io
import pickle
import socket
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from ampcompare.data.dataset import build_dataset
from ampcompare.data.sources import cifar10
from ampcompare.errors import UserError

CLASSES = [f"class {i}" for i in range(10)]


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as the real ones are: a dict of byte strings, written by Python 2 with an old NumPy."""
    rows, columns = pixels.shape
    return b"".join(
        [
            b"\x80\x02}(",  # protocol 2, a dict, a mark
            b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
            b"U\x04data",
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01" + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb",
            b"u.",
        ]
    )


class SmallCifar10:
    """A miniature cifar-10-python.tar.gz, with torchvision's class told of its checksums."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (60, 3072), np.uint8)
        self.labels = [i % 10 for i in range(60)]
        names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        parts = {
            name: python2_pickle(self.pixels[i * 10 : i * 10 + 10], self.labels[i * 10 : i * 10 + 10])
            for i, name in enumerate(names)
        }
        parts["batches.meta"] = pickle.dumps({"label_names": CLASSES}, protocol=2)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in parts.items():
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        self.archive = buffer.getvalue()
        sums = {name: hashlib.md5(data).hexdigest() for name, data in parts.items()}
        monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(self.archive).hexdigest())
        monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in names[:5]])
        monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
        monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})

    def check(self, dataset) -> None:
        images = self.pixels.reshape(60, 3, 32, 32)
        np.testing.assert_array_equal(dataset.train.images.numpy(), images[:50])
        np.testing.assert_array_equal(dataset.test.images.numpy(), images[50:])
        assert dataset.train.labels.tolist() + dataset.test.labels.tolist() == self.labels
        assert dataset.classes == tuple(CLASSES)


@pytest.fixture
def cifar(monkeypatch) -> SmallCifar10:
    return SmallCifar10(monkeypatch)


@pytest.fixture
def offline(monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{port}/cifar-10-python.tar.gz")


def test_the_checksum_is_the_one_that_torchvision_knows():
    assert (CIFAR10.filename, CIFAR10.tgz_md5) == (cifar10.ARCHIVE, cifar10.ARCHIVE_MD5)


@pytest.mark.usefixtures("offline")
def test_archive_in_the_root_is_read_without_network(cifar, tmp_path):
    (tmp_path / cifar10.ARCHIVE).write_bytes(cifar.archive)
    cifar.check(build_dataset("cifar10", str(tmp_path)))


@pytest.mark.usefixtures("offline")
def test_archive_in_the_cache_folder_is_found_by_default(cifar, cache_folder):
    (cache_folder / cifar10.ARCHIVE).write_bytes(cifar.archive)
    cifar.check(build_dataset("cifar10"))


def test_archive_is_fetched_where_there_is_a_network(cifar, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / cifar10.ARCHIVE).write_bytes(cifar.archive)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{cifar10.ARCHIVE}")
        cifar.check(build_dataset("cifar10", str(tmp_path / "data")))
        server.shutdown()


def message_of(root: Path) -> str:
    with pytest.raises(UserError) as error:
        build_dataset("cifar10", str(root))
    return str(error.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("damaged", [False, True])
def test_no_network_and_no_or_a_damaged_archive_says_what_to_put_where(cifar, tmp_path, damaged):
    if damaged:
        (tmp_path / cifar10.ARCHIVE).write_bytes(cifar.archive[:-1])
    text = message_of(tmp_path)
    assert text.startswith(
        f"data.source=cifar10: CIFAR-10 is not in {str(tmp_path)!r} and cannot be fetched ("
    )
    assert "put cifar-10-python.tar.gz (MD5 c58f30108f718f92721af3b95e74349a) into that folder" in text
    assert "data.source=synthetic needs no data" in text


@pytest.mark.usefixtures("offline")
def test_a_root_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert f"CIFAR-10 is not in {str(tmp_path / 'file')!r}" in message_of(tmp_path / "file")


def test_a_network_that_never_answers_does_not_hang(cifar, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "NETWORK_TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{silent.getsockname()[1]}/x.tar.gz")
        assert "timed out" in message_of(tmp_path)
    assert socket.getdefaulttimeout() is None
