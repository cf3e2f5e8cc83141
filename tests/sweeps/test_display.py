"""What a sweep says of its runs as they end, and what it reads of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ampcompare.sweeps.display import SweepDisplay
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.worker import Job


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def display_of(folder: Path, said: io.StringIO, *ended: int) -> SweepDisplay:
    file = folder / "sweep.yaml"
    file.write_text("program: x.py\nmethod: grid\nparameters: {x: {values: [1, 2, 3, 4]}}\n")
    sweep, counts = read_sweep(file), iter(ended)
    return SweepDisplay(Console(file=said, width=200), sweep, 0, sweep.total, lambda: next(counts))


def job_of(number: int, **fields: object) -> Job:
    return Job(number, f"r{number}", {"x": 1}, 1, None, began=0.0, **fields)  # type: ignore[arg-type]


def test_what_is_done_counts_the_runs_of_other_workers(tmp_path, said):
    with display_of(tmp_path, said, 3, 4) as display:
        for number in (0, 3):
            job = job_of(number)
            display.change(job)
            job.state, job.seconds = "finished", 1.0
            display.change(job)
    first, last = [line for line in said.getvalue().splitlines() if "finished" in line]
    assert "(3 of 4 done, 1.0 s left)" in first
    assert last.endswith("(4 of 4 done)")


def test_a_failed_program_is_told_with_its_error_not_with_the_good_bye_of_its_client(tmp_path, said):
    log = tmp_path / "log"
    log.write_text("Traceback\nValueError: no such layer\nwandb: You can sync this run later\nwandb: \n")
    with display_of(tmp_path, said, 1) as display:
        display.change(job_of(0, state="failed", exit_code=1, log=log))
    assert "run 0 failed (exit code 1: ValueError: no such layer); its output: " in said.getvalue()


def test_of_a_run_begun_online_and_ended_offline_the_newest_record_tells(tmp_path):
    names = ["run-20260101_100000-abc", "offline-run-20260101_110000-abc", "run-20260101_120000-abc"]
    for name in names[::-1]:
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / "run-abc.wandb").touch()
    assert [file.parent.name for file in Follower(tmp_path, "abc", None).files()] == names
