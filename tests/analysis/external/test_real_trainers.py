"""Runs that Lightning's and Hugging Face's own code recorded."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampcompare import analyse_runs, load_runs
from ampcompare.report.page.render import render_page

PROGRAM = Path(__file__).parents[2] / "support" / "real_trainers.py"
NAMED: dict[str, dict[str, Any]] = {
    "lightning": {"group_by": ["precision"], "baseline": "32-true", "metric": "val_acc:max:fraction"},
    "transformers": {
        "group_by": ["bf16"],
        "baseline": "False",
        "metric": "eval/accuracy:max:fraction",
        "throughput": "train_samples_per_second:per_second",
    },
}


@pytest.mark.slow
def test_runs_of_real_trainers_are_compared_by_named_keys(tmp_path: Path, subtests: pytest.Subtests):
    """Both train in one process: most of the time they are imported."""
    for name in NAMED:
        pytest.importorskip(name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {
        "HOME": str(tmp_path)
    }
    command = [sys.executable, str(PROGRAM), str(tmp_path / "runs"), *NAMED]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, options in NAMED.items():
        with subtests.test(name):
            analysis = analyse_runs(load_runs([tmp_path / "runs" / name]), **options)
            assert [(g.n, g.seeds) for g in analysis.groups] == [(2, 2), (2, 2)]
            assert analysis.metric.is_percentage
            (comparison,) = analysis.comparisons
            assert comparison.not_compared_reason == ""
            assert ("speed" in comparison.estimates) is ("throughput" in options)
            assert "quality" in comparison.estimates
            assert analysis.metric.name in render_page(analysis).decode()
