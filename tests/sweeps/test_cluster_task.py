"""What a job of an array does with its run."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from ampcompare.sweeps.cluster import task
from ampcompare.sweeps.cluster.array import PlannedRun
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.cluster.task import RunTask
from ampcompare.sweeps.worker import Launch


@pytest.fixture
def book(tmp_path: Path) -> Book:
    found = Book(tmp_path)
    found.make()
    (tmp_path / "logs").mkdir()
    return found


def run_task(book: Book, code: str) -> RunTask:
    """Of a program that says when it begins, and does what `code` says."""
    begun = book.folder / "begun"
    text = f"import os, signal, subprocess, sys; open({str(begun)!r}, 'a').write('x'); {code}"
    run = PlannedRun(0, "theone", {})
    of_file = ("mine", None, None, [sys.executable, "-c", text], None)
    return RunTask(Launch(book.folder, *of_file, (), {}, here=False), run, 1.0)


def begun(book: Book) -> int:
    path = book.folder / "begun"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("number", ["HUP", "TERM", "KILL"])
def test_a_run_that_somebodys_signal_ends_is_tried_once_more(book: Book, monkeypatch, number: str):
    monkeypatch.setattr(task, "SAME_SIGNAL_SECONDS", 0)
    first = f"os.path.getsize({str(book.folder / 'begun')!r}) > 1 or os.kill(os.getpid(), signal.SIG{number})"
    assert run_task(book, first)() == 0
    assert (begun(book), book.of_run("theone")) == (2, {"starts": 2, "exit_code": 0})


def test_a_run_that_every_start_kills_has_failed_at_last(book: Book, monkeypatch):
    monkeypatch.setattr(task, "SAME_SIGNAL_SECONDS", 0)
    with pytest.raises(SystemExit) as ended:
        run_task(book, "os.kill(os.getpid(), signal.SIGHUP)")()
    assert (ended.value.code, begun(book), book.ended("theone")) == (129, 2, -1)


def test_the_schedulers_signal_may_reach_the_program_first(book: Book, monkeypatch):
    """It is interrupted then, not failed, and not tried once more."""
    monkeypatch.setattr(task, "WAIT_SECONDS", 0)
    monkeypatch.setattr(task, "SAME_SIGNAL_SECONDS", 600)  # until the signal is there, however slow all is
    later = ["sh", "-c", f"sleep 0.5; kill -TERM {os.getpid()}"]
    code = f"subprocess.Popen({later!r}, start_new_session=True); os.kill(os.getpid(), signal.SIGTERM)"
    with pytest.raises(SystemExit) as ended:
        run_task(book, code)()
    assert (ended.value.code, begun(book), book.ended("theone")) == (143, 1, None)


def test_a_run_that_goes_on_in_another_job_is_left_alone(
    book: Book, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "HELD_SECONDS", 0)
    with book.held("theone"), pytest.raises(SystemExit) as ended:
        run_task(book, "pass")()
    assert ended.value.code == 75
    assert capsys.readouterr().out == "run theone goes on in another job: nothing is done here\n"
    assert (begun(book), book.of_run("theone")) == (0, {})


def test_the_lock_of_a_machine_that_has_died_is_waited_for(book: Book, monkeypatch: pytest.MonkeyPatch):
    held, real = iter([False, False, True]), Book.held

    @contextlib.contextmanager
    def late(self: Book, run_id: str):
        with real(self, run_id) as is_ours:
            yield is_ours and next(held)

    monkeypatch.setattr(Book, "held", late)
    assert run_task(book, "pass")() == 0
    assert (begun(book), book.ended("theone")) == (1, 0)


def test_a_drive_that_knows_no_locks_is_no_hindrance(book: Book, monkeypatch: pytest.MonkeyPatch):
    def unknown(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    assert run_task(book, "pass")() == 0
    assert book.ended("theone") == 0


def test_a_program_that_kills_the_guard_is_seen_through(book: Book):
    """Its parent's other child."""
    look = "[int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid() "
    look += "and os.path.exists(f'/proc/{p}/stat') and b'-S' in open(f'/proc/{p}/cmdline', 'rb').read() "
    look += "and f' {os.getppid()} ' in open(f'/proc/{p}/stat').read().rpartition(')')[2]]"
    assert run_task(book, f"[os.kill(p, signal.SIGKILL) for p in {look}] or sys.exit(4)")() == 0
    assert book.ended("theone") == 0
