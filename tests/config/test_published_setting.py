"""A run that names a publication takes its setting, below what file and words say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.checkpoint.resume import Identity
from ampcompare.config.arguments import parse
from ampcompare.config.load import typed_values
from ampcompare.config.options import Role
from ampcompare.config.publication import arm_config
from ampcompare.config.schema import LEAVES, Config
from ampcompare.errors import UserError
from ampcompare.published.publication import load, names

PAPER = """
title: A paper
source: Somebody
setting:
  model: {name: resnet18, kwargs: {}}
  data: {source: cifar10}
  batch_size: 256
  epochs: 20
  schedule: {warmup_epochs: 5}
baseline: none
arms:
  none: {backend: none, tf32: true}
  "O1 = half": {backend: apex_o1, batch_size: 512}
  "32": {backend: fp16, precision.loss_scale: 1}
figures: {}
"""
ARMS = [(name, arm) for name in names() for arm in load(name).arms]


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER)
    return path


def of(name: object, arm: str = "", *words: str) -> Config:
    return parse([f"published.name={name}", *([f"published.arm={arm}"] if arm else []), *words])


def test_an_arm_has_its_setting_and_its_own_keys_and_nothing_else(subtests: pytest.Subtests):
    for name, arm in ARMS:
        with subtests.test(name=name, arm=arm):
            publication, config = load(name), of(name, arm)
            keys = typed_values(Config(), dict(publication.setting) | dict(publication.arms[arm]))
            assert {key: config.value(key) for key in keys} == keys
            assert (config.published.name, config.published.arm) == (name, arm)
            told = {key.split(".kwargs.")[0] for key in keys} | {"published.name", "published.arm"}
            told |= {"model.kwargs", "data.kwargs"}
            rest = {key: leaf.default for key, leaf in LEAVES.items() if key not in told}
            assert {key: config.value(key) for key in rest} == rest


def test_an_arm_on_a_scale_has_fewer_of_everything_and_as_many_steps_an_epoch(subtests: pytest.Subtests):
    for name, arm in ARMS:
        with subtests.test(name=name, arm=arm):
            whole, small = of(name, arm), of(name, arm, "published.scale=0.02")
            images = load(name).images
            assert small.epochs == max(1, round(0.02 * whole.epochs))
            assert 2 <= small.batch_size <= max(2, round(0.02 * whole.batch_size))
            assert small.data.train_limit == round(0.02 * images)
            assert 1 <= small.data.test_limit <= 200
            steps = small.data.train_limit / small.batch_size / (images / whole.batch_size)
            assert steps == pytest.approx(1, abs=0.25)
            other = {"epochs", "batch_size", "data.train_limit", "data.test_limit", "published.scale"}
            other |= {"schedule.warmup_epochs", "schedule.milestones"}
            assert {k for k in LEAVES if small.value(k) != whole.value(k)} <= other


def test_words_win_over_the_file_and_the_file_over_the_publication(paper, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 7\nbatch_size: 99\n")
    config = of(paper, "O1 = half", "--config", str(file), "batch_size=64")
    assert (config.epochs, config.batch_size, config.model.name) == (7, 64, "resnet18")
    assert of(paper, "O1 = half").batch_size == 512


def test_the_publication_may_be_named_in_the_file(paper, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"published: {{name: {paper}, arm: '32', scale: 0.1}}\n")
    config = parse(["--config", str(file)])
    assert (config.backend, config.precision.loss_scale, config.epochs) == ("fp16", 1.0, 2)


def test_warm_up_stays_in_proportion(paper):
    assert of(paper, "none", "published.scale=0.1").schedule.warmup_epochs == 0.5


@pytest.mark.parametrize(("scale", "batch", "epochs"), [(0.5, 128, 10), (0.001, 2, 1)])
def test_a_batch_keeps_two_images_and_a_run_an_epoch(paper, scale, batch, epochs):
    config = of(paper, "none", f"published.scale={scale}")
    assert (config.batch_size, config.epochs) == (batch, epochs)
    assert config.data.train_limit >= batch


def test_words_are_not_shrunk(paper):
    assert of(paper, "none", "published.scale=0.1", "epochs=20").epochs == 20


def test_another_network_takes_the_arguments_of_the_first_away(tmp_path):
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER.replace("kwargs: {}", "kwargs: {width: 64}"))
    assert of(path, "none").model.kwargs == {"width": 64}
    small = of(path, "none", "published.network=tiny")
    assert (small.model.name, small.model.kwargs) == ("tiny", {})


def test_an_arm_may_be_called_none_or_a_number(paper):
    assert of(paper, "none").tf32 is True
    assert of(paper, "32").backend == "fp16"
    assert of(paper).tf32 is False


def test_runs_of_the_same_options_are_pooled_and_resumed_whoever_named_them(paper):
    """What a record from before has, too: it knows no publication."""
    named = of(paper, "O1 = half")
    words = ["model.name=resnet18", "backend=apex_o1", "batch_size=512", "epochs=20"]
    plain = parse([*words, "schedule.warmup_epochs=5", "memory_format=auto"])
    saved = Identity(plain, "data", "cpu").values()
    assert Identity(named, "data", "cpu").differences({"identity": saved}) == []
    assert {leaf.role for key, leaf in LEAVES.items() if key.startswith("published.")} == {Role.BOOKKEEPING}
    assert named.to_dict()["published"]["arm"] == "O1 = half"


def test_an_arms_config_is_what_its_runs_have(paper):
    made = arm_config(load(str(paper)), "O1 = half", 0.1, "tiny").options()
    ran = of(paper, "O1 = half", "published.scale=0.1", "published.network=tiny").options()
    assert {k for k in ran if made[k] != ran[k]} == {
        f"published.{k}" for k in ("name", "arm", "scale", "network")
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["published.arm=O1"],
            "published.arm=O1: of which publication? set published.name to a file or one of ",
        ),
        (["published.scale=0.5"], "published.scale=0.5: of which publication?"),
        (["published.network=tiny"], "published.network=tiny: of which publication?"),
        (["published.name=ignit"], "published.name: 'ignit': no such publication; did you mean ignite?"),
        (
            ["published.name={paper}", "published.arm=O2"],
            "published.arm='O2': no arm of paper; expected one of ",
        ),
        (
            ["published.name={paper}", "published.scale=0"],
            "published.scale='0': expected a number above 0 and at",
        ),
        (
            ["published.name={paper}", "published.scale=1.5"],
            "published.scale='1.5': expected a number above 0",
        ),
        (
            ["published.name={paper}", "published.scale=nan"],
            "published.scale='nan': expected a number above 0",
        ),
        (
            ["published.name={paper}", "published.network=big"],
            "published.network='big': expected one of tiny",
        ),
    ],
)
def test_wrong_words_are_told_in_a_line(paper, words, said):
    with pytest.raises(UserError) as refused:
        parse([word.format(paper=paper) for word in words])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "batch_size: 256",
            "batchsize: 256",
            "paper.yaml: setting: batchsize: no such key; did you mean batch_size?",
        ),
        ("batch_size: 256", "batch_size: 0", "paper.yaml: setting: batch_size=0: expected a whole number"),
        ("backend: apex_o1", "backend: O1", "paper.yaml: arms.O1 = half: backend='O1': expected one of"),
        ("epochs: 20", "output_dir: /", "setting: output_dir: is for whoever repeats it; leave it out"),
        ("epochs: 20", "published: {name: ignite}", "setting: published.name: is for whoever repeats it"),
    ],
)
def test_a_file_that_names_no_options_is_told_with_its_place(paper, old, new, said):
    paper.write_text(PAPER.replace(old, new))
    with pytest.raises(UserError) as refused:
        of(paper, "O1 = half")
    assert said in str(refused.value)


def test_a_scale_needs_to_know_how_many_images_there_are(paper):
    paper.write_text(PAPER.replace("source: cifar10", "source: image_folder"))
    with pytest.raises(
        UserError, match=r"how many training images data.source=image_folder has is not known"
    ):
        of(paper, "none", "published.scale=0.1")
    paper.write_text(PAPER.replace("source: cifar10", "source: image_folder") + "images: 1000\n")
    with pytest.raises(UserError, match=r"how many test images .* as setting.data.test_limit"):
        of(paper, "none", "published.scale=0.1")
