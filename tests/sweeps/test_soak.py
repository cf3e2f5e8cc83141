"""The soak of a sweep, in short: `benchmarks/sweep_soak.py` has the long one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.postgres import programs
from support.quick import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_sweep_whose_workers_and_runs_are_killed_has_every_point_once(database, tmp_path):
    if database == "postgres" and programs() is None:
        pytest.skip("no PostgreSQL: neither initdb on PATH nor Debian's package postgresql is there")
    words = ["--points", "30", "--workers", "3", "--minutes", "0.25", "--folder", str(tmp_path)]
    words += ["--postgres"] if database == "postgres" else []
    command = [sys.executable, "benchmarks/sweep_soak.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every point once in the records" in done.stdout
    assert (tmp_path / "strikes.jsonl").read_text().count("\n") > 0
