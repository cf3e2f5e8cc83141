"""What a job of a Slurm array does with its run."""

import os
import signal
import sys
from pathlib import Path

import pytest

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.executors import slurm_task
from ampcompare.sweeps.executors.slurm_task import SlurmTask, read_end
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_process import RunLauncher
from ampcompare.sweeps.sweep_file import Sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster" / "ends").mkdir(parents=True)
    return tmp_path


def task_of(folder: Path, code: str) -> SlurmTask:
    """Return the task of a program that notes its start and then runs `code`."""
    begun = folder / "begun"
    text = f"import os, signal, subprocess, sys; open({str(begun)!r}, 'a').write('x'); {code}"
    sweep = Sweep(Path("s.yaml"), "mine", "grid", (), command=(sys.executable, "-c", text))
    return SlurmTask(RunLauncher(sweep, folder, (), {}, False), SweepRun(0, "r1"), 1.0, {})


def play(folder: Path, task: str | SlurmTask) -> tuple[int, int, RunState | None]:
    """Run a task: the exit code of the job, how often its program began, what is noted of its end."""
    made = task_of(folder, task) if isinstance(task, str) else task
    exit_code = 0
    try:
        made()
    except SystemExit as ended:
        exit_code = ended.code
    begun, end = folder / "begun", read_end(folder, SweepRun(0, "r1"))
    return exit_code, len(begun.read_text()) if begun.exists() else 0, end and end.state


def test_a_run_that_signals_end_is_started_three_times_within_its_job(folder: Path):
    assert play(folder, "os.kill(os.getpid(), signal.SIGHUP)") == (129, 3, RunState.FAILED)


def test_a_run_that_a_signal_ended_once_may_finish(folder: Path):
    first = f"os.path.getsize({str(folder / 'begun')!r}) > 1 or os.kill(os.getpid(), signal.SIGKILL)"
    assert play(folder, first) == (0, 2, RunState.FINISHED)


def test_a_program_that_fails_ends_its_job_with_its_exit_code(folder: Path):
    assert play(folder, "sys.exit(3)") == (3, 1, RunState.FAILED)


def test_slurms_sigterm_may_reach_the_program_first(folder: Path, monkeypatch):
    """The run is interrupted then, not failed, and not tried again."""
    monkeypatch.setattr(slurm_task, "REQUEUE_SECONDS", 0)
    monkeypatch.setattr(slurm_task, "SAME_SIGNAL_SECONDS", 600)  # until the signal is there, however slow
    later = ["sh", "-c", f"sleep 0.5; kill -TERM {os.getpid()}"]
    code = f"subprocess.Popen({later!r}, start_new_session=True); os.kill(os.getpid(), signal.SIGTERM)"
    assert play(folder, code) == (143, 1, None)


def test_a_warning_ends_a_program_of_others_by_sigterm_alone(folder: Path, monkeypatch):
    """Slurm's own warning reaches the program as well, and would end it at once."""
    monkeypatch.setattr(slurm_task, "REQUEUE_SECONDS", 0)
    orderly = folder / "orderly"
    code = f"signal.signal(15, lambda *a: sys.exit(open({str(orderly)!r}, 'w').close()))"
    made = task_of(folder, f"{code}; os.kill(os.getpid(), 12); os.kill({os.getpid()}, 12); signal.pause()")
    made.patience = 600
    again: list[SlurmTask] = []
    before = signal.signal(signal.SIGUSR2, lambda *a: again.append(made.checkpoint().function))
    try:
        assert play(folder, made) == (143, 1, None)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert orderly.exists()
    assert [(task.run.run_id, task.run.starts) for task in again] == [("r1", 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process ignores")
def test_a_run_that_finished_in_spite_of_a_warning_is_not_run_again_by_the_queued_job(folder: Path):
    code = f"signal.signal(15, signal.SIG_IGN); os.kill({os.getpid()}, 12); import time; time.sleep(1)"
    made = task_of(folder, code)
    made.patience = 600
    again: list[SlurmTask] = []
    before = signal.signal(signal.SIGUSR2, lambda *a: again.append(made.checkpoint().function))
    try:
        assert play(folder, made) == (0, 1, RunState.FINISHED)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert play(folder, again[0]) == (0, 1, RunState.FINISHED)
