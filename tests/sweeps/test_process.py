"""The process of a run and what guards it: a guard that was killed, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.place import Place, is_alive
from support.quick import ROOT
from support.wandb_server.clients import wait_until
from support.zygote import children_of, of_process

from ampcompare.sweeps.process import Guard

# Two runs, the guard killed between them; then the process dies without a word.
DIES = """
import os, signal, sys
from pathlib import Path
from ampcompare.sweeps.process import Guard, Run
guard = Guard()
def start():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    return Run([sys.executable, "-c", code], os.environ, Path(sys.argv[1]), guard)
first = start()
guard._process.kill()
guard._process.wait()
second = start()
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def guards_of(process: subprocess.Popen[str]) -> list[int]:
    """The guards that a sweep has started."""
    children = [int(child) for child in children_of(process.pid)]
    return [pid for pid in children if b"\0-S\0" in of_process(pid, "cmdline")]


def test_a_new_guard_ends_what_the_killed_one_knew(tmp_path: Path):
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", DIES, str(log)], stdin=subprocess.PIPE, env=env)
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
    runs = [int(word) for word in log.read_text().split()]
    process.communicate()
    wait_until(lambda: not any(map(is_alive, runs)))


def test_nothing_fails_where_no_new_guard_can_be_started(monkeypatch: pytest.MonkeyPatch):
    def refused() -> None:
        raise BlockingIOError("no more processes")

    guard = Guard()
    guard._process.kill()
    guard._process.wait()
    monkeypatch.setattr(guard, "_started", refused)
    guard.watch(2**30)
    guard.forget(2**30)
    guard.close()


@pytest.mark.slow
def test_a_sweep_goes_on_when_its_guard_is_killed(place: Place):
    place.file(parameters={"x": {"values": [1, 2]}, "hold": {"value": "all"}})
    place.hold()
    process = place.start("--workers", "2")
    place.wait_for("began", 2)
    (guard,) = guards_of(process)
    os.kill(guard, signal.SIGKILL)
    place.release()
    said, _ = process.communicate()
    assert (process.returncode, len(place.events("began"))) == (0, 2), said
