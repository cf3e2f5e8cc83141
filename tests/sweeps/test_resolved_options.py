"""A sweep that continues has the settings with which it began, also those that its file does not show."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refusals import line_of

from ampcompare.sweeps.journal import SweepState
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_command import SweepCommand
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.sweep_identity import SETTINGS, continued_sweep, seed_of

NET = "from torch import nn\n\n\ndef build():\n    return nn.Linear(1, 1)\n"
COMMAND = [
    "${env}",
    "${interpreter}",
    "-m",
    "ampcompare",
    "run",
    "--config",
    "mine.yaml",
    "${args_no_hyphens}",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("mine.yaml").write_text("epochs: 4\n")


def sweep_of(**parameters: Any) -> Sweep:
    file = {"method": "grid", "program": "ampcompare", "command": COMMAND}
    file["parameters"] = {"seed": {"values": [1, 2]}, **parameters}
    Path("sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return read_sweep("sweep.yaml")


def definition(sweep: Sweep, words: list[str]) -> dict[str, Any]:
    return {**prepare_sweep(sweep, words).definition}


def resumed(sweep: Sweep, words: list[str], began: dict[str, Any]) -> None:
    command = SweepCommand("sweep.yaml").data()
    continued_sweep(sweep, definition(sweep, words), SweepState("sweep", began, command), "runs/x")


def test_the_definition_has_the_options_that_follow_from_files_and_recipes():
    sweep = sweep_of(recipe={"value": "auto"}, backend={"values": ["none", "native"]})
    settings = definition(sweep, ["batch_size=8"])[SETTINGS]
    assert (settings["epochs"], settings["batch_size"], settings["schedule.warmup_epochs"]) == (4, 8, 0.4)
    assert (settings["optimizer.momentum"], settings["training.label_smoothing"]) == (0.9, 0.1)
    assert not {"backend", "seed", "recipe", "device", "output_dir"} & {*settings}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("epochs: 5\n", "epochs=5 instead of 4"),
        ("epochs: 4\noptimizer: {lr: 0.2}\n", "optimizer.lr=0.2 instead of 0.1"),
        ("epochs: 4\nmodel: {kwargs: {width: 3}}\n", "model.kwargs.width=3 instead of None"),
    ],
)
def test_a_changed_config_file_is_noticed(content: str, named: str):
    sweep = sweep_of()
    began = definition(sweep, [])
    resumed(sweep, [], began)
    Path("mine.yaml").write_text(content)
    said = line_of(resumed, sweep, [], began)
    assert "sweep.yaml: the next runs of the sweep in runs/x would have other settings than its first" in said
    assert named in said


@pytest.mark.parametrize("content", ["epochs: 4\nrecipe: reference\n", "epochs: 4\neval: {every: 1}\n"])
def test_another_way_to_write_the_same_settings_is_no_change(content: str):
    sweep = sweep_of()
    began = definition(sweep, [])
    Path("mine.yaml").write_text(content)
    resumed(sweep, [], began)


def test_the_settings_change_no_draws_of_a_random_search():
    sweep = sweep_of()
    began = definition(sweep, [])
    assert seed_of(sweep, began) == seed_of(sweep, {k: v for k, v in began.items() if k != SETTINGS})


def test_the_bundled_comparisons_train_any_network_with_a_recipe_that_suits_it():
    sweep = read_sweep("compare_backends")
    built_in = definition(sweep, [])[SETTINGS]
    assert (built_in["epochs"], built_in["optimizer.momentum"], built_in["schedule.warmup_epochs"]) == (
        15,
        0.9,
        1.5,
    )
    own = definition(sweep, ["model.name=./net.py:build", "epochs=5"])[SETTINGS]
    assert (own["optimizer.name"], own["optimizer.lr"], own["schedule.warmup_epochs"]) == ("adamw", 1e-3, 0.5)
