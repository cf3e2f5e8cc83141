"""Runs that Lightning's and Hugging Face's own code recorded, read without an option."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import real_trainers

from ampcompare import analyse_runs, load_runs
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.page.render import render_page

pytestmark = pytest.mark.slow


def trained(name: str, folder: Path) -> Analysis:
    pytest.importorskip(name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {"HOME": str(folder)}
    command = [sys.executable, real_trainers.__file__, name, str(folder / "runs")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return analyse_runs(load_runs([folder / "runs"]))


@pytest.mark.parametrize(
    ("name", "key", "baseline", "metric", "speed"),
    [
        ("lightning", "precision", "32-true", "val_acc", "steps/s"),
        ("transformers", "bf16", "False", "eval/accuracy", "samples/s"),
    ],
)
def test_a_trainers_own_runs_are_compared_without_an_option(tmp_path, name, key, baseline, metric, speed):
    analysis = trained(name, tmp_path)
    assert (analysis.keys, analysis.baseline_value) == ((key,), baseline)
    assert [(g.n, g.seeds) for g in analysis.groups] == [(2, 2), (2, 2)]
    assert (analysis.metric.key, analysis.metric.is_share) == (metric, True)
    assert analysis.quantities.speed == speed
    (comparison,) = analysis.comparisons
    assert comparison.refusal == ""
    assert "speed" in comparison.estimates
    assert "quality" in comparison.estimates
    assert analysis.metric.name in render_page(analysis).decode()
