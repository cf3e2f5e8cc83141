"""The fp16 copies of weights: cast once in a forward, never stale, never cut off from the gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp
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


def test_weight_used_twice_is_cast_once(weight):
    with casts(device_type="cpu"):
        first, second = _copy(weight), _copy(weight)
    assert first is second
    assert first.dtype is HALF


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


@pytest.mark.parametrize("trained", [True, False])
def test_id_of_a_weight_that_is_gone_is_not_mistaken_for_another(trained):
    with casts(device_type="cpu"):
        for value in range(20):
            assert _copy(nn.Parameter(torch.full((2,), float(value)), requires_grad=trained))[0] == value


def test_copy_made_without_gradient_does_not_serve_a_forward_with_one(weight):
    with casts(device_type="cpu"):
        with torch.no_grad():
            assert not _copy(weight).requires_grad
        copy = _copy(weight)
    assert copy.requires_grad
    copy.float().sum().backward()
    assert torch.equal(weight.grad, torch.ones(3))


def test_evaluation_in_between_costs_no_gradient(weight):
    with casts(device_type="cpu"):
        for _ in range(2):
            with torch.no_grad():
                _copy(weight)
            _copy(weight).float().sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("before", [True, False])
def test_weight_that_is_frozen_or_thawed_is_cast_anew(weight, before):
    weight.requires_grad_(before)
    with casts(device_type="cpu"):
        assert _copy(weight).requires_grad is before
        weight.requires_grad_(not before)
        assert _copy(weight).requires_grad is not before


def test_edit_in_place_makes_a_new_copy(weight):
    with casts(device_type="cpu"):
        _copy(weight)
        with torch.no_grad():
            weight.add_(1)
        assert torch.equal(_copy(weight), weight.half())
        weight.grad = torch.ones(3)
        torch.optim.SGD([weight], lr=1.0).step()
        assert torch.equal(_copy(weight), weight.half())


def test_edit_without_a_version_is_seen_by_the_next_context(weight):
    for value in (5.0, 7.0):
        with casts(device_type="cpu"):
            assert torch.equal(_copy(weight), weight.half())
        weight.data.fill_(value)
    weight.data = torch.zeros(3)
    with casts(device_type="cpu"):
        assert torch.equal(_copy(weight), torch.zeros(3, dtype=HALF))


def test_edit_without_a_version_between_casts_everywhere_and_a_context_is_seen(weight):
    """With casts on everywhere copies are made outside any context too; opening one starts afresh."""
    amp.initialize(nn.Linear(1, 1), opt_level="O1")
    try:
        _copy(weight)
        weight.data.fill_(5.0)
        with casts():
            assert torch.equal(_copy(weight), torch.full((3,), 5.0, dtype=HALF))
    finally:
        amp.reset()


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


def test_inference_mode_leaves_no_copy_behind(weight):
    with casts(device_type="cpu"):
        with torch.inference_mode():
            assert _copy(weight).dtype is HALF
            assert _copy(weight).is_inference()
        copy = _copy(weight)
    copy.float().sum().backward()
    assert torch.equal(weight.grad, torch.ones(3))


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


def test_copies_are_gone_after_the_context(weight):
    with casts(device_type="cpu"):
        _copy(weight)
        assert len(STATE.copies) == 1
    assert len(STATE.copies) == 0


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_copy_made_inside_a_function_transform_is_good_outside_it(transform):
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    with casts(device_type="cpu"):
        if transform == "grad":
            torch.func.grad(lambda x: layer(x).float().sum())(x)
        else:
            torch.vmap(layer)(x)
        y = layer(x)
    y.float().sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 2.0))


def test_gradients_by_function_transform_come_out_in_float():
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).float().sum()

    with casts(device_type="cpu"):
        gradients = torch.func.grad(loss)(parameters)
    assert gradients["weight"].dtype is torch.float32
    torch.testing.assert_close(gradients["bias"], torch.full((2,), 4.0))
