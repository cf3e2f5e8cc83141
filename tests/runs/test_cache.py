"""Records are cached, and a cached record is never used for another run, or for an older state of a run."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.fakes import plan
from support.outside import Outside
from support.wandb_files import client_records, frame, write_runs

from ampcompare import load_runs
from ampcompare.runs import RunRecord


class Loads:
    """Loads runs, and counts the files that are read and not found in the cache.

    Attributes:
        reads: The number of files read so far.
    """

    def __init__(self, outside: Outside) -> None:
        self._opened = 0
        self.reads = 0
        outside.call_before(Path, "open", self._note)

    def _note(self, path: Path, mode: str = "r", *_: Any, **__: Any) -> None:
        self._opened += path.suffix == ".wandb" and mode == "rb"

    def __call__(self, source: Path) -> list[RunRecord]:
        """Return the runs of a folder or file. Every load looks at the first bytes of each file."""
        self._opened = 0
        runs = load_runs([source])
        self.reads += self._opened - len(runs)
        return runs


@pytest.fixture
def load(tmp_path: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Return what loads runs, with an empty cache."""
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "cache"))
    return Loads(outside)


def write(folder: Path, count: int = 1, **changes: Any) -> list[Path]:
    """Write the files of finished runs of an hour ago."""
    paths = write_runs(folder, [plan("native", number, steps=100) | changes for number in range(count)])
    for path in paths:
        os.utime(path, (time.time() - 3600,) * 2)
    return paths


def test_a_second_load_uses_the_cache_and_gives_the_same_records(tmp_path, load):
    write(tmp_path / "runs", 3)
    first, again = (load(tmp_path / "runs") for _ in range(2))
    assert load.reads == 3
    for run, other in zip(first, again, strict=True):
        pd.testing.assert_frame_equal(run.history, other.history)
        assert dataclasses.replace(run, logged={}) == dataclasses.replace(other, logged={})


def test_a_changed_file_is_read_again_even_with_the_same_size_and_time(tmp_path, load):
    (path,) = write(tmp_path)
    status = path.stat()
    load(path)
    time.sleep(0.02)  # a time of change of its own
    records = client_records(plan("native", 0, steps=100))
    path.write_bytes(frame([record.replace(b"0.1", b"0.2", 1) for record in records]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    load(path)
    assert load.reads == 2


def test_a_run_that_may_still_be_written_to_is_not_cached(tmp_path, load):
    (path,) = write(tmp_path, kill=True)
    for seconds, counts in ((0, (1, 2)), (3600, (3, 3))):
        os.utime(path, (time.time() - seconds,) * 2)
        for count in counts:
            load(path)
            assert load.reads == count


def test_an_unusable_cache_gives_one_warning_and_no_error(tmp_path, monkeypatch, caplog):
    write(tmp_path / "runs", 3)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file"))
    assert len(load_runs([tmp_path / "runs"])) == 3
    assert ["AMPCOMPARE_CACHE" in message for message in caplog.messages] == [True]
