"""The cache only ever helps: damage, rivals and full disks cost time and one line, never data."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.image_files import write_archive

from ampcompare.data.dataset import build_dataset
from ampcompare.program.files import cache_folder as find_cache_folder


def load(root: Path):
    return build_dataset("image_folder", str(root))


def stored_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def decodings(monkeypatch) -> list[str]:
    """Grows by one with each load that has to decode the images."""
    from ampcompare.data.sources import image_folder

    seen: list[str] = []
    read = image_folder._read
    monkeypatch.setattr(image_folder, "_read", lambda path, where: seen.append(where) or read(path, where))
    return seen


def test_second_load_decodes_nothing_and_gives_the_same(folder, decodings, caplog):
    first, second = load(folder), load(folder)
    assert len(decodings) == 1
    assert not caplog.messages
    assert (first.classes, first.fingerprint) == (second.classes, second.fingerprint)
    for split in ("train", "test"):
        assert torch.equal(getattr(first, split).images, getattr(second, split).images)
        assert torch.equal(getattr(first, split).labels, getattr(second, split).labels)


def test_limits_share_one_cached_file(folder, decodings, cache_folder):
    load(folder)
    build_dataset("image_folder", str(folder), train_limit=2)
    assert len(decodings) == 1
    assert len(list(cache_folder.iterdir())) == 1


def test_a_moved_archive_is_known_again_and_a_changed_one_is_not(files, tmp_path, decodings, png):
    path = write_archive(tmp_path / "a.tar", files)
    load(path)
    load(path.rename(tmp_path / "b.tar"))
    assert len(decodings) == 1
    files["train/schwäne/bild 0 ä.png"] = png(77)
    load(write_archive(tmp_path / "a.tar", files))
    assert len(decodings) == 2


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "garbage": lambda content: b"\x00\xff" * 500,
    "text": lambda content: b"these are not the images you are looking for",
    "pixel changed": lambda content: flipped(content, content.index(b"train_images.npy") + 400),
    "label changed": lambda content: flipped(content, content.index(b"train_labels.npy") + 200),
    "pickled object": lambda content: np.lib.format.MAGIC_PREFIX + b"\x01\x00",
}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_noticed_in_one_line_and_rebuilt(folder, cache_folder, decodings, caplog, damage):
    expected = load(folder)
    path = stored_file(cache_folder)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    again = load(folder)
    assert torch.equal(again.train.images, expected.train.images)
    assert torch.equal(again.train.labels, expected.train.labels)
    (message,) = caplog.messages
    assert str(path) in message
    assert "not usable" in message
    assert "\n" not in message
    load(folder)
    assert len(decodings) == 2


class Spy:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def test_a_pickle_in_the_cache_is_never_executed(folder, cache_folder, tmp_path, caplog):
    load(folder)
    path = stored_file(cache_folder)
    with np.load(path) as stored:
        contents = dict(stored)
    contents["classes"] = np.array([Spy(tmp_path / "trace")], dtype=object)
    np.savez(path, **contents)
    load(folder)
    assert "not usable" in caplog.text
    assert not (tmp_path / "trace").exists()


def test_unusable_cache_folder_is_said_once_and_the_data_loaded(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load(folder).train) == 6
    (message,) = caplog.messages
    assert "cannot keep the decoded data in" in message
    assert "set AMPCOMPARE_CACHE" in message


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "own"))
    assert find_cache_folder() == tmp_path / "own"
    monkeypatch.setenv("AMPCOMPARE_CACHE", "")
    assert find_cache_folder() == tmp_path / "xdg" / "ampcompare"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_cache_folder() == tmp_path / "home" / ".cache" / "ampcompare"


def run(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


RIVAL = """
import logging, os, pathlib, sys, time
logging.basicConfig()
root, meeting, name, other = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
from ampcompare.data.dataset import build_dataset
from ampcompare.data.sources import image_folder
read = image_folder._read
def decode_together(path, where):
    (meeting / name).touch()
    while not (meeting / other).exists():
        time.sleep(0.01)
    return read(path, where)
image_folder._read = decode_together
print(build_dataset("image_folder", root).fingerprint)
"""


@pytest.mark.slow
def test_two_processes_that_build_one_cache_at_once_both_succeed(folder, cache_folder, tmp_path, decodings):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    rivals = [run(RIVAL, folder, meeting, name, other) for name, other in (("a", "b"), ("b", "a"))]
    results = [rival.communicate() for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0], results
    assert sorted(path.name for path in meeting.iterdir()) == ["a", "b"]
    assert [errors for _, errors in results] == ["", ""]
    expected = load(folder).fingerprint
    assert [output.strip() for output, _ in results] == [expected] * 2
    assert stored_file(cache_folder).suffix == ".npz"
    assert not decodings


FULL_DISK = """
import logging, resource, sys
logging.basicConfig()
from ampcompare.data.dataset import build_dataset
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
print(len(build_dataset("image_folder", sys.argv[1]).train))
"""


def test_full_disk_costs_a_line_and_leaves_nothing_behind(folder, cache_folder):
    process = run(FULL_DISK, folder)
    output, errors = process.communicate()
    assert (process.returncode, output.strip()) == (0, "6"), errors
    assert len(errors.splitlines()) == 1
    assert "cannot keep the decoded data" in errors
    assert list(cache_folder.iterdir()) == []
