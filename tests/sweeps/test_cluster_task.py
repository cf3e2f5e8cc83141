"""What a job of an array does with its run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from ampcompare.sweeps import worker
from ampcompare.sweeps.cluster import task
from ampcompare.sweeps.cluster.array import Array, held
from ampcompare.sweeps.cluster.task import RunTask
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.process import Launch, ended
from ampcompare.sweeps.table import Row


@pytest.fixture
def array(tmp_path: Path) -> Array:
    found = Array(tmp_path)
    found.make()
    (tmp_path / "logs").mkdir()
    return found


def run_task(array: Array, code: str) -> RunTask:
    """Of a program that says when it begins, and does what `code` says."""
    begun = array.folder / "begun"
    text = f"import os, signal, subprocess, sys; open({str(begun)!r}, 'a').write('x'); {code}"
    command = (sys.executable, "-c", text)
    sweep = Sweep(Path("s.yaml"), "mine", "grid", (), command=command)
    return RunTask(Launch(sweep, array.folder, (), {}, here=False), Row(0, "theone"), 1.0)


def begun(array: Array) -> int:
    path = array.folder / "begun"
    return len(path.read_text()) if path.exists() else 0


def test_a_run_that_somebodys_signal_ends_is_tried_once_more(array: Array, monkeypatch):
    monkeypatch.setattr(worker, "SAME_SIGNAL_SECONDS", 0)
    first = f"os.path.getsize({str(array.folder / 'begun')!r}) > 1 or os.kill(os.getpid(), signal.SIGKILL)"
    assert run_task(array, first)() == 0
    assert (begun(array), ended(array.folder, "theone")) == (2, "finished")


def test_a_run_that_every_start_kills_has_failed_at_last(array: Array, monkeypatch):
    monkeypatch.setattr(worker, "SAME_SIGNAL_SECONDS", 0)
    with pytest.raises(SystemExit) as caught:
        run_task(array, "os.kill(os.getpid(), signal.SIGHUP)")()
    assert (caught.value.code, begun(array), ended(array.folder, "theone")) == (129, 2, "failed")


def test_the_schedulers_signal_may_reach_the_program_first(array: Array, monkeypatch):
    """It is interrupted then, not failed, and not tried once more."""
    monkeypatch.setattr(task, "WAIT_SECONDS", 0)
    monkeypatch.setattr(worker, "SAME_SIGNAL_SECONDS", 600)  # until the signal is there, however slow all is
    later = ["sh", "-c", f"sleep 0.5; kill -TERM {os.getpid()}"]
    code = f"subprocess.Popen({later!r}, start_new_session=True); os.kill(os.getpid(), signal.SIGTERM)"
    with pytest.raises(SystemExit) as caught:
        run_task(array, code)()
    assert (caught.value.code, begun(array), ended(array.folder, "theone")) == (143, 1, None)


def test_a_warning_ends_a_program_of_others_by_sigterm_alone(array: Array, monkeypatch):
    """Slurm's own reaches it, too, and would end it at once."""
    monkeypatch.setattr(task, "WAIT_SECONDS", 0)
    orderly = array.folder / "orderly"
    code = f"signal.signal(15, lambda *a: sys.exit(open({str(orderly)!r}, 'w').close()))"
    made = run_task(array, f"{code}; os.kill(os.getpid(), 12); os.kill({os.getpid()}, 12); signal.pause()")
    made.patience = 600
    again: list[RunTask] = []
    before = signal.signal(signal.SIGUSR2, lambda *a: again.append(made.checkpoint().function))
    try:
        with pytest.raises(SystemExit):
            made()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (len(again), begun(array), orderly.exists(), ended(array.folder, "theone")) == (1, 1, True, None)
    assert again[0].row.run_id == "theone"


def test_a_run_that_goes_on_in_another_job_is_left_alone(
    array: Array, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "HELD_SECONDS", 0)
    with held(array.lock("theone")), pytest.raises(SystemExit) as caught:
        run_task(array, "pass")()
    assert caught.value.code == 75
    assert capsys.readouterr().out == "run theone goes on in another job: nothing is done here\n"
    assert (begun(array), ended(array.folder, "theone")) == (0, None)


def test_a_drive_that_knows_no_locks_is_no_hindrance(array: Array, monkeypatch: pytest.MonkeyPatch):
    def unknown(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    assert run_task(array, "pass")() == 0
    assert ended(array.folder, "theone") == "finished"
