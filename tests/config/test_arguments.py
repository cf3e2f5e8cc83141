"""The entrypoint's command line: every form in which people and W&B's macros write options."""

from __future__ import annotations

import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from ampcompare.config.arguments import parse
from ampcompare.errors import UserError

# What a sweep may hand over: text, whole and small numbers, true, false, None, a list, a group.
SWEPT = {
    "backend": "native",
    "batch_size": 64,
    "tf32": True,
    "data.augment": False,
    "max_steps": None,
    "precision.init_scale": 1e-05,
    "data.mean": [0.5, 0.4, 0.3],
    "optimizer": {"lr": 1e-05, "fused": True},
}
ALL_MACROS = (
    "args",
    "args_no_hyphens",
    "args_no_boolean_flags",
    "args_json",
    "args_append_hydra",
    "args_override_hydra",
)


@pytest.mark.parametrize(
    "macro",
    ["args", "args_no_hyphens", "args_json", "args_append_hydra", "args_override_hydra"],
)
def test_every_macro_of_wandb_gives_the_same_config(macro):
    forms = create_sweep_command_args({"args": {key: {"value": value} for key, value in SWEPT.items()}})
    config = parse(forms[macro])
    assert (config.backend, config.batch_size, config.tf32, config.max_steps) == ("native", 64, True, None)
    assert (config.data.augment, config.data.mean, config.precision.init_scale) == (
        False,
        [0.5, 0.4, 0.3],
        1e-05,
    )
    assert (config.optimizer.lr, config.optimizer.fused, config.optimizer.name) == (1e-05, True, "sgd")


def test_quotes_blanks_and_commas_survive_every_macro():
    """W&B's agent writes lists and groups with `str()`, as Python literals."""
    swept = {
        "wandb.tags": ["a", "b c", "d,e", "f: g", 'it\'s "h"'],
        "wandb.notes": """it's "x"=1, --seed=3""",
        "data": {"root": "a 'quoted' \"folder\": [x], None", "train_limit": None},
        "schedule": {"warmup_epochs": 1e-05},
    }
    forms = create_sweep_command_args({"args": {key: {"value": value} for key, value in swept.items()}})
    for macro in ALL_MACROS:
        config = parse(["--config", "demo", *forms[macro]])
        assert config.wandb.tags == swept["wandb.tags"], macro
        assert config.wandb.notes == swept["wandb.notes"], macro
        assert (config.data.root, config.data.train_limit) == (swept["data"]["root"], None), macro
        assert config.schedule.warmup_epochs == 1e-05, macro


def test_flags_without_false_ones():
    forms = create_sweep_command_args({"args": {"tf32": {"value": True}, "deterministic": {"value": False}}})
    assert forms["args_no_boolean_flags"] == ["--tf32"]
    config = parse([*forms["args_no_boolean_flags"], "backend=native"])
    assert (config.tf32, config.deterministic, config.backend) == (True, False, "native")


def test_json_file(tmp_path):
    path = tmp_path / "given.json"
    path.write_text('{"backend": "fp16", "optimizer.lr": 0.5}')
    config = parse([str(path), "optimizer.lr=0.25"])
    assert (config.backend, config.optimizer.lr) == ("fp16", 0.25)


@pytest.mark.parametrize("words", [["--config", "demo"], ["--config=demo"], ["seed=1", "--config", "demo"]])
def test_config_is_named_in_each_form(words):
    assert parse(words).model.stem == "imagenet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config"], "--config: expected a name or a path after it"),
        (["--config="], "--config: expected a name or a path after it"),
        (["--epochs", "3"], "--epochs: expected --epochs=VALUE, a whole number at least 1"),
        (["--fast"], "'--fast': expected key=value"),
        (["--batch-size", "12"], "did you mean batch_size?"),
        (["backend"], "'backend': expected key=value"),
        (["{1}"], "{1}: not valid JSON"),
        (['{"backend": "O1"}'], "backend='O1': expected one of"),
        (["nothing.json"], "nothing.json: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_words_are_told(words, said):
    with pytest.raises(UserError) as caught:
        parse(words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["precision.keep_fp32=layer4.2,*.bn3,fc"],
        ["--precision.keep_fp32=layer4.2,*.bn3,fc"],
        ["--precision.keep_fp32=layer4.2, *.bn3, fc,"],
        ["precision.keep_fp32=[layer4.2,*.bn3,fc]"],
        ["precision.keep_fp32=['layer4.2', '*.bn3', 'fc']"],
        ["--precision={'keep_fp32': ['layer4.2', '*.bn3', 'fc']}"],
        ['{"precision.keep_fp32": ["layer4.2", "*.bn3", "fc"]}'],
        ['{"precision": {"keep_fp32": "layer4.2,*.bn3,fc"}}'],
    ],
)
def test_names_of_modules_arrive_as_they_were_typed_stars_and_commas(words):
    assert parse(["backend=native", *words]).precision.keep_fp32 == ["layer4.2", "*.bn3", "fc"]
