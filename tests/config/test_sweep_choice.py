"""A run of a sweep is refused when it was started with other values than the sweep chose."""

from __future__ import annotations

from pathlib import Path

import pytest
from wandb.sdk.lib.config_util import save_config_file_from_dict

from ampcompare.config.load import check_chosen, check_parameters, load_config
from ampcompare.errors import UserError

CHOSEN = {"data.augment": False, "optimizer": {"lr": 1e-05}, "max_steps": None, "mine": 3}


def test_what_the_agent_left_has_to_be_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "gone.yaml"))
    check_chosen(load_config())
    file = tmp_path / "sweep-x" / "config-y.yaml"
    save_config_file_from_dict(str(file), {key: {"value": value} for key, value in CHOSEN.items()})
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))
    passed = ["data.augment=False", "optimizer={'lr': 1e-05}"]
    check_chosen(load_config(None, passed))
    for words, said in [
        (passed[1:], "data.augment=True: the sweep chose False"),
        (passed[:1], "optimizer.lr=0.1: the sweep chose 1e-05"),
        ([*passed, "max_steps=3"], "max_steps=3: the sweep chose None"),
    ]:
        with pytest.raises(UserError, match=f"^{said}"):
            check_chosen(load_config(None, words))


def test_a_value_that_refers_to_another_option_is_compared_as_what_it_comes_to():
    config = load_config(None, ["wandb.group=strong-${backend}", "backend=native"])
    check_parameters(config, {"wandb.group": "strong-${backend}"})
    with pytest.raises(UserError, match=r"wandb\.group='strong-native': the sweep chose 'weak-native'"):
        check_parameters(config, {"wandb": {"group": "weak-${backend}"}})


def test_what_is_in_a_tree_is_compared_with_its_type():
    config = load_config(None, ["model.kwargs={width: 64, act: gelu, drop: 1e-5}"])
    check_parameters(config, {"model.kwargs.width": 64, "model": {"kwargs": {"act": "gelu"}}})
    check_parameters(config, {"model.kwargs.drop": "1e-5"})  # as `wandb sweep` reads it
    for chosen in ({"model.kwargs.width": 32}, {"model.kwargs": {"width": True}}, {"model.kwargs.depth": 3}):
        with pytest.raises(UserError, match=r"the sweep chose .* did not pass that on"):
            check_parameters(config, chosen)
