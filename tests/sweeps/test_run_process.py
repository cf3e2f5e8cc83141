"""The process of a run: it ends with the process that started it, and what its end means."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from support.faults import children_of
from support.outside import Outside
from support.quick import ROOT
from support.sweep_project import is_alive
from support.wandb_server.clients import wait_until

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import CLOCK_TICK_SECONDS, GUARD, ProcessGuard
from ampcompare.sweeps.run_end import NOT_STARTED, RunEnd, end_file, read_end, state_of_end
from ampcompare.sweeps.run_launcher import RunLauncher, offline_environment
from ampcompare.sweeps.run_process import end_leftovers
from ampcompare.sweeps.run_records import RunRecords, last_line
from ampcompare.sweeps.sweep_file import Sweep

# Two runs; then the process dies without a word. The first run needs a moment to end in order.
DIES = """
import os, signal, sys
from pathlib import Path
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_process import RunProcess
guard = ProcessGuard()
orderly = "signal.signal(15, lambda *a: (time.sleep(0.3), print('saved', flush=True), sys.exit()))"
code = "import os, signal, sys, time; {}; print(os.getpid(), flush=True); time.sleep(600)"
for first in (orderly, "pass"):
    log = Path(sys.argv[1])
    command = [sys.executable, "-c", code.format(first)]
    RunProcess(command, os.environ, log, guard, log.parent, [SweepRun(0, first)])
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_runs_of_a_killed_process_are_ended_in_order(tmp_path: Path):
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", DIES, str(log)], stdin=subprocess.PIPE, env=env)
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
    runs = [int(word) for word in log.read_text().split()]
    process.communicate()
    wait_until(lambda: not any(map(is_alive, runs)))
    assert "saved" in log.read_text()


def launcher(folder: Path, *command: str) -> RunLauncher:
    sweep = Sweep(folder, "s", "grid", (), command=command or ("true",))
    return RunLauncher(sweep, folder, (), {}, False)


PREEMPTS = """
import sys, wandb
run = wandb.init(mode="offline")
run.log({"a": 1})
run.mark_preempting()
run.finish(exit_code=1)
sys.exit(1)
"""


@pytest.mark.slow
def test_a_program_that_is_marked_preempting_and_ends_above_0_is_to_be_continued(tmp_path):
    """As W&B's documentation of `mark_preempting` has it for its own sweeps."""
    (tmp_path / "wandb").mkdir()
    environment = os.environ | {"WANDB_RUN_ID": "r1", "WANDB_DIR": str(tmp_path), "WANDB_PROJECT": "p"}
    done = subprocess.run([sys.executable, "-c", PREEMPTS], env=environment, capture_output=True)
    assert done.returncode == 1, done.stderr
    run = SweepRun(0, "r1")
    record = RunRecords(tmp_path).record(run)
    assert state_of_end(run, RunEnd(1), lambda: record) == (RunState.PREEMPTED, False)


def test_what_a_killed_driver_left_is_ended_and_nothing_else(tmp_path, caplog, outside: Outside):
    """By its pid and start time, or by the run's id in its environment: a grandchild in another session."""
    environment = os.environ | {"WANDB_RUN_ID": "r1", "WANDB_DIR": str(tmp_path)}
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    named, marked, other = (
        subprocess.Popen(sleeps, env=env, start_new_session=True)
        for env in (os.environ, environment, environment | {"WANDB_RUN_ID": "r2"})
    )
    try:
        wait_until(lambda: "WANDB_RUN_ID" in psutil.Process(marked.pid).environ())
        known = {"pid": named.pid, "process_started": psutil.Process(named.pid).create_time()}
        caplog.set_level("INFO", "ampcompare")
        outside.scale_time(10)
        end_leftovers([SweepRun(0, "r1", process=known)], tmp_path, announces=True)
        message = "waiting for 2 processes left over from a sweep command that was killed"
        assert caplog.messages == [message]
        assert not is_alive(named.pid)
        assert not is_alive(marked.pid)
        assert other.poll() is None
        gone = {**known, "process_started": 1.0}  # the pid belongs to another process by now
        end_leftovers([SweepRun(0, "r9", process={**gone, "pid": other.pid})], tmp_path, announces=True)
        assert other.poll() is None
        assert caplog.messages == [message]
    finally:
        for process in (named, marked, other):
            process.kill()
            process.wait()


def ignores_sigterm(pid: int) -> bool:
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_guard_outlives_a_batch_systems_signals_to_every_process():
    run = subprocess.Popen(["sleep", "600"], start_new_session=True)
    others = children_of(os.getpid())
    guard = ProcessGuard()
    (pid,) = {*children_of(os.getpid())} - {*others}
    guard.watch(run.pid)
    wait_until(lambda: ignores_sigterm(pid))  # it has begun
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    collecting = threading.Thread(target=run.wait)  # else the guard waits for the run that has ended
    collecting.start()
    guard.close()  # its input ends, as by the death of the driver
    collecting.join()
    assert run.returncode == -signal.SIGTERM


def test_what_a_run_writes_after_the_guards_sigterm_is_younger_than_its_mark(tmp_path: Path):
    """Else a record that the interruption completed counts as one that was complete before."""
    written, facts = tmp_path / "written", tmp_path / "facts"
    code = f"trap 'echo > {written}; kill $!; wait $!; exit' TERM; sleep 600 & echo; wait"
    with subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdout
        run.stdout.readline()
        guard = ProcessGuard()
        guard.watch(run.pid, facts)
        collecting = threading.Thread(target=run.wait)  # else the guard waits for the run that has ended
        collecting.start()
        guard.close()
        collecting.join()
    end = read_end(facts)
    assert (end.asked_by, end.exit_code) == (GUARD, None)
    assert written.stat().st_mtime > end.asked_at + CLOCK_TICK_SECONDS


def test_the_guard_finds_a_folder_with_any_name(tmp_path: Path):
    names = ["a b", "new\nline", "-1 x", "ca\rriage", "\u2028", os.fsdecode(b"not-utf8-\xff")]
    runs = {tmp_path / name: subprocess.Popen(["sleep", "600"], start_new_session=True) for name in names}
    collecting = [threading.Thread(target=run.wait) for run in runs.values()]  # else the guard waits for them
    with closing(ProcessGuard()) as guard:
        for folder, run in runs.items():
            folder.mkdir()
            guard.watch(run.pid, folder / "facts")
        for thread in collecting:
            thread.start()
    for thread in collecting:
        thread.join()
    ends = {(run.returncode, read_end(folder / "facts").asked_by) for folder, run in runs.items()}
    assert ends == {(-signal.SIGTERM, GUARD)}


UNCOLLECTED = """
import ctypes, os, subprocess, sys, time
from contextlib import closing
from pathlib import Path
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_process import RunProcess
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
program = "import subprocess; subprocess.Popen(['true'])"
with closing(ProcessGuard()) as guard:
    log = Path(sys.argv[1])
    command = [sys.executable, "-c", program]
    run = RunProcess(command, os.environ, log, guard, log.parent, [SweepRun(0, "r")])
    while run.poll() is None:
        time.sleep(0.02)
print("ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_CHILD_SUBREAPER")
def test_a_run_has_ended_although_its_orphans_are_not_collected(tmp_path):
    """As in a container whose first process does not wait for any child."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", UNCOLLECTED, str(tmp_path / "log")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ended\n", done.stderr


def test_programs_of_others_are_told_to_stay_offline_where_there_is_no_account(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    assert offline_environment() == {"WANDB_MODE": "offline"}
    netrc.write_text(f"machine api.wandb.ai login user password {'a' * 40}\n")
    assert offline_environment() == {}


def test_what_cannot_be_started_says_why_in_its_log(tmp_path):
    made = launcher(tmp_path, "no-such-program")
    with closing(ProcessGuard()) as guard:
        assert made.start([SweepRun(0, "r1")], guard) is None
    assert "cannot be started: " in made.log_file("r1").read_text()
    assert read_end(end_file(tmp_path, "r1", 1)) == RunEnd(NOT_STARTED)


def test_the_reason_of_a_failure_is_the_last_line_before_those_about_the_record(tmp_path: Path):
    log = tmp_path / "run.log"
    log.write_text(
        "step 1\nwandb: a line of the client\nerror: step 2: the training loss is NaN\nrecord: a\n"
        "sync:   wandb sync a\nsee:    ampcompare report runs\n        wandb leet a\nwandb: the end\n"
    )
    assert last_line(log) == "step 2: the training loss is NaN"
    message = f"error: step 1: {'the loss is NaN ' * 30}or continue with training.on_nan=continue"
    log.write_text(message)
    assert last_line(log) == message.removeprefix("error: ")
