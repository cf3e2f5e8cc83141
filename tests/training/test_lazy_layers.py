"""Networks with lazy layers train under every backend, from equal weights."""

from pathlib import Path

import pytest
import torch
from support.properties import MECHANISMS
from support.training import fit, play

from ampcompare.errors import UserError

NET = """
from torch import nn


class Lazy(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.norm = nn.LazyConv2d(4, 3, stride=4), nn.LazyBatchNorm2d()
        self.drop, self.head = nn.Dropout(), nn.LazyLinear(classes)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))


def lazy(num_classes=10):
    return Lazy(num_classes)


def unused(num_classes=10):
    model = Lazy(num_classes)
    model.never = nn.LazyLinear(3)
    return model
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.mark.parametrize("backend", MECHANISMS)
def test_lazy_layers_have_equal_weights_under_every_backend(net: Path, backend: str):
    expected, _ = fit("model.name=./net.py:lazy", "epochs=1", "optimizer.fused=false")
    loop, rows = fit("model.name=./net.py:lazy", "epochs=1", "optimizer.fused=false", f"backend={backend}")
    weights = dict(loop.trainer.model.named_parameters())
    for name, weight in expected.trainer.model.named_parameters():
        assert torch.equal(weights[name], weight.to(weights[name].dtype))
    norm = loop.trainer.model.norm
    assert norm.training
    assert not norm.running_mean.any()  # the first forward changed no statistics
    loop.run()
    assert rows


def test_a_lazy_layer_that_is_never_called_is_named(net: Path):
    with pytest.raises(UserError) as refused:
        play("wandb.mode=disabled", "model.name=./net.py:unused")
    assert "never" in str(refused.value)
    (line,) = refused.value.lines
    assert line.isprintable()
