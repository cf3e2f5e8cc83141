"""The demo, from its command to its page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampcompare import load_runs
from ampcompare.bench.doctor import default_backends
from ampcompare.cli import main
from ampcompare.config.load import load_config

TINY = "model.name=tiny epochs=1 data.train_limit=64 data.test_limit=20 device=cpu".split()
BACKENDS = default_backends(torch.device("cpu"))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            ["backend=native"],
            "backend=native: the demo itself varies backend and seed; train a single run with: ",
        ),
        (["seed=4"], "seed=4: the demo itself varies backend and seed; train a single run with: "),
        (['{{"seed": 4}}'], "seed=4: the demo itself varies backend and seed; train a single run with: "),
        (["epoch=1"], "epochs"),
        pytest.param(
            ["model.name={folder}/net.py:build"],
            "the speed of none cannot be measured: ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_the_demo_cannot_do_is_refused_before_anything_is_trained(overrides, why, tmp_path: Path, capfd):
    (tmp_path / "net.py").write_text("def build(num_classes=10):\n    raise ValueError('no weights')\n")
    overrides = [override.format(folder=tmp_path) for override in overrides]
    with pytest.raises(SystemExit) as end:
        main(["demo", *overrides, "device=cpu", f"output_dir={tmp_path / 'out'}"])
    assert end.value.code == 2
    assert why in capfd.readouterr().err
    assert not [*tmp_path.rglob("*.wandb")]


def run_demo(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ampcompare", "demo", *TINY, "output_dir=out", *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_small_demo_trains_every_backend_with_three_seeds_and_takes_speed_from_bench(tmp_path: Path):
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = load_runs([str(tmp_path / "out")])
    assert sorted((run.option("backend"), run.option("seed")) for run in runs) == sorted(
        (backend, seed) for backend in BACKENDS for seed in (1, 2, 3)
    )
    parts = [line for line in done.stdout.splitlines() if line.startswith("---")]
    count = len(BACKENDS) + 2
    assert [part.partition(":")[0] for part in parts] == [f"--- {n} of {count}" for n in range(1, count + 1)]
    assert all("about" in part for part in parts)
    assert "sync:" not in done.stdout
    measured = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [arm["options"]["backend"] for arm in measured["arms"]] == BACKENDS
    compared = json.loads((tmp_path / "out" / "report" / "comparison.json").read_text())
    assert len(compared["groups"]) == len(BACKENDS)
    assert "Throughput is from `ampcompare bench`" in done.stdout.replace("\n", " ")
    page = (tmp_path / "out" / "report" / "index.html").read_text(encoding="utf-8")
    assert "tiny on synthetic data" in page
    next_command = done.stdout.rstrip().splitlines()[-3]
    assert next_command.endswith("bench model.name=./net.py:build data.source=./data.py:build")


@pytest.mark.slow
def test_a_training_that_fails_ends_the_demo_without_a_page(tmp_path: Path):
    assert run_demo(tmp_path, "optimizer.lr=1e30").returncode == 1
    assert len(load_runs([str(tmp_path / "out")])) == 1
    assert not (tmp_path / "out" / "report").exists()


def test_the_demos_accuracy_is_measured_on_enough_images_and_shows_the_loss_scale():
    """500 images at least, and so many steps between growths of the loss scale that it grows in a run."""
    config = load_config("demo")
    assert config.data.test_limit >= 500
    steps = config.epochs * config.data.train_limit // config.batch_size
    assert config.precision.growth_interval < steps / 2
    assert config.batch_size >= 32
