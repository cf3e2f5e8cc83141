"""The walk over autograd's nodes gives the engine's gradients, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.rehearsal.walk import walking
from torch import Tensor, nn

from ampcompare.models import build_model
from ampcompare.precision.o1.patches import casts


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Pair(torch.autograd.Function):
    """A Function of two outputs; a gradient that is missing comes as zeros."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        return left * 2 + right * 3 + 0 * ctx.saved_tensors[0]


class Shared(nn.Module):
    """A weight that is used three times, once as an fp16 copy made together with another's, and one never
    used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.idle = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.weight)
        with casts(device_type="cpu"):  # a copy of the weight that is used twice
            x = x + torch.mm(torch.mm(x, self.weight), self.weight).float()
        x = x + Pair.apply(x)[1]
        left, right = (x @ self.weight).chunk(2, dim=1)
        return torch.cat([left * right, right], 1).expand(2, -1, -1).mean(0)


def resnet() -> tuple[nn.Module, Tensor]:
    return build_model("resnet18", "cifar", 10), torch.randn(4, 3, 32, 32)


def channels_last_resnet() -> tuple[nn.Module, Tensor]:
    model, x = resnet()
    return model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


def shared() -> tuple[nn.Module, Tensor]:
    return Shared(), torch.randn(5, 8)


def both_ways(
    build: Callable[[], tuple[nn.Module, Tensor]], work: Callable[[nn.Module, Tensor], Any]
) -> list[list[Tensor | None]]:
    """What the engine and the walk leave in the gradients."""
    found = []
    for walked in (False, True):
        torch.manual_seed(0)
        model, x = build()
        if walked:
            with walking():
                work(model, x)
        else:
            work(model, x)
        found.append([p.grad for p in model.parameters()])
    return found


def assert_same(engine: list[Tensor | None], walk: list[Tensor | None]) -> None:
    assert any(g is not None for g in engine)
    for a, b in zip(engine, walk, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype
            assert a.stride() == b.stride()
            assert torch.equal(a, b)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), torch.arange(len(x)) % 8)


NETS = [resnet, channels_last_resnet, shared]


@pytest.mark.parametrize("build", NETS)
def test_gradients_are_the_engines(build: Any):
    assert_same(*both_ways(build, lambda model, x: loss_of(model, x).backward()))


def test_gradients_of_gradients_are_the_engines():
    def penalise(model: nn.Module, x: Tensor) -> None:
        loss_of(model, x).backward()  # what follows adds up with it
        loss = loss_of(model, x + 1)
        used = [p for name, p in model.named_parameters() if name not in ("idle", "other")]
        slopes = torch.autograd.grad(loss, used, create_graph=True)
        (loss + sum(g.square().sum() for g in slopes).sqrt()).backward()

    assert_same(*both_ways(shared, penalise))


def test_an_input_that_was_not_used_is_refused_unless_allowed():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with walking():
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(a.sum(), [a, b])
        assert torch.autograd.grad(a.sum(), [a, b], allow_unused=True)[1] is None


def test_hooks_of_a_parameter_are_called_as_by_the_engine():
    def add_one(parameter: Tensor) -> None:
        parameter.grad.add_(1)  # type: ignore[union-attr]

    def hooked(model: nn.Module, x: Tensor) -> None:
        weight = model.weight
        weight.register_hook(lambda g: g * 2)
        weight.register_post_accumulate_grad_hook(add_one)
        loss_of(model, x).backward()

    assert_same(*both_ways(shared, hooked))
