"""What a sweep says of its runs as they end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.place import grid

from ampcompare.sweeps.display import SweepDisplay
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url
from ampcompare.sweeps.worker import Job


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def test_what_is_done_counts_the_runs_of_other_workers(tmp_path, said):
    mine, other = (Queue(grid(4), sqlite_url(tmp_path), "s") for _ in range(2))
    with SweepDisplay(Console(file=said, width=200), mine, mine.progress()) as display:
        for others in (2, 0):
            for _ in range(others):
                other.end(other.claim(), "finished")
            row = mine.claim()
            job = Job(row, began=0.0)
            display.change(job)
            mine.end(row, "finished")
            job.state, job.seconds = "finished", 1.0
            display.change(job)
        display.waiting(1)
        display.waiting(1)
    first, last = [line for line in said.getvalue().splitlines() if "finished" in line]
    assert "(3 of 4 done, 1.0 s left)" in first
    assert last.endswith("(4 of 4 done)")
    assert said.getvalue().count("waiting for 1 run of other workers") == 1


def test_a_failed_program_is_told_with_its_error_not_with_the_good_bye_of_its_client(tmp_path, said):
    log = tmp_path / "log"
    log.write_text("Traceback\nValueError: no such layer\nwandb: You can sync this run later\nwandb: \n")
    queue = Queue(grid(1), sqlite_url(tmp_path), "s")
    with SweepDisplay(Console(file=said, width=200), queue, queue.progress()) as display:
        display.change(Job(queue.claim(), began=0.0, log=log, state="failed", exit_code=1))
    assert "run 0 failed (exit code 1: ValueError: no such layer); its output: " in said.getvalue()
