"""Recipes: what each sets, what takes precedence, and what is left out because a run does not have it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refusals import line_of

from ampcompare.config.load import config_from_cli
from ampcompare.config.recipes import describe_recipe
from ampcompare.config.schema import Config
from ampcompare.identity.run_identity import effective_options

NET = """
from torch import nn


def build(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))


def loss(outputs, targets):
    return outputs.sum()
"""
OWN = "model.name=./net.py:build"
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
PLAIN = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
ADAMW = {"name": "adamw", "lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.01}


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)


def settings(config: Config) -> tuple[dict[str, Any], float, float]:
    """Return the optimizer, the epochs of warm-up, and label smoothing."""
    optimizer = {key: getattr(config.optimizer, key) for key in SGD}
    return optimizer, config.schedule.warmup_epochs, config.training.label_smoothing


@pytest.mark.parametrize(
    ("words", "recipe", "expected"),
    [
        ("", "reference", (PLAIN, 0.0, 0.0)),
        ("recipe=stable", "stable", (SGD, 5.0, 0.1)),
        ("recipe=auto model.name=resnet18 epochs=15", "stable", (SGD, 1.5, 0.1)),
        (f"{OWN}", "adamw", (ADAMW, 5.0, 0.0)),
        (f"{OWN} optimizer.name=sgd", "adamw", (SGD, 5.0, 0.0)),
        (f"{OWN} recipe=auto epochs=5", "adamw", (ADAMW, 0.5, 0.0)),
        ("model.name=torchvision:resnet34 recipe=auto", "adamw", (ADAMW, 5.0, 0.0)),
    ],
)
def test_each_recipe_sets_its_settings(words: str, recipe: str, expected: tuple[Any, ...]):
    config = config_from_cli(words.split())
    assert config.recipe == recipe
    assert settings(config) == expected
    assert config.schedule.name == "cosine"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("recipe=stable optimizer.lr=0.05", {"optimizer.lr": 0.05}),
        (
            "recipe=stable optimizer={'lr':0.05,'momentum':0.8}",
            {"optimizer.lr": 0.05, "optimizer.momentum": 0.8},
        ),
        ("recipe=stable schedule.warmup_epochs=0", {"schedule.warmup_epochs": 0.0}),
        # The default value, set explicitly, is explicit.
        ("recipe=stable optimizer.weight_decay=0", {"optimizer.weight_decay": 0.0}),
        # What no longer fits is left out.
        ("recipe=stable optimizer.momentum=0", {"optimizer.momentum": 0.0, "optimizer.nesterov": False}),
        ("recipe=stable task.loss=mse", {"task.loss": "mse", "training.label_smoothing": 0.0}),
        (
            "recipe=stable task.loss=./net.py:loss",
            {"task.loss": "./net.py:loss", "training.label_smoothing": 0.0},
        ),
        (
            "recipe=stable optimizer.name=adam",
            {
                f"optimizer.{key}": value
                for key, value in (ADAMW | {"name": "adam", "weight_decay": 0.0}).items()
            },
        ),
        (
            "recipe=stable optimizer.name=adamw optimizer.lr=0.003",
            {f"optimizer.{key}": value for key, value in (ADAMW | {"lr": 0.003}).items()},
        ),
    ],
)
def test_what_is_set_takes_precedence_and_nothing_else_changes(words: str, changed: dict[str, Any]):
    stable, config = config_from_cli(["recipe=stable"]), config_from_cli(words.split())
    expected = effective_options(stable.to_dict()) | changed
    if "task.loss" in changed:
        expected["task.metrics"] = effective_options(config.to_dict())["task.metrics"]
        expected["task.metric"] = effective_options(config.to_dict())["task.metric"]
    assert effective_options(config.to_dict()) == expected


def test_a_config_file_takes_precedence_in_any_form(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "recipe: stable\nepochs: 20\noptimizer:\n  lr: 0.02\nschedule.warmup_epochs: 1\n"
    )
    config = config_from_cli(["--config", "mine.yaml"])
    assert settings(config) == (SGD | {"lr": 0.02}, 1.0, 0.1)
    config = config_from_cli(["--config", "mine.yaml", json.dumps({"optimizer": {"lr": 0.03}})])
    assert config.optimizer.lr == 0.03
    config = config_from_cli(["--config", "mine.yaml", "recipe=adamw"])
    assert settings(config) == (ADAMW | {"lr": 0.02}, 1.0, 0.0)
    # A file that sets everything is unchanged by a recipe that its network gets by default.
    reference = config_from_cli(["--config", "reference", OWN])
    assert settings(reference) == (PLAIN, 0.0, 0.0)
    assert settings(config_from_cli(["--config", "strong"])) == (SGD, 5.0, 0.1)
    assert config_from_cli(["--config", "strong"]).epochs == 200


def test_the_demo_trains_any_network_with_its_own_settings():
    own, built_in = (config_from_cli(["--config", "demo", word]) for word in (OWN, "model.name=tiny"))
    assert settings(own) == settings(built_in) == (PLAIN | {"lr": 0.05, "momentum": 0.9}, 0.5, 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recipe=stabel", "did you mean stable?"),
        (f"{OWN} optimizer.momentum=0.9", "only optimizer.name=sgd has momentum, and recipe=adamw"),
        ("recipe=stable optimizer.name=adamw optimizer.nesterov=true", "needs optimizer.name=sgd"),
        ("recipe=adamw task.loss=mse training.label_smoothing=0.1", "only task.loss=cross_entropy has it"),
        ("recipe=stable published.name=tootouch", "published.name=tootouch has its own optimizer"),
    ],
)
def test_a_wrong_recipe_and_options_that_do_not_fit_are_refused(words: str, said: str):
    assert said in line_of(config_from_cli, words.split())


def test_a_publication_is_unchanged_by_the_recipe_of_a_sweep():
    plain, auto = (config_from_cli(["published.name=tootouch", *words]) for words in ([], ["recipe=auto"]))
    assert plain == auto
    assert auto.recipe == "reference"


def test_other_options_can_name_the_recipe_and_decide_it():
    config = config_from_cli(
        ["recipe=auto", "wandb.group=run-${recipe}", "eval.every=5", "epochs=${eval.every}"]
    )
    assert (config.wandb.group, config.schedule.warmup_epochs) == ("run-stable", 0.5)


def test_runs_are_repeats_if_their_settings_agree_whatever_the_recipe_is_called():
    old = config_from_cli([]).to_dict()
    del old["recipe"]  # a record of version 0.3
    same, other = (
        effective_options(config_from_cli([f"recipe={name}"]).to_dict()) for name in ("reference", "stable")
    )
    assert effective_options(old) == same != other
    explicit = [f"optimizer.{key}={value}" for key, value in SGD.items()]
    explicit += ["schedule.warmup_epochs=5", "training.label_smoothing=0.1"]
    assert effective_options(config_from_cli(explicit).to_dict()) == other


def test_the_recipe_is_described_with_its_values():
    described = {
        "recipe=stable epochs=5": (
            "recipe stable: sgd, lr=0.1, momentum=0.9, nesterov=true, weight_decay=0.0005, cosine, "
            "warmup_epochs=0.5, label_smoothing=0.1"
        ),
        f"{OWN} epochs=15 optimizer.lr=0.01": (
            "recipe adamw: adamw, lr=0.01, weight_decay=0.01, cosine, warmup_epochs=1.5; "
            "not from the recipe: lr=0.01"
        ),
    }
    assert {words: describe_recipe(config_from_cli(words.split())) for words in described} == described


def test_adamw_has_the_defaults_of_pytorch():
    defaults = torch.optim.AdamW([torch.zeros(1)]).defaults
    optimizer = config_from_cli(["recipe=adamw"]).optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (defaults["lr"], defaults["weight_decay"])
