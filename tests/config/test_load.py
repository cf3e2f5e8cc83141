"""The config: what files and words become, and the one line that a mistake gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.config.load import load_config
from ampcompare.config.schema import LEAVES, Config
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


def test_later_words_win_and_both_forms_are_understood():
    config = load_config("demo", ["--backend=native", "optimizer.lr=0.05", "backend=apex_o1", "--seed=1"])
    assert (config.backend, config.optimizer.lr, config.seed) == ("apex_o1", 0.05, 1)


def test_words_become_values(subtests: pytest.Subtests):
    for word, key, value in [
        ("deterministic=True", "deterministic", True),  # str() of a bool, as W&B's agent writes it
        ("deterministic=false", "deterministic", False),
        ("optimizer.lr=1e-05", "optimizer.lr", 1e-05),
        ("max_steps=None", "max_steps", None),
        ("max_steps=null", "max_steps", None),
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
            found: object = load_config(None, [word])
            for part in key.split("."):
                found = getattr(found, part)
            assert found == value
            assert type(found) is type(value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("backend=native", "precision.min_loss_scale=1"), "backend=native has neither floor nor ceiling"),
        (
            ("backend=native", "precision.keep_batchnorm_fp32=true"),
            "backend=native has fp32 weights, BatchNorm's too",
        ),
        (("backend=apex_o1", "precision.keep_batchnorm_fp32=false"), "backend=apex_o1 has fp32 weights"),
        (("backend=apex_o1", "precision.min_loss_scale=1e6"), "expected at most precision.init_scale"),
        (("optimizer.name=adam", "optimizer.momentum=0.9"), "only sgd has it"),
    ],
)
def test_values_that_do_not_go_together_are_refused(words: tuple[str, ...], expected: str):
    assert expected in message(*words)


def test_a_bad_file_is_named_with_the_place(tmp_path: Path, subtests: pytest.Subtests):
    for content, expected in [
        ("backend: native\n\tseed: 1\n", "line 2: not valid YAML"),
        ("backend: [native\n", "not valid YAML"),
        ("- a\n- b\n", "expected lines of the form key: value"),
        ("just words\n", "expected lines of the form key: value, found a str"),
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
    assert message(name="x" * 5000)
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


def test_an_empty_file_and_an_empty_group_are_the_defaults(tmp_path: Path):
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert load_config(str(path)) == Config()
    path.write_text("optimizer:\nseed: 223\n")
    assert load_config(str(path)) == Config()


def test_a_flat_key_in_a_file_is_understood(tmp_path: Path):
    path = tmp_path / "flat.yaml"
    path.write_text("optimizer.lr: 0.5\n")
    assert load_config(str(path)).optimizer.lr == 0.5


def test_every_option_says_what_it_means():
    for leaf in LEAVES.values():
        assert leaf.meta["help"], leaf.key
        assert leaf.allowed, leaf.key


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan.looks=[3,3]",), "plan.looks=[3, 3]: expected rising numbers of seeds, such as [3,6,10]"),
        (("plan.looks=[]",), "plan.looks=[]: expected rising numbers of seeds"),
        (
            ("plan.looks=[1,3]",),
            "plan.looks=[1, 3]: expected a list of whole numbers, each at least 2, such as",
        ),
        (("plan.looks=[2.5]",), "plan.looks=[2.5]: expected a list of whole numbers, each at least 2"),
        (("plan.looks=[3,true]",), "expected a list of whole numbers"),
        (("plan.looks=3",), "plan.looks=3: expected a list of whole numbers"),
        (("plan.looks=[3,6]", "plan.max_seeds=5"), "plan.max_seeds=5: plan.looks=[3, 6] goes further"),
        (("plan.margin=0",), "plan.margin='0': expected a number above 0, or null"),
        (("plan.control=null",), "plan.control='null': expected one of none, bookends; did you mean none?"),
    ],
)
def test_a_plan_that_is_none_is_one_line(words, message):
    with pytest.raises(UserError) as caught:
        load_config(None, words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("plan.margin=0.5", "plan.looks=[3,6,10]", "plan.max_seeds=10", "plan.control=bookends"),
        ("plan={'margin': 0.5, 'looks': [3, 6, 10], 'max_seeds': 10.0, 'control': 'bookends'}",),
        ('plan={"margin": 0.5, "looks": [3.0, 6, 10], "max_seeds": 10, "control": "bookends"}',),
    ],
)
def test_a_plan_is_read_as_people_and_agents_write_it(words):
    plan = load_config(None, words).plan
    assert (plan.margin, plan.looks, plan.max_seeds, plan.control) == (0.5, [3, 6, 10], 10, "bookends")
    assert plan.target is None
