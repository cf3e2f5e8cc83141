"""A disk that is full while W&B's client writes, while the run speaks: nothing is lost in silence."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.quick import QUICK
from support.wandb_server import Server
from support.wandb_server.clients import environment

from ampcompare import load_runs
from ampcompare.tracking.write_monitor import ends_whole

# Rows of 2 kB, of 6 with a look, many a second, and few checkpoints: the record is first to meet the limit.
ROWS = (*QUICK, "log.every=1", "epochs=4000", "eval.every=1000", "checkpoint.every_epochs=10")
EXPECTED = ("The file ends inside a record", "were logged twice", "differ in config: max_steps;")


def told(done: dict[str, Any]) -> list[str]:
    """Return the messages that were printed apart from the rows."""
    assert "Traceback" not in done["said"], done["said"]
    return [line for line in done["said"].splitlines() if not line.startswith(("step ", "epoch ", "wandb:"))]


def steps_of(folder: Path) -> list[float]:
    """Return the steps with a loss in the record of the only run in a folder.

    The record has exactly the problems that are expected.
    """
    (record,) = load_runs([folder])
    assert all(any(words in problem for words in EXPECTED) for problem in record.problems), record.problems
    return record.history.loc[record.history["train/loss"].notna(), "global_step"].tolist()


@pytest.mark.slow
def test_a_run_stops_on_a_full_disk_and_is_resumed_completely(tmp_path: Path):
    done = faults.run(*ROWS, f"output_dir={tmp_path}", file_limit=150_000)
    assert done["code"] == 1, done
    (line,) = [line for line in told(done) if "W&B can no longer write" in line]
    at, *saved = map(int, re.findall(r"at step (\d+)", line))
    assert f"run-{load_runs([tmp_path])[0].id}.wandb: File too large" in line
    assert line.endswith("with resume=auto")
    so_far = steps_of(tmp_path)
    assert 20 < len(so_far) < at
    assert so_far == list(range(1, len(so_far) + 1))

    done = faults.run(*ROWS, f"output_dir={tmp_path}", "resume=auto", f"max_steps={at}")
    assert done["code"] == 0, done
    assert f"resuming run {load_runs([tmp_path])[0].id} at step {[*saved, at][0]}" in done["said"]
    assert steps_of(tmp_path) == list(range(1, at + 1))


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_end_alone_fails_the_run_and_resume_completes_it(tmp_path: Path):
    assert faults.run(*ROWS, "max_steps=100", f"output_dir={tmp_path / 'whole'}")["code"] == 0
    (whole,) = tmp_path.rglob("run-*.wandb")
    words = (*ROWS, "max_steps=100", f"output_dir={tmp_path / 'out'}")
    done = faults.run(*words, file_limit=whole.stat().st_size - 8_000)
    assert done["code"] == 1, done
    (line,) = [line for line in told(done) if line.startswith("error: ")]
    assert re.fullmatch(
        r"error: the record \S+ is incomplete: File too large; complete the run with resume=auto",
        line,
    )
    assert len(steps_of(tmp_path / "out")) < 100

    done = faults.run(*words, "resume=auto")
    assert done["code"] == 0, done
    assert "at step 100" in done["said"]
    assert steps_of(tmp_path / "out") == list(range(1, 101))
    (record,) = load_runs([tmp_path / "out"])
    assert record.state == "finished"


CLIENT_LOG = """
import logging
from ampcompare import Recorder

with Recorder(backend="none", seed=1, batch_size=8) as record:
    log = logging.getLogger("wandb")
    files = [handler for handler in log.handlers if isinstance(handler, logging.FileHandler)]
    for handler in files:
        handler.setStream(open("/dev/full", "w"))
    log.warning("a line")
    print(len(files))
"""


@pytest.mark.slow
def test_the_log_of_w_and_bs_client_on_a_full_disk_prints_no_tracebacks(tmp_path: Path):
    env = os.environ | {"WANDB_MODE": "offline"}
    command = [sys.executable, "-c", CLIENT_LOG]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_on_a_full_disk_an_online_run_continues_with_the_server(wandb_server: Server, tmp_path: Path):
    words = [word for word in ROWS if not word.startswith("wandb.")]
    given = environment(wandb_server, tmp_path, WANDB_RUN_ID="run")
    words += ["wandb.mode=online", "max_steps=1000", f"output_dir={tmp_path}"]
    # It takes 10 s at least: that a record no longer grows is known after 5 s of rows.
    done = faults.run(*words, env=given, file_limit=100_000, pace=0.01)
    assert done["code"] == 0, done
    assert len([line for line in told(done) if "the rows still go to the server" in line]) == 1
    sent = [row["global_step"] for row in wandb_server.runs["run"].history if "train/loss" in row]
    assert sent == list(range(1, 1001))


def test_a_log_on_a_full_disk_costs_words_and_no_training(tmp_path: Path):
    done = faults.run(*QUICK, f"output_dir={tmp_path}", stdout="/dev/full")
    assert done["code"] == 0, done
    assert told(done)[:1] == [
        "the output can no longer be written (No space left on device); the command continues"
    ]
    assert steps_of(tmp_path)[-1] == 8


def test_the_end_of_a_record_is_known_wherever_the_file_is_cut(tmp_path: Path):
    """Whole it is only whole; the exit record may lie across two blocks."""
    assert faults.run(*QUICK, "log.every=1", f"output_dir={tmp_path}")["code"] == 0
    (path,) = tmp_path.rglob("run-*.wandb")
    whole = path.read_bytes()
    assert ends_whole(path)
    for end in [*range(max(0, len(whole) - 300), len(whole)), 0, 3, 7, 8]:
        path.write_bytes(whole[:end])
        assert not ends_whole(path), end
