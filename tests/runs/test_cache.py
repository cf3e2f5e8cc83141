"""Records are cached, and a cached record is never used for another run, or for an older state of a run."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.fakes import plan
from support.wandb_files import client_records, frame, write_runs

from ampcompare import load_runs
from ampcompare.runs import RunRecord, loader


@pytest.fixture(autouse=True)
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that were read, not found in the cache. It is empty at first."""
    names: list[str] = []
    whole = loader.read_wandb_file

    def read(path: Path) -> RunRecord:
        names.append(path.name)
        return whole(path)

    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loader, "read_wandb_file", read)
    return names


def write(folder: Path, count: int = 1, **changes: Any) -> list[Path]:
    """Write the files of finished runs of an hour ago."""
    paths = write_runs(folder, [plan("native", number, steps=100) | changes for number in range(count)])
    for path in paths:
        os.utime(path, (time.time() - 3600,) * 2)
    return paths


def as_text(run: RunRecord) -> str:
    """Return everything that a record holds as text."""
    logged = {key: (rows.tolist(), values.tolist()) for key, (rows, values) in run.logged.items()}
    fields = (
        run.id,
        run.state,
        run.config,
        run.summary,
        run.problems,
        run.paths,
        run.started_at,
        run.machine,
    )
    return repr((logged, run.rows, *fields))


def test_a_second_load_uses_the_cache_and_gives_the_same_records(tmp_path, reads):
    write(tmp_path / "runs", 3)
    first = load_runs([tmp_path / "runs"])
    again = load_runs([tmp_path / "runs"])
    assert len(reads) == 3
    assert [as_text(run) for run in again] == [as_text(run) for run in first]


def test_a_changed_file_is_read_again_even_with_the_same_size_and_time(tmp_path, reads):
    (path,) = write(tmp_path)
    status = path.stat()
    (before,) = load_runs([path])
    time.sleep(0.02)  # a time of change of its own
    records = client_records(plan("native", 0, steps=100))
    path.write_bytes(frame([record.replace(b"0.1", b"0.2", 1) for record in records]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    (run,) = load_runs([path])
    assert (len(reads), as_text(run) == as_text(before)) == (2, False)


def test_a_run_that_may_still_be_written_to_is_not_cached(tmp_path, reads):
    (path,) = write(tmp_path, kill=True)
    for seconds, counts in ((0, (1, 2)), (3600, (3, 3))):
        os.utime(path, (time.time() - seconds,) * 2)
        for count in counts:
            load_runs([path])
            assert len(reads) == count


def test_an_unusable_cache_gives_one_warning_and_no_error(tmp_path, monkeypatch, caplog):
    write(tmp_path / "runs", 3)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file"))
    assert len(load_runs([tmp_path / "runs"])) == 3
    assert ["AMPCOMPARE_CACHE" in message for message in caplog.messages] == [True]
