"""Runs that Lightning's and Hugging Face's own code recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import real_trainers

from ampcompare import analyse_runs, load_runs
from ampcompare.report.page.render import render_page
from ampcompare.runs import RunRecord

pytestmark = pytest.mark.slow


def trained(name: str, folder: Path) -> list[RunRecord]:
    """Return runs of a real trainer."""
    pytest.importorskip(name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {"HOME": str(folder)}
    command = [sys.executable, real_trainers.__file__, name, str(folder / "runs")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_runs([folder / "runs"])


@pytest.mark.parametrize(
    ("name", "options", "speed"),
    [
        (
            "lightning",
            {"group_by": ["precision"], "baseline": "32-true", "metric": "val_acc:max:fraction"},
            {},
        ),
        (
            "transformers",
            {"group_by": ["bf16"], "baseline": "False", "metric": "eval/accuracy:max:fraction"},
            {"throughput": "train_samples_per_second:per_second"},
        ),
    ],
)
def test_runs_of_real_trainers_are_compared_by_named_keys(tmp_path, name, options, speed):
    runs = trained(name, tmp_path)
    analysis = analyse_runs(runs, **options, **speed)
    assert [(g.n, g.seeds) for g in analysis.groups] == [(1, 1), (1, 1)]
    assert analysis.metric.is_percentage
    (comparison,) = analysis.comparisons
    assert comparison.not_compared_reason == ""
    assert ("speed" in comparison.estimates) is bool(speed)
    assert "quality" in comparison.estimates
    assert analysis.metric.name in render_page(analysis).decode()
