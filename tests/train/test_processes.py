"""Two processes on the CPU train what one does with the whole batch."""

from __future__ import annotations

import json

import pytest
from support.distributed_worker import CASES
from support.quick import ROOT
from support.torchrun import torchrun


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, dict]:
    """What one process found, and each of two."""
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    worker = str(ROOT / "tests" / "support" / "distributed_worker.py")
    torchrun(1, worker, str(alone))
    torchrun(2, worker, str(together))
    one, first, second = (
        json.loads(path.read_text())
        for path in (alone / "rank0.json", together / "rank0.json", together / "rank1.json")
    )
    return one, first, second


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "not finite"])
def test_two_processes_log_what_one_does(runs: tuple[dict, dict, dict], case: str):
    one, first, _ = (found[case] for found in runs)
    tolerance = 1e-5 if case == "none" else 2e-2
    for key in (
        "train/loss",
        "train/accuracy",
        "eval/loss",
        "eval/accuracy",
        "amp/scale_factor",
        "amp/skipped_steps",
    ):
        ours, truth = ([row[key] for row in found["rows"] if key in row] for found in (first, one))
        absolute = 0.04 if "accuracy" in key else 0.0  # a single image
        assert ours == pytest.approx(truth, rel=tolerance, abs=absolute), key


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_both_processes_have_the_same_rows_weights_and_skipped_steps(
    runs: tuple[dict, dict, dict], case: str
):
    _, first, second = (found[case] for found in runs)
    keys = [k for k in first["rows"][0] if not k.startswith(("time/", "throughput/", "memory/"))]
    for ours, theirs in zip(first["rows"], second["rows"], strict=True):
        assert repr([ours.get(k) for k in keys]) == repr([theirs.get(k) for k in keys])
    assert repr(first["weights"]) == repr(second["weights"])
    if "overflow" in case:
        assert first["rows"][-2]["amp/skipped_steps"] > 0 or first["rows"][-1].get("amp/skipped_steps", 0) > 0


@pytest.mark.slow
def test_every_image_is_seen_once_by_one_of_them(runs: tuple[dict, dict, dict]):
    one, first, second = (found["none"]["seen"] for found in runs)
    for whole, ours, theirs in zip(one, first, second, strict=True):
        assert sorted(ours + theirs) == sorted(whole)
    assert sorted(image for part in first + second for image in part) == list(range(90))
