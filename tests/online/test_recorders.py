"""Loops of people's own under the recorder that are told to end, by real signals: what the server has."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import ROOT
from support.wandb_server import Run, Server
from support.wandb_server.clients import environment

pytestmark = pytest.mark.slow

LOOP = """
import os, signal, sys
import torch
import wandb
from ampcompare import Recorder

kind, at, number = sys.argv[1], int(sys.argv[2]), signal.Signals[sys.argv[3]]


def loop(record):
    for step in range(1, 6):
        if step == at:
            print("there", flush=True)
            sys.stdin.readline()
            os.kill(os.getpid(), number)
        record.step(loss=torch.tensor(1.0), samples=8)


how = {"backend": "none", "seed": 1, "every": 1, "quiet": True}
if kind == "lent":
    run = wandb.init(project="p", settings=wandb.Settings(console="off", quiet=True))
    with Recorder(run=run, **how) as record:
        loop(record)
    run.finish()
else:
    with Recorder(project="p", **how) as record:
        loop(record)
"""


def end_of(server: Server, folder: Path, *words: str) -> tuple[Run, int]:
    """What the server has of the loop, and the exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, *words],
        cwd=ROOT,
        env=environment(server, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        (run,) = server.runs.values()
        process.communicate("\n")
    return run, process.returncode


@pytest.mark.parametrize(
    ("kind", "at", "number", "state", "code"),
    [
        ("own", "1", "SIGUSR1", "preempted", 255),
        ("lent", "4", "SIGTERM", "failed", 143),
    ],
)
def test_a_loop_that_is_told_to_end_is_preempted_by_a_warning_alone(
    wandb_server: Server, tmp_path: Path, kind: str, at: str, number: str, state: str, code: int
):
    """Of a lent run the end is its owner's: here the end of the program, of which W&B's client is told."""
    run, exit_code = end_of(wandb_server, tmp_path, kind, at, number)
    assert exit_code == 128 + signal.Signals[number]
    assert (run.state, run.preempting, run.exit_code) == (state, state == "preempted", code)
