"""Kinds of network that public bug reports are about: complex weights, TorchScript."""

import pytest
import torch
from support.training import trainer
from torch import nn

from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import UnsupportedModel

BACKENDS = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]  # no CPU has TF32
SCALED = [name for name in BACKENDS if REGISTRY[name].scales]


def train(name: str, model: nn.Module) -> list[float]:
    """Train a few steps on one batch and return the losses."""
    made = trainer(name, model, momentum=0.9, **({"loss_scale": 128.0} if REGISTRY[name].scales else {}))
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with made.precision.training_context():
        return [made.step([(images, torch.arange(8) % 4)]).loss.item() for _ in range(3)]


@pytest.mark.parametrize("name", SCALED)
def test_complex_weights_are_refused_in_one_line_where_the_loss_is_scaled(name):
    model = nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    build_precision(name, loss_scale=1.0).prepare(model, optimizer)
    with pytest.raises(UnsupportedModel, match=f"^backend={name}: .*complex weights, as 0 has") as refused:
        build_precision(name).prepare(model, optimizer)
    assert str(refused.value).isprintable()


def make_scripted(*, whole: bool) -> nn.Module:
    """Return a network that torch.jit compiled, as a whole or in part."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(144, 4))
    if whole:
        return torch.jit.script(model)
    model[0] = torch.jit.script(body)
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's own, of torch.jit
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "native_bf16"])
def test_torchscript_trains_or_is_refused_in_one_line_that_names_it(name, whole):
    """Without `native_bf16`: PyTorch keeps the compiled code of one autocast dtype for the next model."""
    if name.startswith("apex_o1") or (name == "apex_o2" and whole):
        with pytest.raises(UnsupportedModel) as refused:
            train(name, make_scripted(whole=whole))
        message = str(refused.value)
        assert message.startswith(f"backend={name}: ")
        assert "torch.jit" in message
        assert message.isprintable()
        assert name == "apex_o2" or f"does not call: {'the network' if whole else '0'};" in message
        return
    expected = train("none", make_scripted(whole=whole))
    assert train(name, make_scripted(whole=whole)) == pytest.approx(expected, abs=0.02)
