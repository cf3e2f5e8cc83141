"""What guards the processes of runs: they end with the process that started them, however that ends."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from support.place import Place, is_alive
from support.quick import ROOT
from support.wandb_server.clients import wait_until
from support.zygote import children_of, of_process

from ampcompare.records.sources import CHECKPOINTS
from ampcompare.sweeps.process import Guard, Launch, ended, note_end, of_others
from ampcompare.sweeps.sweep_file import Sweep
from ampcompare.sweeps.table import Row

# Two runs; then the process dies without a word.
DIES = """
import os, signal, sys
from pathlib import Path
from ampcompare.sweeps.process import Guard, Run
guard = Guard()
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
both = [Run([sys.executable, "-c", code], os.environ, Path(sys.argv[1]), guard) for _ in range(2)]
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_runs_of_a_killed_process_are_ended(tmp_path: Path):
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", DIES, str(log)], stdin=subprocess.PIPE, env=env)
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
    runs = [int(word) for word in log.read_text().split()]
    process.communicate()
    wait_until(lambda: not any(map(is_alive, runs)))


def test_a_run_whose_checkpoints_are_locked_goes_on(tmp_path: Path):
    launch = Launch(Sweep(tmp_path, "s", "grid", ()), tmp_path, (), {}, here=True)
    lock = tmp_path / CHECKPOINTS / "r1" / "lock"
    assert not launch.is_going_on("r1")
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert launch.is_going_on("r1")
    assert not launch.is_going_on("r1")


def test_a_run_that_starts_again_has_not_ended_as_it_did_before(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    note_end(tmp_path, "r1", "failed")
    assert ended(tmp_path, "r1") == "failed"
    launch = Launch(Sweep(tmp_path, "s", "grid", (), command=("true",)), tmp_path, (), {}, here=False)
    with contextlib.closing(Guard()) as guard:
        run = launch.start(Row(0, "r1"), guard)
        assert run
        assert run.wait(600) == 0
    assert ended(tmp_path, "r1") is None


def test_programs_of_others_are_told_to_stay_offline_where_there_is_no_account(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    assert of_others() == {"WANDB_MODE": "offline"}
    netrc.write_text(f"machine api.wandb.ai login user password {'a' * 40}\n")
    assert of_others() == {}


@pytest.mark.slow
def test_a_sweep_goes_on_when_its_guard_is_killed(place: Place):
    place.file(parameters={"x": {"values": [1, 2, 3]}, "hold": {"value": "all"}})
    place.hold()
    process = place.start("--workers", "2")
    place.wait_for("began", 2)
    (guard,) = [int(pid) for pid in children_of(process.pid) if b"\0-S\0" in of_process(int(pid), "cmdline")]
    os.kill(guard, signal.SIGKILL)
    place.release()
    said, _ = process.communicate()
    assert (process.returncode, len(place.events("began"))) == (0, 3), said
