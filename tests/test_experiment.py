"""A whole run, from config to finished record."""

import math
from pathlib import Path

import pytest
from support.properties import backends
from support.same_run import record_of
from support.training import play

from ampcompare import analyse_runs, metrics
from ampcompare.precision import REGISTRY
from ampcompare.runs import RunRecord


@pytest.fixture
def quick(tmp_path: Path):
    """Run a quick experiment in a folder of its own; gives its record and what was printed."""
    count = iter(range(100))

    def go(*words: str, code: int = 0) -> tuple[RunRecord, str]:
        out = tmp_path / f"run{next(count)}"
        printed = play(*words, f"output_dir={out}", code=code)
        return record_of(out), printed

    return go


def rows(record: RunRecord, key: str) -> list[float]:
    return record.history[key].dropna().tolist() if key in record.history else []


def test_the_recipe_is_printed_and_recorded_and_its_settings_distinguish_runs(quick):
    stable, printed = quick("recipe=auto", "seed=1", "epochs=1")
    assert "recipe stable: sgd, lr=0.1, momentum=0.9, nesterov=true" in " ".join(printed.split())
    assert (stable.option("optimizer.momentum"), stable.option("training.label_smoothing")) == (0.9, 0.1)
    former, printed = quick("seed=2", "epochs=1")
    assert "recipe reference: sgd, lr=0.1, cosine" in printed
    assert former.config.pop("recipe") == "reference"  # as in a record of version 0.3
    assert len(analyse_runs([stable, former]).groups) == 2


def test_rows_come_at_their_steps(quick):
    record, _ = quick("log.every=3", "diagnostics.every=4", "epochs=2")  # 4 steps an epoch, 8 in all
    history = record.history
    assert history.loc[history["train/loss"].notna(), "global_step"].tolist() == [3, 4, 6, 8]
    assert history.loc[history["grad/underflow_fraction"].notna(), "global_step"].tolist() == [4, 8]
    assert history.loc[history["eval/accuracy"].notna(), "global_step"].tolist() == [4, 8]
    assert history.loc[history["eval/accuracy"].notna(), "epoch"].tolist() == [1.0, 2.0]
    assert history["global_step"].is_monotonic_increasing
    assert history["time/elapsed_seconds"].is_monotonic_increasing
    assert (history["time/train_seconds"] <= history["time/elapsed_seconds"]).all()


@backends(REGISTRY)
def test_same_seed_gives_the_same_run_twice(quick, backend: str):
    keys = ["train/loss", "eval/loss", "amp/scale_factor", "grad/underflow_fraction"]
    first, again, other = (quick(f"backend={backend}", f"seed={seed}")[0] for seed in (1, 1, 2))
    for key in keys:
        assert rows(first, key) == rows(again, key)
    assert rows(first, "train/loss") != rows(other, "train/loss")


def test_a_loss_that_is_not_finite_stops_the_run_as_failed(quick):
    record, printed = quick("optimizer.lr=1e30", "log.every=4", code=1)
    assert record.state == "failed"
    assert {metrics.TEST_IMAGES, metrics.CLASSES, metrics.TEST_SET} <= record.summary.keys()
    assert "the training loss is NaN" in printed
    assert "training.on_nan=continue" in printed
    step = int(printed.split("error: step ")[1].split(":")[0])
    assert 1 < step <= 4  # the very step, not the interval's end
    assert not math.isfinite(record.history["train/loss"].iloc[-1])  # the row that shows it is kept
