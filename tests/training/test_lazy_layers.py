"""Networks with lazy layers are refused, and train once their weights exist."""

from pathlib import Path

import pytest
from support.refusals import line_of
from support.training import play

NET = """
import torch
from torch import nn


def lazy(num_classes=10):
    return nn.Sequential(nn.LazyConv2d(4, 3, stride=4), nn.Flatten(), nn.LazyLinear(num_classes))


def sized(num_classes=10):
    network = lazy(num_classes)
    network(torch.zeros(1, 3, 32, 32))
    return network
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def test_lazy_layers_are_refused_in_one_line_and_train_once_their_weights_exist(net: Path):
    words = ("wandb.mode=disabled", "epochs=1")
    line = line_of(play, *words, "model.name=./net.py:lazy")
    assert "the weights of lazy layers do not exist before the first forward: 0, 2" in line
    play(*words, "model.name=./net.py:sized")
