"""The entrypoint as a user meets it: help, messages, exit codes, what a run prints and leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pasting import paste
from support.quick import QUICK
from wandb.sdk.lib.config_util import save_config_file_from_dict

from ampcompare.records import load_runs
from ampcompare.report.runs.table import label_of

ROOT = Path(__file__).resolve().parents[1]


def launch(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "run_experiment.py"), *words]
    environment = {**os.environ, **env}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_says_where_its_record_is_and_how_to_see_it(tmp_path: Path, quick_overrides: tuple[str, ...]):
    out = tmp_path / "a folder with spaces"
    words = ("--config=demo", *quick_overrides, f"output_dir={out}", "wandb.mode=auto", "backend=native")
    done = launch(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no W&B account: this run is recorded offline" in done.stdout
    (run,) = load_runs([out])
    record = next(out.rglob("*.wandb")).parent
    assert f"record: {record}" in done.stdout
    sync, see, live = (line[8:] for line in done.stdout.splitlines()[-3:])
    assert sync.endswith(f"wandb sync '{record}'")
    assert "wandb leet" in live
    assert "WARNING" not in done.stdout + done.stderr
    assert paste(see, tmp_path).returncode == 0
    assert (tmp_path / "report" / "index.html").is_file()
    for command in (sync, live):  # they need an account and a terminal
        assert paste(f"{command} --help", tmp_path).stdout.startswith("Usage: ")
    assert "step 2/8" in done.stdout
    assert run.state == "finished"
    assert run.name == "native_tiny_synthetic"
    assert run.group == "demo"


@pytest.mark.slow
def test_a_point_of_wandbs_sweep_that_scales_nothing_trains_and_says_so(tmp_path: Path):
    """W&B's agent hands out every point of a grid: were it refused, none of `none` would be left."""
    chosen = {"backend": "none", "precision.loss_scale": 128}
    file = tmp_path / "sweep-x" / "config-y.yaml"
    save_config_file_from_dict(str(file), {key: {"value": value} for key, value in chosen.items()})
    words = [f"{key}={value}" for key, value in chosen.items()]
    done = launch(*QUICK, *words, f"output_dir={tmp_path}", WANDB_SWEEP_PARAM_PATH=str(file))
    assert done.returncode == 0, done.stderr
    (said,) = (line for line in done.stdout.splitlines() if "no effect" in line)
    assert said.startswith("precision.loss_scale=128")
    assert said.endswith("no effect: backend=none is fp32")
    (run,) = load_runs([tmp_path])
    assert label_of(run) == "none"
