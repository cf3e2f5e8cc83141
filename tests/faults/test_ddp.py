"""Several processes of which one dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from quick import QUICK, ROOT

from faults.test_kill import assert_same_state, end_of, history, record_of

pytestmark = pytest.mark.slow
WORDS = (*QUICK, "backend=native", "optimizer.momentum=0.9", "log.every=3", "resume=auto")


def torchrun(folder: Path, *options: str, **env: str) -> tuple[subprocess.CompletedProcess[str], float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    words = [str(ROOT / "tests" / "faults" / "ddp_worker.py"), *WORDS, f"output_dir={folder}"]
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **env}
    began = time.monotonic()
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=100, env=given, check=False)
    return done, time.monotonic() - began


def test_a_process_that_dies_ends_all_with_the_cause_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path):
    done, whole_seconds = torchrun(tmp_path / "whole")
    assert done.returncode == 0, done.stdout + done.stderr

    done, seconds = torchrun(tmp_path / "dead", KILL_AT="6")
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr  # the cause
    assert "another process of this run has ended" in done.stdout
    assert seconds < whole_seconds + 30

    done, _ = torchrun(tmp_path / "dead")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on with run" in done.stdout
    first, second = end_of(tmp_path / "whole"), end_of(tmp_path / "dead")
    for part in ("model", "optimizer", "scheduler", "precision"):
        assert_same_state(first[part], second[part], part)
    assert history(record_of(tmp_path / "whole")).equals(history(record_of(tmp_path / "dead")))
