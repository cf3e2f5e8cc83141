"""Runs of a W&B sweep whose machine is taken away: by real signals, under W&B's own agent, which asks the
stand-in server again.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.held import HELD, WORDS
from support.wandb_server import Run, Server, Sweep
from support.wandb_server.clients import create_sweep, environment, start_agent, wait_until
from support.zygote import children_of, of_process

pytestmark = pytest.mark.slow

FORWARDING = ("--forward-signals", "--term-timeout", "60")


@dataclass
class Play:
    """One sweep of one run on a server of its own, and agents that drive it, one after the other."""

    server: Server
    folder: Path
    sweep: Sweep

    def agent(self, log: str, *options: str, held_at: int | None = HELD) -> subprocess.Popen[bytes]:
        held = {} if held_at is None else {"HOLD": str(self.hold), "HELD_AT": str(held_at)}
        return start_agent(
            self.sweep, environment(self.server, self.folder, **held), self.folder / log, *options
        )

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    @property
    def run(self) -> Run:
        (run,) = self.sweep.runs
        return run

    def wait_until_held(self, agent: subprocess.Popen[bytes], at: int = HELD) -> int:
        """The process of the run, which waits behind that step."""
        wait_until(Path(f"{self.hold}-{at}").exists)
        (pid,) = [p for p in children_of(agent.pid) if b"held_run" in of_process(p, "cmdline")]
        return pid


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    server = Server()
    held = ["${env}", "${interpreter}", "tests/support/held_run.py", "${program}", "${args_no_hyphens}"]
    definition = {
        "program": "run_experiment.py",
        "project": "p",
        "method": "grid",
        "parameters": {"backend": {"values": ["native"]}},
        "command": [*held, *WORDS, f"output_dir={tmp_path / 'runs'}"],
    }
    play = Play(server, tmp_path, create_sweep(server, definition, environment(server, tmp_path), tmp_path))
    play.hold.touch()
    yield play
    server.close()
    assert not server.errors


def test_a_run_that_w_and_b_stops_is_not_queued_again(play: Play):
    agent = play.agent("log", *FORWARDING)
    play.wait_until_held(agent)
    play.server.stop_run(play.run.id)
    assert agent.wait() == 0
    assert (play.run.state, play.run.exit_code, play.run.preempting) == ("killed", 255, False)
    said = (play.folder / "log").read_text()
    assert f"interrupted at step {HELD + 1} (" in said
    assert len(play.sweep.tried) == 1


def test_a_run_that_is_preempted_while_it_imports_is_queued_again(play: Play):
    """It has a checkpoint and rows by then, and keeps them."""
    agent = play.agent("log", "--count", "1", *FORWARDING)
    play.wait_until_held(agent)
    agent.send_signal(signal.SIGUSR1)
    agent.wait()
    assert play.run.state == "preempted", (play.folder / "log").read_text()
    before = play.run.history

    agent = play.agent("log2", "--count", "1", *FORWARDING, held_at=None)

    def importing() -> list[int]:
        return [p for p in children_of(agent.pid) if b"libtorch_python" in of_process(p, "maps")]

    wait_until(lambda: bool(importing()))
    (pid,) = importing()
    os.kill(pid, signal.SIGUSR2)
    told = play.folder / "log2"
    assert agent.wait() == 0
    assert f"interrupted before step {HELD + 2} (SIGUSR2): nothing is lost" in told.read_text()
    assert (play.run.state, play.run.preempting, play.run.history) == ("preempted", True, before)
