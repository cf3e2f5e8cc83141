"""A run that names a publication takes its setting, below what file and words say."""

from pathlib import Path

import pytest
from support.refusals import line_of

from ampcompare.config.compose import ConfigSource, compose
from ampcompare.config.load import config_from_cli
from ampcompare.config.schema import OPTIONS, Config
from ampcompare.publications.publication import list_publications, load_publication
from ampcompare.runtime.yaml_io import flatten

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
  none: {backend: tf32}
  "O1 = half": {backend: apex_o1, batch_size: 512}
  "32": {backend: fp16, precision.loss_scale: 1}
figures: {}
"""
ARMS = [(name, arm) for name in list_publications() for arm in load_publication(name).arms]


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER)
    return path


def of(name: object, arm: str = "", *words: str) -> Config:
    return config_from_cli([f"published.name={name}", *([f"published.arm={arm}"] if arm else []), *words])


def test_an_arm_has_its_setting_and_its_own_keys_and_nothing_else(subtests: pytest.Subtests):
    for name, arm in ARMS:
        with subtests.test(name=name, arm=arm):
            publication, config = load_publication(name), of(name, arm)
            given = {**publication.setting, **publication.arms[arm]}
            built, keys = compose(ConfigSource(given)), {key for key, _ in flatten(given)}
            assert all(config.value(key) == built.value(key) for key in keys)
            assert (config.published.name, config.published.arm) == (name, arm)
            told = {key.split(".kwargs.")[0] for key in keys} | {"published.name", "published.arm"}
            told |= {"model.kwargs", "data.kwargs"}
            rest = {key: spec.default for key, spec in OPTIONS.items() if key not in told}
            rest["recipe"] = "reference"  # a publication has its own settings
            assert {key: config.value(key) for key in rest} == rest


def test_words_win_over_the_file_and_the_file_over_the_publication(paper, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 7\nbatch_size: 99\n")
    config = of(paper, "O1 = half", "--config", str(file), "batch_size=64")
    assert (config.epochs, config.batch_size, config.model.name) == (7, 64, "resnet18")
    assert of(paper, "O1 = half").batch_size == 512


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("published.arm=O1", "published.name=None: no publication is named"),
        ("published.scale=0.5", "published.name=None: no publication is named"),
        ("published.name={paper} published.arm=O2", "published.arm='O2': no arm of paper; expected one of "),
        ("published.name={paper} published.scale=1.5", "published.scale='1.5': expected a number above 0"),
    ],
)
def test_wrong_overrides_are_one_line(paper, words, said):
    assert said in line_of(config_from_cli, words.format(paper=paper).split())


def test_a_scale_needs_to_know_how_many_images_there_are(paper):
    paper.write_text(PAPER.replace("source: cifar10", "source: image_folder"))
    said = line_of(of, paper, "none", "published.scale=0.1")
    assert "the number of training images of data.source=image_folder is not known" in said
    paper.write_text(PAPER.replace("source: cifar10", "source: image_folder") + "images: 1000\n")
    assert "number of test images" in line_of(of, paper, "none", "published.scale=0.1")


def test_a_scale_moves_the_milestones_of_the_schedule(paper):
    paper.write_text(PAPER.replace("{warmup_epochs: 5}", "{name: multistep, milestones: [10, 15]}"))
    config = of(paper, "none", "published.scale=0.25")
    moved = [10 * config.epochs / 20, 15 * config.epochs / 20]
    assert config.epochs < 20
    assert config.schedule.milestones == pytest.approx(moved)
