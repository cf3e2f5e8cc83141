"""The fp16 copies of weights: cast once in a forward, never stale, never cut off from the gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision import build_precision
from ampcompare.precision.o1.patches import casts
from ampcompare.precision.o1.rules import half
from ampcompare.precision.o1.weights import STATE

HALF = torch.float16


@half
def _copy(weight: Tensor) -> Tensor:
    """What a function of the half list is handed for the weight."""
    return weight


@pytest.fixture
def weight() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


def test_gradient_of_a_shared_weight_adds_up_in_float():
    weight = nn.Parameter(torch.eye(3))
    seen = []
    weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    x = torch.ones(2, 3)
    with casts(device_type="cpu"):
        y = F.linear(F.linear(x, weight), weight) + torch.mm(x, weight)
    y.float().sum().backward()
    assert seen == [torch.float32]
    assert weight.grad.dtype is torch.float32
    assert torch.equal(weight.grad, torch.full((3, 3), 6.0))


def test_copy_made_without_gradient_does_not_serve_a_forward_with_one(weight):
    with casts(device_type="cpu"):
        with torch.no_grad():
            assert not _copy(weight).requires_grad
        copy = _copy(weight)
    assert copy.requires_grad
    copy.float().sum().backward()
    assert torch.equal(weight.grad, torch.ones(3))


def test_edit_in_place_makes_a_new_copy(weight):
    with casts(device_type="cpu"):
        _copy(weight)
        with torch.no_grad():
            weight.add_(1)
        assert torch.equal(_copy(weight), weight.half())
        weight.grad = torch.ones(3)
        torch.optim.SGD([weight], lr=1.0).step()
        assert torch.equal(_copy(weight), weight.half())


@pytest.mark.parametrize("fused", [False, True])
def test_step_of_the_backend_clears_the_copies(weight, fused):
    """A fused optimizer changes weights without a new version (torch 2.14.1): versions alone won't do."""
    precision = build_precision("apex_o1", loss_scale=1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    precision.prepare(nn.Module(), optimizer)
    with precision.forward_context():
        loss = _copy(weight).float().sum()
        precision.backward(loss)
        precision.step(optimizer)
        assert len(STATE.copies) == 0
        assert torch.equal(_copy(weight), torch.tensor([0.0, 1.0, 2.0], dtype=HALF))


def test_frozen_weight_seen_in_inference_mode_can_serve_a_gradient_later():
    """An inference tensor may not be saved for backward."""
    weight = nn.Parameter(torch.eye(2), requires_grad=False)
    x = torch.ones(2, 2, requires_grad=True)
    with casts(device_type="cpu"):
        with torch.inference_mode():
            torch.mm(x, weight)
        y = torch.mm(x, weight)
    y.float().sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 2))
