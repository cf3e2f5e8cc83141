"""The entrypoint's command line: every form in which people and W&B's macros write options."""

from __future__ import annotations

import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from ampcompare.config.arguments import parse

# What a sweep may hand over; W&B's agent writes lists and groups with `str()`, as Python literals.
SWEPT = {
    "backend": "native",
    "batch_size": 64,
    "tf32": True,
    "max_steps": None,
    "precision.init_scale": 1e-05,
    "data": {"root": "a 'quoted' \"folder\": [x], None", "augment": False, "mean": [0.5, 0.4, 0.3]},
    "optimizer": {"lr": 1e-05, "fused": True},
    "wandb.tags": ["a", "b c", "d,e", "f: g", 'it\'s "h"'],
    "wandb.notes": """it's "x"=1, --seed=3""",
}
MACROS = ("args", "args_no_hyphens", "args_json", "args_append_hydra", "args_override_hydra")


@pytest.mark.parametrize("macro", MACROS)
def test_every_macro_of_wandb_gives_the_same_config(macro):
    forms = create_sweep_command_args({"args": {key: {"value": value} for key, value in SWEPT.items()}})
    config = parse(forms[macro])
    for key, value in SWEPT.items():
        for inner, wanted in value.items() if isinstance(value, dict) else [("", value)]:
            assert config.value(f"{key}.{inner}".rstrip(".")) == wanted
    assert config.optimizer.name == "sgd"


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


@pytest.mark.parametrize(
    "word",
    [
        "--precision.keep_fp32=layer4.2, *.bn3, fc,",
        "precision.keep_fp32=[layer4.2,*.bn3,fc]",
        "--precision={'keep_fp32': ['layer4.2', '*.bn3', 'fc']}",
        '{"precision.keep_fp32": ["layer4.2", "*.bn3", "fc"]}',
    ],
)
def test_names_of_modules_arrive_as_they_were_typed_stars_and_commas(word):
    assert parse(["backend=native", word]).precision.keep_fp32 == ["layer4.2", "*.bn3", "fc"]
