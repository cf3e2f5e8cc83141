"""A run of a sweep is refused when it was started with other values than the sweep chose."""

from __future__ import annotations

from pathlib import Path

import pytest
from wandb.sdk.lib.config_util import save_config_file_from_dict

from ampcompare.config.load import load_config
from ampcompare.config.sweep_choice import check_chosen, check_parameters
from ampcompare.errors import UserError

CHOSEN = {"data.augment": False, "optimizer": {"lr": 1e-05}, "max_steps": None, "mine": 3}


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What W&B's agent writes for the client."""
    file = tmp_path / "sweep-x" / "config-y.yaml"
    save_config_file_from_dict(str(file), {key: {"value": value} for key, value in CHOSEN.items()})
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))


@pytest.mark.usefixtures("chosen")
def test_the_sweeps_values_pass():
    check_chosen(load_config(None, ["data.augment=False", "optimizer={'lr': 1e-05}", "max_steps=None"]))


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.lr=1e-05"], "data.augment=True: the sweep chose False"),
        (["data.augment=false"], "optimizer.lr=0.1: the sweep chose 1e-05"),
        (["data.augment=false", "optimizer.lr=1e-05", "max_steps=3"], "max_steps=3: the sweep chose None"),
    ],
)
def test_a_value_that_did_not_arrive_is_refused(words: list[str], message: str):
    with pytest.raises(UserError) as caught:
        check_chosen(load_config(None, words))
    assert message in str(caught.value)


def test_a_value_that_refers_to_another_option_is_compared_as_what_it_comes_to():
    config = load_config(None, ["wandb.group=strong-${backend}", "backend=native"])
    check_parameters(config, {"wandb.group": "strong-${backend}"})
    with pytest.raises(UserError, match=r"wandb\.group='strong-native': the sweep chose 'weak-native'"):
        check_parameters(config, {"wandb": {"group": "weak-${backend}"}})


def test_without_a_sweep_there_is_nothing_to_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    check_chosen(load_config())
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "gone.yaml"))
    check_chosen(load_config())
