"""The publications that come along: each arm is a run that can be had, its network counted anew."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ampcompare.config.check import check
from ampcompare.config.publication import arm_config
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.models import build_model
from ampcompare.precision.backends import REGISTRY
from ampcompare.published.publication import load, names
from ampcompare.train.build import build_task

ARMS = [(name, arm) for name in names() for arm in load(name).arms]
LISTED = {"tootouch", "recipe", "ignite", "apex-478", "leimao", "dle", "kuangliu"}


def built(config: Config) -> tuple[torch.nn.Module, torch.Tensor]:
    """The arm's network on the meta device, where it takes neither memory nor time, and two samples."""
    source = SOURCES.get(config.data.source)
    size, width = config.data.kwargs.get("size", 32), config.data.kwargs.get("width")
    with torch.device("meta"):
        kwargs = config.model.kwargs
        classes = source.classes if source else None
        model = build_model(config.model.name, config.model.stem, classes, kwargs=kwargs)
        return model, torch.empty(2, 3, size, size) if source else torch.empty(2, width)


def test_what_is_listed_comes_along_with_its_sources_and_says_so():
    assert set(names()) >= LISTED
    for publication in map(load, names()):
        assert publication.url.startswith("https://")
        assert publication.date
        assert publication.images
        assert publication.figures or publication.curves


@pytest.mark.slow
def test_every_arm_is_a_config_whose_network_takes_its_data(subtests: pytest.Subtests):
    for name, arm in ARMS:
        with subtests.test(name=name, arm=arm):
            config = arm_config(load(name), arm)
            check(config)
            assert config.backend in REGISTRY
            model, samples = built(config)
            outputs = model(samples)
            build_task(config, torch.device("cpu"))
            assert len(outputs) == 2
            if config.data.source in SOURCES:
                assert outputs.shape[1] >= SOURCES[config.data.source].classes


@pytest.mark.parametrize("name", names())
def test_the_work_of_a_sample_is_as_counted(name):
    publication = load(name)
    model, samples = built(arm_config(publication, publication.baseline))
    with FlopCounterMode(display=False) as counted:
        model(samples).sum().backward()
    assert publication.gflop == pytest.approx(counted.get_total_flops() / len(samples) / 1e9, rel=1e-3)


def test_each_has_a_tiny_network_for_a_look(subtests: pytest.Subtests):
    for name in names():
        with subtests.test(name=name):
            config = arm_config(load(name), load(name).baseline, network="tiny")
            model, samples = built(config)
            assert len(model(samples)) == 2
            assert sum(p.numel() for p in model.parameters()) < 20_000
