"""The config: what files and words become, and the one line that a mistake gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import ROOT

from ampcompare.config.canonical import canonical
from ampcompare.config.load import load_config
from ampcompare.config.schema import Config
from ampcompare.errors import UserError
from ampcompare.program.place import names_shipped, shipped


def message(*words: str, name: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_config(name, words)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_reference_is_the_seed_experiment():
    config = load_config("reference")
    assert (config.model.name, config.model.stem, config.data.source) == ("resnet50", "cifar", "cifar10")
    assert (config.batch_size, config.epochs, config.seed) == (128, 100, 223)
    assert (config.optimizer.name, config.optimizer.lr) == ("sgd", 0.1)
    assert (config.optimizer.momentum, config.optimizer.weight_decay) == (0.0, 0.0)
    assert (config.schedule.name, config.schedule.warmup_epochs) == ("cosine", 0.0)
    assert config.data.mean == [0.4914, 0.4822, 0.4465]
    assert config.data.std == [0.2023, 0.1994, 0.2010]
    assert config.data.augment is True
    assert config.tf32 is False
    assert config.wandb.project == "comparison-amp"


@pytest.mark.parametrize("name", names_shipped("configs"))
def test_every_config_file_loads(name: str):
    assert isinstance(load_config(name), Config)
    assert load_config(str(shipped("configs") / f"{name}.yaml")) == load_config(name)


def test_words_become_values(subtests: pytest.Subtests):
    for word, key, value in [
        ("deterministic=True", "deterministic", True),  # str() of a bool, as W&B's agent writes it
        ("deterministic=off", "deterministic", False),
        ("optimizer.lr=1e-05", "optimizer.lr", 1e-05),
        ("max_steps=None", "max_steps", None),
        ("max_steps=1e3", "max_steps", 1000),
        ("optimizer={'lr': 0.25, 'momentum': 0.5}", "optimizer.lr", 0.25),  # nested parameters of a sweep
        ("wandb.tags=[a, b]", "wandb.tags", ["a", "b"]),
        ("wandb.name=a=b: [c] {d} #e", "wandb.name", "a=b: [c] {d} #e"),  # a text stays as it was typed
        ("wandb.name=123", "wandb.name", "123"),
        ("precision.loss_scale=128", "precision.loss_scale", 128.0),
        ("precision.loss_scale=Dynamic", "precision.loss_scale", "dynamic"),
        ("data.root=/tmp/a folder/été", "data.root", "/tmp/a folder/été"),
    ]:
        with subtests.test(word=word, key=key, value=value):
            found = load_config(None, [word]).value(key)
            assert found == value
            assert type(found) is type(value)


def test_a_bad_file_is_named_with_the_place(tmp_path: Path, subtests: pytest.Subtests):
    for content, expected in [
        ("backend: native\n\tseed: 1\n", "line 2: not valid YAML"),
        ("- a\n- b\n", "expected lines of the form key: value"),
        ("seed: 1\nseed: 2\n", "line 2: not valid YAML: found duplicate key seed"),
        ("optimizer:\n  rate: 0.1\n", "optimizer.rate: no such key"),
        ("optimizer:\n  lr: fast\n", "optimizer.lr='fast': expected a number above 0"),
        ("backend: null\n", "backend=None: expected one of none"),
        ("method: grid\nparameters: {}\n", "ampcompare sweep "),
        ("wandb:\n  notes: ${oc.env:HOME}\n", "of ${...} only another option's key is understood"),
        ("model: &a [*a]\n", "recursive aliases"),
    ]:
        with subtests.test(content=content, expected=expected):
            path = tmp_path / "mine.yaml"
            path.write_text(content)
            text = message(name=str(path))
            assert "mine.yaml" in text
            assert expected in text


def test_bytes_that_are_no_text_and_missing_files_are_named(tmp_path: Path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert "binary.yaml" in message(name=str(path))
    assert "no such file; expected a path or one of demo, reference, strong" in message(name="nowhere")
    assert message(name="a\0b")


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
    with pytest.raises(
        UserError, match=r"batch_size=\?\?\?: has to be given; expected a whole number at least 1"
    ):
        load_config(str(path))


@pytest.mark.parametrize("content", ["", "optimizer:\nseed: 223\n"])
def test_an_empty_file_and_an_empty_group_are_the_defaults(tmp_path: Path, content: str):
    (tmp_path / "empty.yaml").write_text(content)
    assert load_config(str(tmp_path / "empty.yaml")) == Config()


def test_settings_are_the_same_that_train_the_same():
    def same(one: str, other: str, **environment: str) -> bool:
        configs = (load_config(None, words.split()).to_dict() for words in (one, other))
        return len({repr(canonical(config, environment)) for config in configs}) == 1

    assert same("output_dir=a plan.margin=1", "wandb.tags=[a]")  # bookkeeping
    assert same("precision.keep_fp32=fc,bn1 backend=native", "precision.keep_fp32=bn1,fc backend=native")
    assert same("", "task.metrics=[accuracy,top5_accuracy] task.metric=accuracy")  # what null comes to
    assert same("memory_format=auto", "memory_format=contiguous", memory_format="contiguous")
    assert same("backend=bf16 precision.init_scale=2", "backend=bf16")  # which scales no loss
    assert not same("backend=native precision.init_scale=2", "backend=native")
    assert not same("model.kwargs.a=1", "model.kwargs.a='1'")
    assert canonical({}) == canonical(Config().to_dict())  # what a record lacks has the default


def test_the_schema_and_the_reports_settings_load_without_torch():
    code = "import sys, ampcompare.config.check, ampcompare.report.runs.settings; "
    code += "assert not {'torch', 'omegaconf'} & set(sys.modules), sorted(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
