"""Every form in which W&B's agent writes a sweep's parameters gives the same config; the client writes them here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from ampcompare.config import load_config
from ampcompare.errors import UserError
from run_experiment import parse

PARAMETERS = {
    "backend": "native",
    "deterministic": True,
    "max_steps": None,
    "seed": 7,
    "optimizer": {"lr": 1e-05, "nesterov": True, "momentum": 0.9},
    "precision": {"loss_scale": 512.0},
    "schedule.warmup_epochs": 1e-05,
    "wandb.tags": ["a", "b c", "d,e"],
    "wandb.notes": """it's "x"=1, --seed=3""",
    "data": {"root": "a 'quoted' folder: [x]"},
}
MACROS = (
    "args",
    "args_no_hyphens",
    "args_no_equals",
    "args_no_boolean_flags",
    "args_json",
    "args_append_hydra",
    "args_override_hydra",
)


def words_of(macro: str, parameters: dict) -> list[str]:
    return create_sweep_command_args({"args": {key: {"value": value} for key, value in parameters.items()}})[macro]


@pytest.mark.parametrize("macro", MACROS)
def test_each_macro_gives_every_value_intact(macro: str):
    config = parse(["--config", "demo", *words_of(macro, PARAMETERS)])
    assert config.backend == "native"
    assert config.deterministic is True
    assert config.max_steps is None
    assert config.seed == 7
    assert (config.optimizer.lr, config.optimizer.nesterov, config.optimizer.momentum) == (1e-05, True, 0.9)
    assert config.precision.loss_scale == 512.0
    assert config.schedule.warmup_epochs == 1e-05
    assert config.wandb.tags == ["a", "b c", "d,e"]
    assert config.wandb.notes == PARAMETERS["wandb.notes"]
    assert config.data.root == PARAMETERS["data"]["root"]
    assert config.model.name == load_config("demo").model.name


@pytest.mark.parametrize("macro", [m for m in MACROS if m != "args_no_boolean_flags"])
def test_a_false_parameter_arrives(macro: str):
    assert parse(words_of(macro, {"data.augment": False, "seed": 1})).data.augment is False
    assert parse(words_of(macro, {"data": {"augment": False}})).data.augment is False


def test_the_file_of_args_json_file_is_a_config_upon_another(tmp_path: Path):
    file = tmp_path / "parameters.json"
    file.write_text(json.dumps(PARAMETERS))
    config = parse(["--config", "demo", "--config", str(file), "seed=8"])
    assert config == parse(["--config", "demo", *words_of("args", PARAMETERS), "seed=8"])


def test_a_flag_and_a_value_after_a_space_are_told_apart():
    config = parse(["--deterministic", "--seed", "3", "--tf32", "True", "--data.augment", "off", "backend=native"])
    assert (config.deterministic, config.seed, config.tf32) == (True, 3, True)
    assert (config.data.augment, config.backend) == (False, "native")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed"], "'--seed': expected key=value"),
        (["--lr", "0.1"], "lr: no such key; did you mean optimizer.lr?"),
        (["--seed", "--tf32"], "seed='--tf32': expected a whole number"),
        (['{"seed": '], "not valid JSON"),
        (["[1]"], "expected key=value"),
        (['{"optimizer": 3}'], "optimizer=3: a group of options"),
        (["+"], "expected key=value"),
        (["++=3"], "expected key=value"),
    ],
)
def test_other_words_are_refused_in_one_line(words: list[str], message: str):
    with pytest.raises(UserError) as caught:
        parse(words)
    assert message in str(caught.value)
