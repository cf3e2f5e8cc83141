"""What was read of a run is kept, and never taken for another run, or for the same one as it was before."""

from __future__ import annotations

import dataclasses
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
from ampcompare.records.offline import read_fragment
from ampcompare.records.packing import MAGIC, pack, unpack
from support.client_form import client_records
from support.log_writer import frame
from support.offline_runs import plan

from ampcompare.records import kept, load_runs, pool
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


def test_moved_run_is_found_and_says_where_it_is_now(tmp_path, reads):
    path = write(tmp_path / "here")
    load_runs([path])
    shutil.move(tmp_path / "here", tmp_path / "there")
    (run,) = load_runs([tmp_path / "there"])
    assert len(reads) == 1
    assert run.paths == (tmp_path / "there" / path.parent.name / path.name,)


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


@pytest.mark.parametrize("name", ["usual", "odd", "failed"])
def test_real_runs_come_back_the_same(real_runs, name):
    fragment = read_fragment(real_runs[name])
    found = unpack(pack(fragment), real_runs[name])
    outside = {"last_write": fragment.last_write, "state": fragment.state}
    assert as_text(dataclasses.replace(found, **outside)) == as_text(fragment)


def test_cache_that_cannot_be_is_one_line_and_no_error(tmp_path, monkeypatch, caplog):
    for number in range(3):
        write(tmp_path / "runs", number)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "ampcompare"):
        assert len(load_runs([tmp_path / "runs"])) == 3
    assert ["cannot keep what was read" in r.getMessage() for r in caplog.records] == [True]


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
