"""The sweeps that come with the project: they validate, and run in a small form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.sweep_schema import SCHEMA

from ampcompare.precision.backends import REGISTRY
from ampcompare.records import load_runs
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.prepare import prepare, prepared

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "sweeps").glob("*.yaml"))
# A network of 5,000 parameters on a few synthetic images.
SMALL = """model.name=tiny data.source=synthetic data.train_limit=64 data.test_limit=32 epochs=2 log.every=1
    log.warmup_steps=1 device=cpu wandb.mode=offline""".split()
# What is left of these here: the parameters replaced, and the runs that come of it.
SHRUNK = {
    "learning_rate": ({}, 2),
    "loss_scale": (
        {"precision.loss_scale": {"values": ["dynamic", 1024]}, "backend": {"values": ["fp16"]}},
        2,
    ),
    "execution": (
        {
            "backend": {"values": ["native"]},
            "memory_format": {"values": ["channels_last"]},
            "tf32": {"values": [True]},
        },
        3,
    ),
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_validates_and_says_how_to_run_it(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    prepared(read_sweep(path), [])
    comment = path.read_text().partition("program:")[0]
    assert "?" in comment.splitlines()[0] + comment.splitlines()[1]
    assert "Takes " in comment
    assert f"wandb sweep sweeps/{path.name}" in comment
    assert f"ampcompare sweep sweeps/{path.name}" in comment


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_has_no_key_that_the_schema_of_wandb_does_not_know(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)


def test_one_file_has_every_backend():
    (parameter,) = [
        p for p in read_sweep(ROOT / "sweeps" / "compare_all.yaml").parameters if p.key == "backend"
    ]
    assert [*parameter.settings["values"]] == [*REGISTRY]


def test_the_plan_of_a_file_is_that_of_every_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    ready = prepare("compare_backends", [])
    plan, sweep = ready.plan, ready.sweep
    assert (plan.margin, plan.looks, plan.max_seeds, plan.control) == (0.5, [3, 6, 10], 10, "none")
    assert sweep.points[0].parameters["plan"] == {"margin": 0.5, "looks": [3, 6, 10], "max_seeds": 10}


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in FILES if p.stem in SHRUNK], ids=lambda p: p.stem)
def test_file_runs_in_a_small_form(tmp_path, path):
    changes, count = SHRUNK[path.stem]
    content = yaml.safe_load(path.read_text())
    content["parameters"] |= changes
    if content["method"] != "grid":
        content["run_cap"] = count
    small = tmp_path / path.name
    small.write_text(yaml.safe_dump(content, sort_keys=False))
    fixed = [*SMALL, *(word for word in ["batch_size=16"] if "batch_size" not in content["parameters"])]
    done = subprocess.run(
        [sys.executable, "-m", "ampcompare.cli", "sweep", small, *fixed, f"output_dir={tmp_path / 'out'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    runs = load_runs([tmp_path / "out"])
    if path.stem == "execution":  # there are no CUDA graphs on a CPU
        assert done.returncode == 1, done.stdout
        assert "execution='cuda_graph': device='cpu' has no CUDA graphs" in done.stdout
        count -= 1
    else:
        assert done.returncode == 0, done.stdout
    assert [run.state for run in runs] == ["finished"] * count
    assert {run.group for run in runs} == {content["name"]}
    assert {run.sweep_id for run in runs} == {""}  # W&B's server knows no such sweep
    keys = [key for key in content["parameters"] if key != "plan"]
    varied = {json.dumps([run.option(key) for key in keys]) for run in runs}
    assert len(varied) == count
    assert (tmp_path / "out" / "report" / "index.html").is_file()
