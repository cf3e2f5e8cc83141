"""The demo, from its command to its page."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import warm_python
from support.fakes import make
from support.quick import ROOT
from support.sweep_project import replacing_outside

from ampcompare import analyse_runs, load_runs
from ampcompare.bench.doctor import backends_with_speed, default_backends
from ampcompare.cli import demo, main
from ampcompare.config.load import load_config

TINY = "model.name=tiny batch_size=32 epochs=1 data.train_limit=64 data.test_limit=20 device=cpu".split()
BACKENDS = default_backends(torch.device("cpu"))
TIMED = backends_with_speed(BACKENDS, torch.device("cpu"))
HAS_BENCH = len(TIMED) > 1  # a CPU without 16-bit instructions has no speed to compare


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            ["backend=native"],
            "backend=native: the demo itself varies backend and seed; train a single run with: ",
        ),
        (['{{"seed": 4}}'], "seed=4: the demo itself varies backend and seed; train a single run with: "),
        (["epoch=1"], "epochs"),
        pytest.param(
            ["model.name={folder}/net.py:build"],
            "the baseline none failed: ",
            marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_BENCH, reason="needs 16-bit instructions")],
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


SHORT_BENCH = replacing_outside("outside.scale_time(10)")


def run_demo(folder: Path, *overrides: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the demo in the folder, after the code `before`."""
    code = f"{before}\nimport sys; from ampcompare.cli import main; main(sys.argv[1:])"
    command = [warm_python.python(), "-c", code, "demo", *TINY, "output_dir=out", *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_small_demo_trains_every_backend_and_compares_the_speeds_that_this_cpu_has_instructions_for(
    tmp_path: Path,
):
    done = run_demo(tmp_path, before=SHORT_BENCH)
    assert (done.returncode, done.stderr) == (0, "")
    runs = load_runs([str(tmp_path / "out")])
    assert sorted((run.option("backend"), run.option("seed")) for run in runs) == sorted(
        (backend, seed) for backend in BACKENDS for seed in demo.SEEDS
    )
    count = len(BACKENDS) + 1 + HAS_BENCH
    parts = [line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("---")]
    assert parts == [f"--- {n} of {count}" for n in range(1, count + 1)]
    assert (tmp_path / "out" / "bench.json").exists() is HAS_BENCH
    if HAS_BENCH:
        measured = json.loads((tmp_path / "out" / "bench.json").read_text())
        assert [arm["options"]["backend"] for arm in measured["arms"]] == TIMED
    compared = json.loads((tmp_path / "out" / "report" / "comparison.json").read_text())
    assert len(compared["groups"]) == len(BACKENDS)
    assert (tmp_path / "out" / "report" / "index.html").is_file()
    printed = " ".join(done.stdout.split())
    assert ("throughput from `ampcompare bench` (" in printed) is HAS_BENCH
    assert ("This device does not compute float16 natively" in printed) is (
        "native" in BACKENDS and "native" not in TIMED
    )
    assert "Peak memory" not in printed  # that of a process on a CPU is no result
    assert "planned: margin 0.5 points, one look at 5 seeds" in printed


@pytest.mark.slow
def test_a_training_that_fails_ends_the_demo_without_a_page(tmp_path: Path):
    assert run_demo(tmp_path, "optimizer.lr=1e30", before=SHORT_BENCH).returncode == 1
    assert len(load_runs([str(tmp_path / "out")])) == 1
    assert not (tmp_path / "out" / "report").exists()


def test_the_time_that_is_left_counts_steps_and_evaluated_images():
    """Per run 0.7 s and the steps: 32 an epoch. Evaluating 128 images takes as long as 0.3 steps."""
    seconds = 6 + 5 * (0.7 + (8 * 32 + 2 * 0.3 * 10_000 / 128) * 0.01)
    assert demo.estimate_seconds(load_config("demo"), 0.01) == pytest.approx(seconds)


@pytest.fixture(scope="module")
def decisions() -> ModuleType:
    """Return the module benchmarks/demo_decisions.py."""
    spec = importlib.util.spec_from_file_location("demo_decisions", ROOT / "benchmarks" / "demo_decisions.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def made_run(backend: str, seed: int, accuracy: float):
    """Return a run that ended with this accuracy."""

    def edit(plan):
        plan["config"]["plan"] = {"margin": 0.5, "looks": [5], "shares": [1.0], "rule": 2}
        plan["rows"][-1]["eval/accuracy"] = accuracy
        plan["summary"]["eval/accuracy"] = accuracy  # W&B's client writes it, and the report reads it first
        plan["summary"]["data/test_images"] = 10_000

    return make(backend, seed, edit=edit, source="synthetic")


# Accuracies of five seeds. The margin is 0.5 points, and a difference of 0.3 points has an sd of 0.02.
BASE = (0.920, 0.921, 0.922, 0.923, 0.924)
SAME = (0.9201, 0.9208, 0.9222, 0.9229, 0.9241)
LOWER = (0.9170, 0.9182, 0.9188, 0.9201, 0.9210)


def test_a_planted_loss_lowers_one_backend_by_exactly_one_point_and_no_other(decisions):
    runs = [
        made_run(backend, seed, value)
        for backend, values in (("none", BASE), ("native", SAME), ("apex_o1", LOWER))
        for seed, value in enumerate(values, 1)
    ]
    before, after = (analyse_runs(one) for one in (runs, decisions.plant(runs, "native")))
    for name, lowered in (("native", 1.0), ("apex_o1", 0.0)):
        values = [one.comparison(name).estimates["quality"].value for one in (before, after)]
        assert values[0] - values[1] == pytest.approx(lowered)
