"""fp64 whatever the modules name, and the same random numbers in every type."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ampcompare.why.diff.arithmetic import arithmetic

X = torch.linspace(-3, 3, 600).reshape(20, 30)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: F.dropout(x, 0.3) != 0,
        lambda x: F.dropout1d(x, 0.3) != 0,
        lambda x: torch.native_dropout(x, 0.3, True)[1],
        lambda x: torch.rand_like(x),
        lambda x: torch.empty_like(x).normal_(),
        lambda x: torch.randn(7, dtype=x.dtype),
        lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: torch.randperm(9),
    ],
)
def test_every_type_draws_the_same(draw, dtype: torch.dtype):
    def drawn(kind: torch.dtype) -> torch.Tensor:
        torch.manual_seed(3)
        with arithmetic(double=kind is torch.float64):
            return draw(X.to(kind))

    wanted, found = drawn(torch.float32), drawn(dtype)
    assert found.to(dtype).equal(wanted.to(dtype))


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.bfloat16(),
        lambda x: x.float().half().to(x.dtype),
        lambda x: x.to(torch.float32),
        lambda x: x.type_as(torch.ones(1)),
        lambda x: torch.softmax(x, 0, dtype=torch.float32).log() + torch.logsumexp(x, 0),
        lambda x: x * torch.ones(30),
        lambda x: x + torch.zeros(30, dtype=torch.bfloat16),
        lambda x: F.linear(x, torch.eye(30, dtype=torch.float32)),
    ],
)
def test_no_cast_loses_digits_in_fp64(cast):
    x = (X.double() / 7).requires_grad_()
    with arithmetic(double=True):
        y = cast(x)
        y.backward(torch.full_like(y, 1 / 3, dtype=torch.float64))
    assert y.dtype is torch.float64
    assert (y - x).abs().max() < 1e-12
    assert x.grad is not None
    assert x.grad.dtype is torch.float64
