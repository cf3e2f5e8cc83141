"""What a sweep says after its first finished run: whether the network learned, before others wait for it."""

from typing import Any

import pytest
from support.fakes import plan
from support.quick import ROOT
from support.wandb_files import write_runs

from ampcompare import metrics
from ampcompare.sweeps.decision_plan import describe_first_run
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import SweepOptions, prepare_sweep
from ampcompare.sweeps.sweep_file import read_sweep

OURS = {"program": "ampcompare", "command": ["ampcompare", "run", "${args_no_hyphens}"]}
CHANCE = "(40% by always guessing the commonest class)"


@pytest.mark.parametrize(
    ("accuracy", "losses", "expected"),
    [
        (0.41, (1.386, 1.0), CHANCE),
        (0.38, (1.386, 1.0), CHANCE),
        (0.55, (1.386, 1.0), ""),
        (0.55, (1.386, 1.36), "hardly moved: from 1.386 to 1.360"),
    ],
)
def test_a_network_that_has_not_learned_is_said_after_the_first_run(
    project: Any, monkeypatch: Any, tmp_path: Any, accuracy: float, losses: tuple[float, float], expected: str
):
    monkeypatch.chdir(ROOT)
    made = plan("native", 1, steps=60)
    training = [row for row in made["rows"] if "train/loss" in row]
    for number, row in enumerate(training):
        row["train/loss"] = losses[0] if number == 0 else losses[1]
    for holder in (made["summary"], *made["rows"]):
        if "eval/accuracy" in holder:
            holder["eval/accuracy"] = accuracy - 0.001 * (holder["epoch"] < 5)
    made["summary"] |= {metrics.COMMONEST_CLASS: 0.4, metrics.TEST_IMAGES: 800, metrics.CLASSES: 4}
    write_runs(tmp_path / "out", [made])
    parameters = {"backend": {"values": ["none", "native"]}, "seed": {"values": [1, 2, 3]}}
    sweep = read_sweep(project.write_file(parameters=parameters, **OURS))
    prepared = prepare_sweep(sweep, [], SweepOptions())
    run = SweepRun(0, made["wandb"]["id"])
    lines = " ".join(describe_first_run(prepared, tmp_path / "out", run))
    assert expected in lines
    assert (CHANCE in lines) is (expected == CHANCE)
    assert ("hardly moved" in lines) is ("hardly moved" in expected)
