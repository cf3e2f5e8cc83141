"""What was read of a run is kept, and never taken for another run, or for the same one as it was before."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.client_form import client_records
from support.log_writer import frame
from support.odd_records import records
from support.offline_runs import plan

from ampcompare.records import kept, load_runs, pool, signs
from ampcompare.records.offline import read_fragment
from ampcompare.records.packing import MAGIC, pack, unpack
from ampcompare.records.run import Fragment, RunRecord

LOADS = """
import sys
from ampcompare.records import load_runs
print(sum(len(run.history) for run in load_runs(sys.argv[1:])))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "WORTH_BYTES", 0)
    return tmp_path / "cache" / "runs"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, not found in the cache."""
    names: list[str] = []
    whole = pool.read_signed

    def read(path: Path, **options: Any) -> tuple[Fragment, str]:
        names.append(path.name)
        return whole(path, **options)

    monkeypatch.setattr(pool, "read_signed", read)
    return names


def write(folder: Path, number: int = 1, **changes: Any) -> Path:
    """The file of a finished run of an hour ago."""
    run_id = f"r{number}"
    made = plan("native", number, steps=100) | changes
    path = folder / f"offline-run-20260101_00000{number}-{run_id}" / f"run-{run_id}.wandb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame(client_records(made, run_id)))
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def as_text(value: Any) -> str:
    """All that is in a run, a fragment or an array."""
    if isinstance(value, RunRecord):
        return as_text(
            {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "observe"}
        )
    if dataclasses.is_dataclass(value):
        return as_text({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, dict):
        return repr([(key, as_text(inner)) for key, inner in value.items()])
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.tolist()!r}"
    return value.to_json() if hasattr(value, "to_json") else repr(value)


def test_second_load_reads_no_run_again_and_says_the_same(tmp_path, reads):
    for number in range(3):
        write(tmp_path / "runs", number)
    first = load_runs([tmp_path / "runs"])
    assert len(reads) == 3
    again = load_runs([tmp_path / "runs"])
    assert len(reads) == 3
    assert [as_text(run) for run in again] == [as_text(run) for run in first]


def test_what_comes_back_can_be_written_to(tmp_path):
    path = write(tmp_path)
    found = unpack(pack(read_fragment(path)), path)
    found.columns["train/loss"][0] = 3.0
    assert found.columns["train/loss"][0] == 3.0


def test_changed_file_is_read_again_even_with_the_size_and_time_of_before(tmp_path, reads):
    path = write(tmp_path)
    status = path.stat()
    load_runs([path])
    content = path.read_bytes()
    records = client_records(plan("native", 1, steps=100), "r1")
    changed = frame([record.replace(b"0.1", b"0.2", 1) for record in records])
    assert len(changed) == len(content)
    assert changed != content
    with path.open("r+b") as file:  # in place: the same inode
        file.write(changed)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
    (run,) = load_runs([path])
    assert len(reads) == 2
    assert as_text(run.history) == as_text(load_runs([path])[0].history)


def test_longer_file_is_read_again(tmp_path, reads):
    path = write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000])
    os.utime(path, (time.time() - 3600,) * 2)
    rows = len(load_runs([path])[0].history)
    path.write_bytes(whole)
    assert len(load_runs([path])[0].history) > rows
    assert len(reads) == 2


def test_moved_run_is_found_and_says_where_it_is_now(tmp_path, reads):
    path = write(tmp_path / "here")
    load_runs([path])
    shutil.move(tmp_path / "here", tmp_path / "there")
    (run,) = load_runs([tmp_path / "there"])
    assert len(reads) == 1
    assert run.paths == (tmp_path / "there" / path.parent.name / path.name,)


def test_copy_under_another_name_is_read(tmp_path, reads):
    """A file's name stands for the id where no record says one."""
    path = write(tmp_path)
    load_runs([path])
    other = path.with_name("run-other.wandb")
    shutil.copyfile(path, other)
    load_runs([other])
    assert reads == [path.name, other.name]


def test_run_that_may_still_be_written_to_is_not_kept(tmp_path, reads, folder):
    path = write(tmp_path, kill=True)
    os.utime(path)
    assert load_runs([path])[0].state == "running"
    assert not folder.exists()
    os.utime(path, (time.time() - 3600,) * 2)
    assert load_runs([path])[0].state == "crashed"
    os.utime(path)
    assert load_runs([path])[0].state == "running"  # its state is of now
    assert len(reads) == 2


def test_file_without_a_run_is_not_kept(tmp_path, folder):
    path = write(tmp_path)
    path.write_bytes(frame(client_records(plan("native"), "r1")[4:]))
    os.utime(path, (time.time() - 3600,) * 2)
    assert len(load_runs([path])[0].history) > 0
    assert not folder.exists()


def test_small_files_are_not_kept(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(kept, "WORTH_BYTES", 10_000_000)
    load_runs([write(tmp_path)])
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
        lambda content: content.replace(MAGIC, b"ampcompare run 9\n"),
        lambda content: pickle.dumps({"a": 1}),
    ],
)
def test_damaged_entry_is_said_in_one_line_and_made_again(tmp_path, folder, reads, caplog, damage):
    path = write(tmp_path)
    (before,) = load_runs([path])
    (entry,) = folder.iterdir()
    content = entry.read_bytes()
    entry.write_bytes(damage(content))
    with caplog.at_level(logging.WARNING, "ampcompare"):
        (run,) = load_runs([path])
    assert as_text(run) == as_text(before)
    assert len(reads) == 2
    assert [str(path) in r.getMessage() and "is not usable" in r.getMessage() for r in caplog.records] == [
        True
    ]
    assert entry.read_bytes() == content


@settings(max_examples=100)
@given(data=st.data())
def test_malformed_entry_with_a_right_checksum_is_a_value_error_or_a_fragment(data):
    """Only who writes it on purpose; nothing else is raised."""
    parts = (
        st.none()
        | st.integers(-9, 2**70)
        | st.text(max_size=3)
        | st.sampled_from(["json", "fields", "tuple"])
    )
    head = st.recursive(
        parts, lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=4), x, max_size=2)
    )
    kinds = st.sampled_from(
        ["json", "tuple", "datetime", "dict", "objects", "float64", "int64", "fields", "x"]
    )
    fields = st.dictionaries(
        st.sampled_from(["columns", "rows", "machine", "x", "tags"]), st.dictionaries(kinds, head, max_size=2)
    )
    text = json.dumps({"stem": "run-a", "fields": data.draw(fields)}).encode()
    content = len(text).to_bytes(8, "little") + text + data.draw(st.binary(max_size=20))
    with contextlib.suppress(ValueError):
        unpack(MAGIC + hashlib.sha256(content).digest() + content, Path("run-a.wandb"))


@settings(max_examples=100)
@given(payloads=st.lists(records(), max_size=20))
def test_whatever_was_read_comes_back_the_same(tmp_path, payloads):
    path = tmp_path / "run-a.wandb"
    path.write_bytes(frame(payloads))
    fragment = read_fragment(path, now=0)
    found = unpack(pack(fragment), path)
    outside = {"last_write": fragment.last_write, "state": fragment.state}
    assert as_text(dataclasses.replace(found, **outside)) == as_text(fragment)


@pytest.mark.parametrize("name", ["usual", "odd", "failed"])
def test_real_runs_come_back_the_same(real_runs, name):
    fragment = read_fragment(real_runs[name])
    found = unpack(pack(fragment), real_runs[name])
    outside = {"last_write": fragment.last_write, "state": fragment.state}
    assert as_text(dataclasses.replace(found, **outside)) == as_text(fragment)


def test_other_code_reads_again(tmp_path, reads, monkeypatch):
    path = write(tmp_path)
    load_runs([path])
    monkeypatch.setattr(signs, "_code", lambda: b"another version")
    load_runs([path])
    assert len(reads) == 2


def test_cache_that_cannot_be_is_one_line_and_no_error(tmp_path, monkeypatch, caplog):
    for number in range(3):
        write(tmp_path / "runs", number)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "ampcompare"):
        assert len(load_runs([tmp_path / "runs"])) == 3
    assert ["cannot keep what was read" in r.getMessage() for r in caplog.records] == [True]


def test_with_a_cache_of_a_user_that_is_none_runs_are_read(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setenv("AMPCOMPARE_CACHE", "~nosuch-user/x")
    assert len(load_runs([path])) == 1


def test_without_a_home_folder_runs_are_read(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setattr(
        kept, "cache_folder", lambda: (_ for _ in ()).throw(OSError("there is no home folder"))
    )
    assert len(load_runs([path])) == 1


def test_kept_runs_in_a_folder_that_may_not_be_written_to_are_used(tmp_path, folder, reads, monkeypatch):
    path = write(tmp_path)
    load_runs([path])

    def refuse(*_: object, **__: object) -> None:  # root may write anywhere, so the system is not asked
        raise PermissionError("may not be written to")

    monkeypatch.setattr(kept.os, "utime", refuse)
    load_runs([path])
    assert len(reads) == 1


def test_those_not_used_for_longest_go(tmp_path, folder, monkeypatch, reads):
    paths = [write(tmp_path, number) for number in range(4)]
    load_runs(paths[:3])
    sizes = [entry.stat().st_size for entry in folder.iterdir()]
    monkeypatch.setattr(kept, "MOST_BYTES", int(2.5 * max(sizes)))
    for entry in folder.iterdir():
        os.utime(entry, (time.time() - 1000,) * 2)
    load_runs([paths[1]])  # used now
    load_runs([paths[3]])
    del reads[:]
    load_runs([paths[1]])
    load_runs([paths[3]])
    assert reads == []
    assert len(list(folder.iterdir())) == 2


def test_what_a_killed_process_left_goes_a_day_later(tmp_path, folder):
    folder.mkdir(parents=True)
    (folder / "1-a.run.old.tmp").write_text("x")
    os.utime(folder / "1-a.run.old.tmp", (time.time() - 25 * 3600,) * 2)
    (folder / "1-a.run.new.tmp").write_text("x")
    load_runs([write(tmp_path)])
    assert {entry.suffix for entry in folder.iterdir()} == {".run", ".tmp"}
    assert not (folder / "1-a.run.old.tmp").exists()


def test_folder_deleted_meanwhile_costs_nothing_but_time(tmp_path, folder, reads):
    path = write(tmp_path)
    load_runs([path])
    cache = kept.KeptFragments()
    shutil.rmtree(folder)
    assert cache.find([path]) == {}
    load_runs([path])
    assert len(reads) == 2
    assert len(list(folder.iterdir())) == 1


def test_two_processes_at_once_keep_whole_entries(tmp_path, folder):
    paths = [
        str(write(tmp_path / "runs", number, rows=plan("native", steps=5000)["rows"])) for number in range(3)
    ]
    processes = [
        subprocess.Popen([sys.executable, "-c", LOADS, *paths], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate()[0] for process in processes]
    assert len(set(said)) == 1
    entries = list(folder.iterdir())
    assert len(entries) == 3
    for entry, path in zip(sorted(entries), paths, strict=False):
        assert entry.suffix == ".run"
        unpack(entry.read_bytes(), Path(path))


def test_what_is_signed_is_what_was_read(tmp_path):
    path = write(tmp_path)
    sign = signs.sign_file(path)
    with path.open("rb") as file:
        signed = signs.SignedFile(file)
        path.write_bytes(b"another file")
        while signed.read(1000):
            pass
    assert signed.sign() == signs.sign_file(path) != sign
