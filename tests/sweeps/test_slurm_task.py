"""What a job of a Slurm array does with its run."""

import os
import signal
import sys
from pathlib import Path

import pytest
from support.outside import Outside

from ampcompare.sweeps.executors.slurm_task import SlurmTask
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_end import SCHEDULER, RunEnd, end_file, read_end
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.sweep_file import Sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def task_of(folder: Path, code: str) -> SlurmTask:
    """Return the task of a program that notes its start and then runs `code`."""
    begun = folder / "begun"
    text = f"import os, signal, subprocess, sys; open({str(begun)!r}, 'a').write('x'); {code}"
    sweep = Sweep(Path("s.yaml"), "mine", "grid", (), command=(sys.executable, "-c", text))
    return SlurmTask(RunLauncher(sweep, folder, (), {}, False), (SweepRun(0, "r1"),), 1.0)


def play(folder: Path, task: str | SlurmTask) -> tuple[int, int, int | None, str | None]:
    """Run a task.

    Returns:
        The exit code of the job, how often its program began; the exit code and who asked for the end, by
        the facts about the end.
    """
    made = task_of(folder, task) if isinstance(task, str) else task
    exit_code = 0
    try:
        made()
    except SystemExit as ended:
        exit_code = ended.code
    begun, end = folder / "begun", read_end(end_file(folder, "r1", 1)) or RunEnd()
    return exit_code, len(begun.read_text()) if begun.exists() else 0, end.exit_code, end.asked_by


def test_a_run_that_a_signal_ends_ends_its_job_and_the_driver_decides(folder: Path, outside: Outside):
    outside.scale_time(20)
    hangs_up = "signal.signal(1, signal.SIG_DFL); os.kill(os.getpid(), 1)"  # the tests may run under nohup
    task = task_of(folder, hangs_up)
    assert play(folder, task) == (129, 1, -1, None)
    assert play(folder, task) == (0, 1, -1, None)  # a warning came just then, and the job is requeued


def test_a_program_that_fails_ends_its_job_with_its_exit_code(folder: Path):
    assert play(folder, "sys.exit(3)") == (3, 1, 3, None)


def test_slurms_sigterm_may_reach_the_program_first(folder: Path, outside: Outside):
    """The run is interrupted then, not failed, and not tried again."""
    outside.stop_clock()  # however slow the signal is, it arrives within the time that is allowed
    outside.shorten_sleeps(0.1)
    later = ["sh", "-c", f"sleep 0.5; kill -TERM {os.getpid()}"]
    code = f"subprocess.Popen({later!r}, start_new_session=True); os.kill(os.getpid(), signal.SIGTERM)"
    assert play(folder, code) == (143, 1, -15, SCHEDULER)


def test_a_warning_ends_a_program_of_others_by_sigterm_alone(folder: Path, outside: Outside):
    """Slurm's own warning reaches the program as well, and would end it at once."""
    outside.shorten_sleeps(0.1)
    orderly = folder / "orderly"
    code = f"signal.signal(15, lambda *a: sys.exit(open({str(orderly)!r}, 'w').close()))"
    made = task_of(folder, f"{code}; os.kill(os.getpid(), 12); os.kill({os.getpid()}, 12); signal.pause()")
    made.patience = 600
    again: list[SlurmTask] = []
    before = signal.signal(signal.SIGUSR2, lambda *a: again.append(made.checkpoint().function))
    try:
        assert play(folder, made) == (143, 1, 0, SCHEDULER)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert orderly.exists()
    same_start = [("r1", 0)]
    assert [(run.run_id, run.starts) for task in again for run in task.runs] == same_start
