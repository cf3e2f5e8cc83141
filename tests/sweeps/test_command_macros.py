"""Command macros: the same words as W&B's agent makes of them."""

import json
import sys

import pytest
from wandb.sdk.launch.sweeps import utils as wandb_utils

from ampcompare.sweeps.command_macros import ARGS_FORMS, DEFAULT_COMMAND, build_command

PARAMETERS = {
    "backend": "native",
    "tf32": True,
    "augment": False,
    "lr": 1e-05,
    "steps": None,
    "optimizer": {"lr": 0.1},
}


@pytest.mark.parametrize("form", [form for form in ARGS_FORMS if form != "args_json_file"])
def test_arguments_are_those_of_wandb_agent(tmp_path, form):
    theirs = wandb_utils.create_sweep_command_args({"args": {k: {"value": v} for k, v in PARAMETERS.items()}})
    assert build_command([f"${{{form}}}"], None, PARAMETERS, tmp_path / "p.json") == theirs[form]


def test_default_command_is_wandb_agents(tmp_path):
    assert list(DEFAULT_COMMAND) == wandb_utils.DEFAULT_SWEEP_COMMAND
    words = build_command(DEFAULT_COMMAND, "train.py", {"a": 1}, tmp_path / "p.json")
    assert words == ["/usr/bin/env", sys.executable, "train.py", "--a=1"]


def test_arguments_as_a_json_file(tmp_path):
    file = tmp_path / "p.json"
    assert build_command(["${args_json_file}"], None, PARAMETERS, file) == [str(file)]
    assert json.loads(file.read_text()) == PARAMETERS


def test_environment_macro_is_filled_and_an_unset_one_is_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("AMOUNT", "3")
    monkeypatch.delenv("NOT_SET", raising=False)
    words = build_command(["--n=${envvar:AMOUNT}", "${envvar:NOT_SET}"], None, {}, tmp_path / "p.json")
    assert words == ["--n=3", "NOT_SET"]
