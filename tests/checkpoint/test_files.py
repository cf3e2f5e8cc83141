"""Checkpoint files: whole or not there, checked, never executed; which are kept."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import examples

from ampcompare.checkpoint.files import CheckpointError, Store, peek, read, write

STATE: dict[str, Any] = {
    "step": 3,
    "model": {"w": torch.arange(300.0)},
    "names": ["a", None, 1.5, float("inf")],
}


def state(step: int) -> dict[str, Any]:
    return STATE | {"step": step}


def test_what_was_written_comes_back(tmp_path: Path):
    path = tmp_path / "new" / "folder" / "x.pt"
    write(path, STATE)
    for found in (read(path), peek(path), torch.load(path, weights_only=True)):
        assert torch.equal(found["model"]["w"], STATE["model"]["w"])
        assert found["names"] == STATE["names"]
    assert [p.name for p in path.parent.iterdir()] == ["x.pt"]


def test_every_cut_and_every_flipped_byte_is_noticed(tmp_path: Path):
    path = tmp_path / "x.pt"
    write(path, STATE)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:place])
        with pytest.raises(CheckpointError):
            read(path)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if place < len(whole) - 1:  # the line's end after the checksum says nothing
            with pytest.raises(CheckpointError):
                read(path)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def with_checksum(payload: bytes) -> bytes:
    import hashlib

    return payload + b"\nsha256:" + hashlib.sha256(payload).hexdigest().encode() + b"\n"


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    torch.save({"format": 1, "step": 1, "model": Evil()}, path)
    for content in (path.read_bytes(), pickle.dumps(Evil())):
        path.write_bytes(with_checksum(content))
        for reader in (read, peek):
            with pytest.raises(CheckpointError):
                reader(path)
    assert not (tmp_path / "executed").exists()


@examples(100, 1000)
def test_mutated_files_raise_nothing_but_checkpoint_errors(tmp_path: Path, examples: int):
    write(tmp_path / "x.pt", STATE)
    whole, fuzzed = (tmp_path / "x.pt").read_bytes()[:-73], tmp_path / "fuzzed.pt"

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 4))):
            place = data.draw(st.integers(0, len(content)))
            content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
        fuzzed.write_bytes(with_checksum(bytes(content)))  # by one who knows the checksum
        for reader in (read, peek):
            with contextlib.suppress(CheckpointError):
                assert isinstance(reader(fuzzed), dict)

    check()


def test_the_last_two_and_the_best_are_kept(tmp_path: Path):
    store = Store(tmp_path / "run")
    for step, best in ((1, True), (2, True), (3, False), (4, False), (5, False)):
        store.save(state(step), best=best)
    assert [p.name for p in store.files()] == [
        "step-000000005.pt",
        "step-000000004.pt",
        "step-000000002.best.pt",
    ]


def test_a_damaged_newest_one_is_said_put_aside_and_passed_over(tmp_path: Path):
    store = Store(tmp_path / "run")
    for step in (1, 2):
        store.save(state(step))
    newest = store.files()[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    said: list[str] = []
    found = store.load(said.append)
    assert found is not None
    assert found["step"] == 1
    assert len(said) == 1
    assert "step-000000002.pt is damaged" in said[0]
    store.save(state(2))  # and it does not stand in the way
    assert len(store.files()) == 2


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path):
    store = Store(tmp_path / "run")
    store.save(state(1))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for limit in (0, 100, 1000, 2000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(OSError, match="too large"):
                store.save(state(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in store.folder.iterdir()] == ["step-000000001.pt"]
    assert store.load(print)["step"] == 1  # type: ignore[index]


def test_one_process_has_a_folder_until_it_ends_however(tmp_path: Path):
    code = f"""
import os, signal
from pathlib import Path
from ampcompare.checkpoint.files import Store
store = Store(Path({str(tmp_path)!r}))
assert store.lock()
print("locked", flush=True)
signal.pause()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()
    store = Store(tmp_path)
    (tmp_path / "step-000000001.pt.1234.tmp").write_bytes(b"half")
    assert not store.lock()
    other.kill()
    other.wait()
    assert store.lock()
    assert not list(tmp_path.glob("*.tmp"))
