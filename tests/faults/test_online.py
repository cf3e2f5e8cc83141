"""Runs with a server that are killed or preempted: one curve there, without double or missing rows."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.quick import ONLINE, QUICK
from support.wandb_server import Server
from support.wandb_server.clients import environment, wait_until

from ampcompare import load_runs

WORDS = (*ONLINE, "backend=native", "data.train_limit=64", "log.every=3")
STEP = "global_step"


def rows(server: Server, run_id: str) -> list[dict[str, Any]]:
    """Return the rows of a run on the server, without times and without what W&B adds."""
    hidden = ("_", "time/", "throughput/", "memory/")
    return [{k: v for k, v in row.items() if not k.startswith(hidden)} for row in server.runs[run_id].history]


def env(server: Server, folder: Path, run_id: str) -> dict[str, str]:
    return environment(server, folder, WANDB_RUN_ID=run_id)


def when(true: Callable[[], bool], action: Callable[[int], None]) -> Callable[[int], None]:
    """Have something done, with the process of a run, once something is true."""

    def begun(pid: int) -> None:
        def wait() -> None:
            wait_until(true)
            action(pid)

        threading.Thread(target=wait, daemon=True).start()

    return begun


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_curve_on_the_server(wandb_server: Server, tmp_path: Path):
    """Once with the server ahead of the checkpoint, once with the server behind it."""

    def play(run_id: str, *words: str, **job: Any) -> dict[str, Any]:
        folder = tmp_path / run_id
        folder.mkdir(exist_ok=True)
        return faults.run(
            *WORDS, *words, f"output_dir={folder}", env=env(wandb_server, folder, run_id), **job
        )

    assert play("whole")["code"] == 0
    expected = rows(wandb_server, "whole")
    assert len(expected) > 8

    # The checkpoint is that of the first epoch; the server gets what came after it, too.
    beyond = next(n for n, row in enumerate(expected) if row[STEP] > 8) + 1
    begun = when(
        lambda: "ahead" in wandb_server.runs and len(rows(wandb_server, "ahead")) > beyond,
        lambda pid: os.kill(pid, signal.SIGKILL),
    )
    assert play("ahead", block_at=14, begun=begun)["code"] == -9
    assert play("ahead", "resume=auto")["code"] == 0
    assert rows(wandb_server, "ahead") == expected

    # Killed at once, the server has less than the checkpoint.
    later = {"WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "60"}
    folder = tmp_path / "behind"
    folder.mkdir()
    given = env(wandb_server, folder, "behind") | later
    assert faults.run(*WORDS, f"output_dir={folder}", env=given, kill_at=10)["code"] == -9
    assert len(rows(wandb_server, "behind")) < next(n for n, row in enumerate(expected) if row[STEP] > 8)
    assert play("behind", "resume=auto")["code"] == 0
    assert rows(wandb_server, "behind") == expected


@pytest.mark.slow
def test_a_preempted_run_ends_though_the_server_hangs(wandb_server: Server, tmp_path: Path):
    """A stopped run has less time to send its end than the server hangs."""

    def terminate(pid: int) -> None:
        wandb_server.hang()
        os.kill(pid, signal.SIGTERM)

    def has_rows() -> bool:
        return "run" in wandb_server.runs and bool(wandb_server.runs["run"].history)

    words = (*WORDS, "epochs=100000", "eval.every=1000", "diagnostics.every=null", "log.every=50")
    given = env(wandb_server, tmp_path, "run") | {"WANDB_FINISH_TIMEOUT": "9000"}
    done = faults.run(*words, f"output_dir={tmp_path}", env=given, begun=when(has_rows, terminate))
    assert done["code"] == 143, done
    assert "(SIGTERM); continue with resume=auto" in done["said"]
    (record,) = load_runs([tmp_path])
    assert f"interrupted at step {record.history['global_step'].max():.0f} " in done["said"]
    assert "is complete on this disk, but not on the server" in done["said"]


def test_the_second_ctrl_c_ends_at_once(tmp_path: Path):
    done = faults.run(*QUICK, f"output_dir={tmp_path}", signal_at=[3, signal.SIGINT], twice=True)
    assert done["code"] == 130
    assert "interrupted at step 3" in done["said"]
    assert "Traceback" not in done["said"]
