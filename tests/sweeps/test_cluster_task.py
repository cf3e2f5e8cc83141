"""What a job of an array does with its run."""

import os
import signal
import sys
from pathlib import Path

import pytest

from ampcompare.sweeps import worker
from ampcompare.sweeps.cluster import task
from ampcompare.sweeps.cluster.array import Array, held
from ampcompare.sweeps.cluster.task import RunTask
from ampcompare.sweeps.process import Launch, ended
from ampcompare.sweeps.sweep_file import Sweep
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


def played(array: Array, code: str | RunTask) -> tuple[int, int, str | None]:
    """The exit code of the job, how often its program began, and what is noted of its end."""
    made = run_task(array, code) if isinstance(code, str) else code
    try:
        exit_code = made()
    except SystemExit as caught:
        exit_code = caught.code
    begun = array.folder / "begun"
    return exit_code, len(begun.read_text()) if begun.exists() else 0, ended(array.folder, "theone")


def test_a_run_that_somebodys_signal_ends_is_tried_once_more_and_fails_where_every_start_is_killed(
    array: Array, monkeypatch
):
    monkeypatch.setattr(worker, "SAME_SIGNAL_SECONDS", 0)
    assert played(array, "os.kill(os.getpid(), signal.SIGHUP)") == (129, 2, "failed")
    (array.folder / "begun").unlink()
    first = f"os.path.getsize({str(array.folder / 'begun')!r}) > 1 or os.kill(os.getpid(), signal.SIGKILL)"
    assert played(array, first) == (0, 2, "finished")


def test_the_schedulers_signal_may_reach_the_program_first(array: Array, monkeypatch):
    """It is interrupted then, not failed, and not tried once more."""
    monkeypatch.setattr(task, "WAIT_SECONDS", 0)
    monkeypatch.setattr(worker, "SAME_SIGNAL_SECONDS", 600)  # until the signal is there, however slow all is
    later = ["sh", "-c", f"sleep 0.5; kill -TERM {os.getpid()}"]
    code = f"subprocess.Popen({later!r}, start_new_session=True); os.kill(os.getpid(), signal.SIGTERM)"
    assert played(array, code) == (143, 1, None)


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
        assert played(array, made) == (143, 1, None)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert orderly.exists()
    assert [one.row.run_id for one in again] == ["theone"]


def test_a_run_that_goes_on_in_another_job_is_left_alone(array: Array, monkeypatch):
    monkeypatch.setattr(task, "HELD_SECONDS", 0)
    with held(array.lock("theone")):
        assert played(array, "pass") == (75, 0, None)


def test_a_drive_that_knows_no_locks_is_no_hindrance(array: Array, monkeypatch: pytest.MonkeyPatch):
    def unknown(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    assert played(array, "pass") == (0, 1, "finished")
