"""Kinds of network that public bug reports are about: complex weights, TorchScript."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import UnsupportedModel

BACKENDS = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]  # no CPU has TF32
SCALED = [name for name in BACKENDS if REGISTRY[name].scales]


class Fourier(nn.Module):
    """The spectral convolution of a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 8, 5, dtype=torch.complex64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        products = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), self.weight)
        return torch.fft.irfft2(products, s=x.shape[-2:])


def make_operator() -> nn.Sequential:
    """Return a network with complex weights."""
    torch.manual_seed(0)
    return nn.Sequential(Fourier(), nn.GELU(), nn.Flatten(), nn.Linear(256, 4))


def train(name: str, model: nn.Module, steps: int = 3, **options: object) -> list[float]:
    """Train a few steps on one batch and return the losses."""
    scale = {"loss_scale": 128.0} if REGISTRY[name].scales else {}
    precision = build_precision(name, **scale | options)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = []
    with precision.training_context():
        for _ in range(steps):
            with precision.forward_context():
                loss = F.cross_entropy(model(images), torch.arange(8) % 4)
            precision.backward(loss)
            precision.step(optimizer)
            optimizer.zero_grad()
            found.append(loss.item())
    return found


@pytest.mark.parametrize("name", SCALED)
def test_complex_weights_are_refused_in_one_line_where_the_loss_is_scaled(name):
    expected = train("none", make_operator())
    assert train(name, make_operator(), keep_fp32="0", loss_scale=1.0) == pytest.approx(expected, abs=0.02)
    with pytest.raises(UnsupportedModel) as refused:
        train(name, make_operator())
    message = str(refused.value)
    assert message.startswith(f"backend={name}: ")
    assert "complex weights, as 0.weight has" in message
    assert message.isprintable()


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
