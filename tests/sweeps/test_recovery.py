"""What a new driver makes of the runs that a killed one has left: none is lost, none counts twice."""

import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.fakes import plan
from support.outside import Outside
from support.scripted_executor import ScriptedExecutor, drive, finishes
from support.sweep_project import is_alive, make_grid
from support.wandb_files import write_runs
from support.wandb_server.clients import wait_until

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.driver import recover
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.pipeline import open_journal
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.run_end import RunEnd, end_file
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.sweep import Objective

METRIC = Objective(name="score", goal="maximize")
NOBODY = 2**22 + 1  # above every pid


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Return a run as `leave` made it before its driver was killed, and as the next driver recovered it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").touch()
    folder = tmp_path / "out"
    folder.mkdir()
    prepared = prepare_sweep(make_grid(1, metric=METRIC), [])

    def recovered(leave) -> SweepRun:
        with open_journal(prepared, folder) as (journal, _):
            run = journal.propose(SweepRun(0, parameters={"x": 0}))
            leave(journal, run)
        with open_journal(prepared, folder) as (journal, now):
            recover(now, journal, ScriptedExecutor(), RunRecords(folder, METRIC.name))
            return journal.state.runs[0]

    return recovered


def start(journal: Journal, run: SweepRun, pid: int = NOBODY) -> None:
    journal.append("started", index=0, run_id=run.run_id, process={"pid": pid, "process_started": 1.0})


def record(journal: Journal, run: SweepRun, age: float = 0.0, exit_code: int = 0) -> None:
    """Write the record of a run that ended `age` seconds ago."""
    rows = [{"global_step": 0, "score": 0.25}, {"global_step": 1, "score": 0.75}]
    made = plan("none", id=run.run_id) | {"rows": rows, "summary": {}, "exit_code": exit_code}
    (file,) = write_runs(journal.folder, [made])
    os.utime(file, (time.time() - age, time.time() - age))


@pytest.mark.parametrize("start_is_known", [True, False])
@pytest.mark.parametrize("facts", [None, "", '{"asked_at": 17', '{"fact of another version": 1}'])
def test_a_run_that_finished_is_not_run_again_and_keeps_its_value(left, start_is_known, facts):
    """Also if its start was not written down; a file without facts says nothing of its end."""

    def leave(journal, run):
        if start_is_known:
            start(journal, run)
        record(journal, run)
        if facts is not None:
            file = end_file(journal.folder, run.run_id, 1)
            file.parent.mkdir()
            file.write_text(facts)

    run = left(leave)
    assert (run.state, run.starts, run.value) == (RunState.FINISHED, 1, 0.75)


def test_the_process_of_a_run_whose_start_was_not_written_down_is_ended(left, outside: Outside):
    """Its program by SIGTERM, with time for a checkpoint; a child in another session by SIGKILL."""
    processes = []

    def leave(journal, run):
        environment = os.environ | {"WANDB_RUN_ID": run.run_id, "WANDB_DIR": str(journal.folder)}
        sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
        processes.append(subprocess.Popen(sleeps, env=environment, process_group=0))
        processes.append(subprocess.Popen(sleeps, env=environment, start_new_session=True))
        for process in processes:
            wait_until(lambda pid=process.pid: "WANDB_RUN_ID" in psutil.Process(pid).environ())
        outside.scale_time(10)

    run = left(leave)
    assert (run.state, run.starts) == (RunState.PREEMPTED, 1)  # it may have left a checkpoint
    assert not any(is_alive(process.pid) for process in processes)
    assert [process.wait() for process in processes] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_journal_in_which_nothing_has_begun_takes_another_sweep(tmp_path):
    journal = Journal(tmp_path, "mine", {"method": "grid"})
    journal.propose(SweepRun(0))
    journal.close()
    other = Journal(tmp_path, "mine", {"method": "random"})
    assert other.state.runs == {}
    other.close()


@pytest.mark.parametrize("gone", ["sweep.json", "sweep.jsonl"])
def test_a_sweep_that_has_lost_half_of_its_journal_is_not_begun_again_in_silence(tmp_path, gone):
    journal = Journal(tmp_path, "mine", {})
    run = journal.propose(SweepRun(0))
    journal.close()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"{run.run_id}.log").touch()
    (tmp_path / gone).unlink()
    with pytest.raises(UserError, match="set another output_dir="):
        Journal(tmp_path, "mine", {})


def test_a_full_disk_is_a_line_and_the_journal_can_be_read_afterwards(tmp_path):
    journal = Journal(tmp_path, "mine", {})
    run = journal.propose(SweepRun(0))
    size = (tmp_path / "sweep.jsonl").stat().st_size
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        with pytest.raises(UserError, match="cannot be written"):
            journal.append("started", index=0, run_id=run.run_id, process={})
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    again = Journal(tmp_path, "mine", {})
    assert again.state.runs == {0: run}
    again.close()


def test_a_file_that_changes_and_changes_back_still_ends_the_sweep(tmp_path, monkeypatch):
    """Points that were not run must not look finished."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "p"
    program.write_text("one")

    def ending(run: SweepRun) -> RunEnd:
        program.write_text("another")
        return finishes(run)

    executor = ScriptedExecutor(ending)
    with_driver = []
    runs = drive(tmp_path / "out", make_grid(3), executor, see=with_driver.append)
    program.write_text("one")
    assert [run.state for run in runs].count(RunState.FINISHED) == 1
    assert with_driver[0].changed_code == ["p"]
