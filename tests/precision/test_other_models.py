"""Kinds of network that public bug reports are about: complex weights, TorchScript."""

import math

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
    precision = build_precision(name, **({"loss_scale": 128.0} if REGISTRY[name].scales else {}), **options)
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


@pytest.mark.parametrize("name", BACKENDS)
def test_complex_weights_train_with_16_bit_ones_if_their_module_is_kept(name):
    expected = train("none", make_operator())
    assert train(name, make_operator(), keep_fp32="0") == pytest.approx(expected, abs=0.02)
    if not REGISTRY[name].half_weights:  # PyTorch's Fourier transforms take no 16-bit inputs on a CPU
        assert train(name, make_operator()) == pytest.approx(expected, abs=0.02)


class Spectrum(nn.Module):
    """A complex matrix product between real layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(192, 8), nn.Linear(8, 4)
        self.mix = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer((self.inner(x.flatten(1)).to(self.mix.dtype) @ self.mix).abs())


@pytest.mark.parametrize("make", [make_operator, lambda: torch.manual_seed(0) and Spectrum()])
@pytest.mark.parametrize("loss_scale", [1.0, 128.0, "dynamic"])
def test_native_trains_complex_weights_as_fp64_does(make, loss_scale):
    """The complex weights after one step of SGD: their update against plain PyTorch in fp64."""
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    model, exact = make(), make().double()  # `double` leaves complex weights
    for parameter in exact.parameters():
        if parameter.is_complex():
            parameter.data = parameter.data.to(torch.complex128)
    start = [p.detach().clone() for p in exact.parameters() if p.is_complex()]
    optimizer = torch.optim.SGD(exact.parameters(), lr=0.1)
    F.cross_entropy(exact(images.double()), torch.arange(8) % 4).backward()
    optimizer.step()
    precision = build_precision("native", loss_scale=loss_scale)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with precision.training_context():
        with precision.forward_context():
            loss = F.cross_entropy(model(images), torch.arange(8) % 4)
        precision.backward(loss)
        precision.step(optimizer)
    assert precision.skipped_steps().item() == 0
    found = [p.detach() for p in model.parameters() if p.is_complex()]
    expected = [p.detach() for p in exact.parameters() if p.is_complex()]
    assert len(found) == 1
    for weight, value, before in zip(found, expected, start, strict=True):
        error = (weight - value).norm() / (value - before).norm()
        assert error < 8 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize("name", SCALED)
def test_gradients_of_complex_weights_are_unscaled_and_checked_in_both_parts(name):
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([1 + 2j]))
    precision = build_precision(name, init_scale=1024.0, keep_fp32="*")
    _, optimizer = precision.prepare(model, torch.optim.SGD([model.weight], lr=0.5))
    for slope, weight, scale in ((4.0, -0.5 + 0j, 1024.0), (math.inf, -0.5 + 0j, 512.0)):
        with precision.forward_context():
            loss = (torch.view_as_real(model.weight) * torch.tensor([3.0, slope])).sum()
        precision.backward(loss)
        precision.unscale_(optimizer)
        precision.step(optimizer)
        optimizer.zero_grad()
        assert model.weight.tolist() == [weight]
        assert precision.scale_factor().item() == scale
    assert precision.skipped_steps().item() == 1


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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_o2_saves_a_scripted_part_in_fp32():
    precision, model = build_precision("apex_o2"), make_scripted(whole=False)
    precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert next(model[0].parameters()).dtype is torch.float16
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
