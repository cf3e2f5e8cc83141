"""What of an array is in Slurm's queue: whoever submitted it, and however its user set squeue."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import Slurm

from ampcompare.errors import UserError
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.cluster.queue import tasks_in_queue


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm", kill_wait=5) as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def book(tmp_path: Path) -> Book:
    found = Book(tmp_path / "out")
    found.make()
    return found


def submit(*options: str, **env: str) -> str:
    words = ["sbatch", "--parsable", "--hold", *options, "--wrap", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **env})
    return done.stdout.strip()


def test_a_colleagues_array_is_seen_whatever_squeue_is_set_to(book: Book, slurm: Slurm, monkeypatch):
    book.keep_submitted(submit("--array=0-1", LOGNAME="colleague"), ["a", "b"])
    book.keep_submitted(submit(LOGNAME="colleague"), ["c"])
    submit("--array=0-1")
    for name, value in (("STATES", "RUNNING"), ("USERS", "me"), ("FORMAT", "%j")):
        monkeypatch.setenv(f"SQUEUE_{name}", value)
    assert tasks_in_queue(book) == {"a": "101_0", "b": "101_1", "c": "103"}
    subprocess.run(["scancel", "101_0"], check=True)
    assert tasks_in_queue(book) == {"b": "101_1", "c": "103"}


def test_the_queue_of_the_clusters_that_were_named_is_asked(book: Book, slurm: Slurm, tmp_path: Path):
    job = submit("--array=0-1", "-M", "far")
    book.keep_submitted(job, ["a", "b"], clusters="far")
    squeue = slurm.folder / "bin" / "squeue"
    squeue.write_text(squeue.read_text().replace("exec", f'echo "$@" >> "{tmp_path}/asked"; exec'))
    assert tasks_in_queue(book) == {"a": "101_0", "b": "101_1"}
    assert "-M far" in (tmp_path / "asked").read_text()


def test_nobody_is_asked_where_nothing_was_submitted(book: Book, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert tasks_in_queue(book) == {}
    book.keep_submitted("1", ["a"])
    with pytest.raises(UserError, match="what is in Slurm's queue cannot be asked"):
        tasks_in_queue(book)


def test_a_squeue_with_a_head_or_fewer_fields_is_understood(book: Book, tmp_path: Path, monkeypatch):
    """As a site's wrapper may have it."""
    fake = tmp_path / "bin" / "squeue"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'JOBID|NAME|COMMENT'\necho 'CLUSTER: here'\necho '7_0'\necho ' 7_1|x|'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    book.keep_submitted("7", ["a", "b", "c"], "", "")
    assert tasks_in_queue(book) == {"a": "7_0", "b": "7_1"}
