"""Two processes on the CPU train what one does with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributed_worker import CASES

from ampcompare.config import load_config
from ampcompare.distributed import AskTogether, World, check_config, check_last_batch, device_name, join
from ampcompare.errors import UserError
from ampcompare.records import load_runs

TESTS = Path(__file__).resolve().parent
TWO = World(rank=1, size=2, local_rank=1)


def torchrun(processes: int, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=check, timeout=240, env=environment)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, dict]:
    """What one process found, and each of two."""
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    worker = str(TESTS / "distributed_worker.py")
    torchrun(1, worker, str(alone))
    torchrun(2, worker, str(together))
    one, first, second = (
        json.loads(path.read_text())
        for path in (alone / "rank0.json", together / "rank0.json", together / "rank1.json")
    )
    return one, first, second


@pytest.mark.parametrize("case", [case for case in CASES if case != "not finite"])
def test_two_processes_log_what_one_does(runs: tuple[dict, dict, dict], case: str):
    one, first, _ = (found[case] for found in runs)
    tolerance = 1e-5 if case == "none" else 2e-2
    for key in ("train/loss", "train/accuracy", "eval/loss", "eval/accuracy", "amp/scale_factor", "amp/skipped_steps"):
        ours, truth = ([row[key] for row in found["rows"] if key in row] for found in (first, one))
        absolute = 0.04 if "accuracy" in key else 0.0  # a single image
        assert ours == pytest.approx(truth, rel=tolerance, abs=absolute), key


@pytest.mark.parametrize("case", list(CASES))
def test_both_processes_have_the_same_rows_weights_and_skipped_steps(runs: tuple[dict, dict, dict], case: str):
    _, first, second = (found[case] for found in runs)
    keys = [k for k in first["rows"][0] if not k.startswith(("time/", "throughput/", "memory/"))]
    for ours, theirs in zip(first["rows"], second["rows"], strict=True):
        assert repr([ours.get(k) for k in keys]) == repr([theirs.get(k) for k in keys])
    assert repr(first["weights"]) == repr(second["weights"])
    if "overflow" in case:
        assert first["rows"][-2]["amp/skipped_steps"] > 0 or first["rows"][-1].get("amp/skipped_steps", 0) > 0


def test_every_image_is_seen_once_by_one_of_them(runs: tuple[dict, dict, dict]):
    one, first, second = (found["none"]["seen"] for found in runs)
    for whole, ours, theirs in zip(one, first, second, strict=True):
        assert sorted(ours + theirs) == sorted(whole)
    assert sorted(image for part in first + second for image in part) == list(range(90))


def test_torchrun_runs_the_experiment_with_one_record(tmp_path: Path, quick_overrides: tuple[str, ...]):
    words = [*quick_overrides, "backend=apex_o1", f"output_dir={tmp_path}"]
    done = torchrun(2, str(TESTS.parent / "run_experiment.py"), *words)
    (record,) = load_runs([tmp_path])
    assert record.state == "finished"
    assert record.summary["environment"]["processes"] == 2
    assert record.history["global_step"].max() == 8
    assert done.stdout.count("record: ") == 1


def test_a_mistake_ends_all_processes_before_training(tmp_path: Path, quick_overrides: tuple[str, ...]):
    words = [*quick_overrides, "batch_size=1", f"output_dir={tmp_path}"]
    done = torchrun(2, str(TESTS.parent / "run_experiment.py"), *words, check=False)
    assert done.returncode != 0
    assert "batch_size=1: with 2 processes each needs an image" in done.stderr
    assert not list(tmp_path.rglob("*.wandb"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["execution=compile"], "execution='compile': with 2 processes"),
        (["training.gradient_penalty=1"], "training.gradient_penalty=1: with 2 processes"),
        (["batch_size=1"], "batch_size=1: with 2 processes"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        check_config(load_config(None, words), TWO)


def test_a_last_batch_with_too_few_images_is_refused_with_a_number_that_works():
    with pytest.raises(UserError, match=r"the last batch of an epoch has 1 of 65 images.*data\.train_limit=64"):
        check_last_batch(65, 32, TWO)
    check_last_batch(66, 32, TWO)
    check_last_batch(64, 32, TWO)


def test_processes_do_not_share_a_device():
    assert device_name("cpu", TWO) == "cpu"
    assert device_name("cuda:1", World()) == "cuda:1"
    with pytest.raises(UserError, match="device='cuda:1': 2 processes need a device each"):
        device_name("cuda:1", TWO)


def test_without_torchrun_there_is_one_process():
    with join(load_config(None)) as world:
        assert world == World()


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE='two': expected a whole number"), join(load_config(None)):
        pass


def test_alone_a_request_to_stop_is_heard_at_every_step():
    import torch

    ask = AskTogether(World(), torch.device("cpu"), 50, lambda: True, lambda: False)
    assert ask.at(3) == [True, False]
