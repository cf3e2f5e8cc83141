"""Fifty runs of 4,000 rows in the form of W&B's client: memory of reading and of the whole command, size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client_form import client_records, row_records
from support.log_writer import frame
from support.offline_runs import plan
from support.peak import REPORT, peak_kib

RUNS, STEPS = 50, 19_500  # a row every 5 steps and one an epoch: 4,000
BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")


def write_many_runs(folder: Path) -> None:
    """The rows of one run for each backend, under 50 names and seeds."""
    plans = {backend: plan(backend, steps=STEPS, epochs=100) for backend in BACKENDS}
    rows = {backend: row_records(made["rows"]) for backend, made in plans.items()}
    for number in range(RUNS):
        backend, seed, run_id = BACKENDS[number % 5], number // 5, f"r{number:03}"
        made = plans[backend]
        changed = {
            "config": made["config"] | {"seed": seed},
            "wandb": made["wandb"] | {"name": f"{backend} {seed}"},
            "kill": seed % 3 == 0,  # these crashed
        }
        path = folder / f"offline-run-20260101_000{number:03}-{run_id}" / f"run-{run_id}.wandb"
        path.parent.mkdir(parents=True)
        path.write_bytes(frame(client_records(made | changed, run_id, rows[backend])))
        os.utime(path, (1_795_400_000,) * 2)  # long over


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("many")
    write_many_runs(folder)
    yield folder
    for path in folder.glob("*/*.wandb"):  # 200 MB; pytest would keep them
        path.unlink()


@pytest.mark.slow
def test_many_runs_have_their_report_in_500_mb(many_runs, tmp_path):
    words = ["report", str(many_runs), "--out", str(tmp_path / "out")]
    said, peak = peak_kib(REPORT, *words, cache=tmp_path / "cache")
    assert "page: " in said

    assert peak < 500_000
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len(content["runs"]) == RUNS
    assert {run["rows"] for run in content["runs"]} == {4000}
    assert (tmp_path / "out" / "index.html").stat().st_size < 15_000_000
