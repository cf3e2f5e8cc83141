"""The options of a run: what files, words and W&B's macros become, and the one line that a mistake gets."""

import json
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support.refusals import line_of
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args
from wandb.sdk.lib.config_util import save_config_file_from_dict

from ampcompare.config.load import check_parameters, check_sweep_values, config_from_cli, load_config
from ampcompare.config.schema import Config
from ampcompare.config.task_spec import compared_key
from ampcompare.publications.publication import load_publication
from ampcompare.runtime.paths import list_shipped
from ampcompare.sweeps.sweep_file import read_sweep


def message(*words: str, name: str | None = None) -> str:
    return line_of(load_config, name, words)


def test_a_bundled_name_never_means_a_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    readers = {"configs": load_config, "sweeps": read_sweep, "configs/published": load_publication}
    for folder, read in readers.items():
        for name in list_shipped(folder):
            expected = read(name)
            for file in (name, f"{name}.yaml"):
                assert read(file) == expected
                Path(file).write_text("notes: [of mine")
                assert name in line_of(read, f"./{file}")
                assert read(name) == expected


def test_a_list_is_written_with_commas_or_in_brackets(subtests: pytest.Subtests):
    for word, value in [
        ("wandb.tags=a, b c,007", ["a", "b c", "007"]),
        ("wandb.tags=['a', 'b, c']", ["a", "b, c"]),
        ("wandb.tags=[]", []),
        ("data.mean=0.5,1e-1,0", [0.5, 0.1, 0.0]),
        ("plan.looks=3", [3]),
        ("--precision.keep_fp32=1.10, fc,[ab]*,fc,", ["1.10", "fc", "[ab]*"]),
        ("precision.keep_fp32=[layer4.2,*.bn3,fc]", ["layer4.2", "*.bn3", "fc"]),
        ("precision.keep_fp32=[]", None),
    ]:
        with subtests.test(word=word):
            key = word.removeprefix("--").partition("=")[0]
            assert json.dumps(config_from_cli([word]).value(key)) == json.dumps(value)
    said = line_of(config_from_cli, ['{"precision.keep_fp32": [1.10]}'])
    assert said.startswith("precision.keep_fp32=[1.1]: ")


def test_words_become_values(subtests: pytest.Subtests):
    for word, key, value in [
        ("deterministic=True", "deterministic", True),  # str() of a bool, as W&B's agent writes it
        ("deterministic=off", "deterministic", False),
        ("optimizer.lr=1e-05", "optimizer.lr", 1e-05),
        ("max_steps=None", "max_steps", None),
        ("max_steps=1e3", "max_steps", 1000),
        ("optimizer={'lr': 0.25, 'momentum': 0.5}", "optimizer.lr", 0.25),  # nested parameters of a sweep
        ("wandb.name=a=b: [c] {d} #e", "wandb.name", "a=b: [c] {d} #e"),  # a text stays as it was typed
        ("wandb.name=123", "wandb.name", "123"),
        ("precision.loss_scale=Dynamic", "precision.loss_scale", "dynamic"),
        ("data.root=/tmp/a folder/été", "data.root", "/tmp/a folder/été"),
    ]:
        with subtests.test(word=word, key=key, value=value):
            found = load_config(None, [word]).value(key)
            assert found == value
            assert type(found) is type(value)


def test_an_interpolation_is_refused_before_it_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`${oc.env:WANDB_API_KEY}` in a user's config would put the key into the record."""
    resolved: list[str] = []
    OmegaConf.register_resolver("test.spy", resolved.append, replace=True, annotation_validation="off")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    file = tmp_path / "mine.yaml"
    for text in ("${test.spy:1}", "${oc.env:WANDB_API_KEY}", "${oc.env:${wandb.name}}"):
        for values in (
            {"wandb": {"name": "WANDB_API_KEY", "notes": text}},
            {"wandb.tags": ["a", text]},
            {"wandb.tags": f"[a, {text}]"},
            {"max_steps": text},
            {"model.kwargs": {"a": {"b": [text]}}},
            {"model.kwargs": {text: 1}},
            {"model": f"{{'name': '{text}'}}"},
        ):
            file.write_text(yaml.safe_dump(values))
            over = ["model.kwargs.a.b=1", "wandb.notes=x", "wandb.name=y"]  # resolves nothing
            ways = [(load_config, str(file), over), (config_from_cli, [json.dumps(values), *over])]
            if len(values) == 1 and isinstance(*values.values(), str):
                ways.append((config_from_cli, ["=".join([*values, *values.values()])]))
            for way in ways:
                said = line_of(*way)
                assert "${...} may only name another option" in said
                assert "secret" not in said
    assert not resolved


def test_the_first_metric_is_compared_unless_another_is_named():
    for words, key in (
        ([], "eval/accuracy"),
        (["task.loss=mse"], "eval/mse"),
        (["task.metrics=[top5_accuracy,accuracy]"], "eval/top5_accuracy"),
        (["task.metrics=[top5_accuracy,accuracy]", "task.metric=accuracy"], "eval/accuracy"),
    ):
        task = config_from_cli(words).task
        assert compared_key(task.loss, task.metrics, task.metric) == key


def test_a_bad_file_is_named_with_the_place(tmp_path: Path, subtests: pytest.Subtests):
    for content, expected in [
        ("backend: native\n\tseed: 1\n", "line 2: not valid YAML"),
        ("- a\n- b\n", "expected lines of the form key: value"),
        ("optimizer:\n  rate: 0.1\n", "optimizer.rate: no such key"),
        ("optimizer:\n  lr: fast\n", "optimizer.lr='fast': expected a number above 0"),
        ("method: grid\nparameters: {}\n", "ampcompare sweep "),
        ("wandb:\n  notes: ${oc.env:HOME}\n", "${...} may only name another option"),
        ("model: &a [*a]\n", "recursive aliases"),
    ]:
        with subtests.test(content=content, expected=expected):
            path = tmp_path / "mine.yaml"
            path.write_text(content)
            text = message(name=str(path))
            assert "mine.yaml" in text
            assert expected in text


def test_a_value_may_refer_to_other_options_whatever_sets_them_in_the_end(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "wandb: {group: 'strong-${backend}', name: '${wandb.group}-${seed}', tags: ['${model.name}', b]}\n"
        "data: {mean: '${data.std}'}\nepochs: ${batch_size}\nbatch_size: ???\n"
    )
    config = load_config(str(path), ["backend=native", "batch_size=1e1", "data.std=[1,2,3]"])
    assert (config.wandb.group, config.wandb.name, config.epochs) == (
        "strong-native",
        "strong-native-223",
        10,
    )
    assert type(config.wandb.tags) is list
    assert (config.wandb.tags, config.data.mean) == (["resnet50", "b"], [1.0, 2.0, 3.0])
    assert "batch_size=???: has no value" in message(name=str(path))
    assert load_config(None, ["wandb.group=${backend}"]).wandb.group == "none"  # no null
    assert load_config(None, ["wandb.notes=${wandb.name}"]).wandb.notes is None


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


def test_every_macro_of_wandb_gives_the_same_config(subtests: pytest.Subtests):
    forms = create_sweep_command_args({"args": {key: {"value": value} for key, value in SWEPT.items()}})
    for macro in MACROS:
        with subtests.test(macro=macro):
            config = config_from_cli(forms[macro])
            for key, value in SWEPT.items():
                for inner, wanted in value.items() if isinstance(value, dict) else [("", value)]:
                    assert config.value(f"{key}.{inner}".rstrip(".")) == wanted
            assert config.optimizer.name == "sgd"
    forms = create_sweep_command_args({"args": {"tf32": {"value": True}, "deterministic": {"value": False}}})
    config = config_from_cli([*forms["args_no_boolean_flags"], "backend=native"])
    assert (config.tf32, config.deterministic) == (True, False)


def kwargs(*words: str) -> dict[str, object]:
    return config_from_cli(words).model.kwargs


def test_a_word_is_typed_by_yaml(subtests: pytest.Subtests):
    for word, value in [
        ("64", 64),
        ("1e-5", 1e-5),  # a text to YAML 1.1
        ("true", True),
        ("None", None),
        ("", None),
        ('"64"', "64"),
        ("none", "none"),
        ("2024-01-01", "2024-01-01"),
        ("#ff0000", "#ff0000"),
        ("[1, 2.5, x]", [1, 2.5, "x"]),
        ("{a: {b: [1e-3]}}", {"a": {"b": [1e-3]}}),
        ("{'a': {'b': None}}", {"a": {"b": None}}),
    ]:
        with subtests.test(word=word, value=value):
            found = kwargs(f"model.kwargs.x={word}")["x"]
            assert json.dumps(found) == json.dumps(value)


def test_a_later_word_adds_to_the_tree_and_null_empties_it(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  kwargs:\n    width: 1e2\n    act: {kind: relu, slope: 1}\ndata.kwargs.n: 5\n")
    config = load_config(str(file), ["model.kwargs.act.slope=2", "model.kwargs={depth: 3}"])
    assert config.model.kwargs == {"width": 100.0, "act": {"kind": "relu", "slope": 2}, "depth": 3}
    assert config.data.kwargs == {"n": 5}
    assert load_config(str(file), ["model.kwargs=null", "model.kwargs.a=1"]).model.kwargs == {"a": 1}


def test_values_that_are_no_mapping_get_one_line(subtests: pytest.Subtests):
    for word in [
        "model.kwargs.=1",
        "model.kwargs.a..b=1",
        "model.kwargs.a=\0",
        "model.kwargs.a=\udcff",
        "model.kwargs.\udcff=1",
        "model.kwargs={null: 2}",
        "model.kwargs.a=" + "[" * 100_000,
        "model.kwargs.a=[&a [*a]]",
        "model.kwargs.a=!!python/object:os.system x",
        "model.kwargs.a=[1j]",
        "model.kwargs.a=b: c: d",
        "model.kwargs.a=${oc.env:HOME}",
        "model.kwargs.a=${model.kwargs}",
        "model.kwargs={a: '${model.kwargs.b}', b: '${model.kwargs.a}'}",
        "model.kwargs.a=???",
        "model.kwargs=64",
        "model.kwarg.a=1",
        "--model.kwargs.a",
    ]:
        with subtests.test(word=word):
            assert len(line_of(config_from_cli, [word])) < 3000


def test_a_recorded_tree_is_the_config_again(tmp_path: Path):
    config = config_from_cli(["model.kwargs={a: '1', b: [1, null], c: {d: 1e-7}}", "data.kwargs.e=true"])
    file = tmp_path / "recorded.yaml"
    for write in (yaml.safe_dump, json.dumps):
        file.write_text(write(config.to_dict()))
        assert load_config(str(file)) == config
    assert "kwargs" not in Config().to_dict()["model"]  # W&B's server loses an empty one


CHOSEN = {"data.augment": False, "optimizer": {"lr": 1e-05}, "max_steps": None, "mine": 3}


def test_values_chosen_by_the_agent_must_be_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "gone.yaml"))
    check_sweep_values(load_config())
    file = tmp_path / "sweep-x" / "config-y.yaml"
    save_config_file_from_dict(str(file), {key: {"value": value} for key, value in CHOSEN.items()})
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))
    passed = ["data.augment=False", "optimizer={'lr': 1e-05}"]
    check_sweep_values(load_config(None, passed))
    for words, said in [
        (passed[1:], "data.augment=True: the sweep chose False"),
        (passed[:1], "optimizer.lr=0.1: the sweep chose 1e-05"),
        ([*passed, "max_steps=3"], "max_steps=3: the sweep chose None"),
    ]:
        assert line_of(check_sweep_values, load_config(None, words)).startswith(said)


def test_a_list_or_a_group_may_be_written_as_a_text(tmp_path: Path):
    """As a sweep's file has it, which the command passes on as a word or as JSON."""
    chosen = {"schedule.milestones": "[2,3]", "optimizer": "{'lr': 0.2}", "model": {"kwargs": "{a: 1}"}}
    words = ["schedule.name=multistep", *(f"{key}={value}" for key, value in chosen.items())]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"schedule.name": "multistep", **chosen}))
    of_words, of_json, of_file = (
        config_from_cli(words),
        config_from_cli([words[0], json.dumps(chosen)]),
        load_config(str(file)),
    )
    for config in (of_words, of_json, of_file):
        found = (config.schedule.milestones, config.optimizer.lr, config.model.kwargs)
        assert found == ([2, 3], 0.2, {"a": 1})
        check_parameters(config, chosen)
    said = line_of(check_parameters, of_words, {"data.mean": "[1,1"})
    assert said.startswith("data.mean='[1,1': expected a list")


TREE = "model.kwargs={width: 64, act: gelu, drop: 1e-5}"


def test_chosen_values_are_compared_after_conversion_and_in_mappings_with_type(subtests: pytest.Subtests):
    for words, chosen, said in [
        ("wandb.group=strong-${backend}", {"wandb.group": "strong-${backend}"}, ""),
        ("wandb.group=a-${backend}", {"wandb": {"group": "b-${backend}"}}, "wandb.group='a-none': the sweep"),
        (TREE, {"model.kwargs.width": 64, "model": {"kwargs": {"act": "gelu"}}}, ""),
        (TREE, {"model.kwargs.drop": "1e-5"}, ""),  # as `wandb sweep` reads it
        ("model.kwargs.drop='1e-5'", {"model.kwargs.drop": "1e-5"}, ""),
        (TREE, {"model.kwargs.width": 32}, "model.kwargs.width=64: the sweep chose 32"),
        (TREE, {"model.kwargs": {"width": True}}, "model.kwargs.width=64: the sweep chose True"),
        (TREE, {"model.kwargs.depth": 3}, "model.kwargs.depth=None: the sweep chose 3"),
    ]:
        with subtests.test(words=words, chosen=chosen):
            config = load_config(None, [words])
            if said:
                assert line_of(check_parameters, config, chosen).startswith(said)
            else:
                check_parameters(config, chosen)
