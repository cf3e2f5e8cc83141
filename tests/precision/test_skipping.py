"""A skipped step leaves no mark on weights and optimizer, whichever kernel decides."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ampcompare.precision.gradients import step_unless

YES, NO = torch.ones(()), torch.zeros(())

OPTIMIZERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, **k),
    "SGD momentum": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **k),
    "SGD dampening": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, **k),
    "Adam amsgrad": lambda p, **k: torch.optim.Adam(p, lr=0.1, amsgrad=True, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.1, **k),
}


def _weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(7))]


def _step(weights, optimizer, skip: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
        if skip:
            weight.grad.view(-1)[0] = math.inf
    step_unless(optimizer, YES if skip else NO, optimizer.step)


def _garbage_for_new_buffers(weights: list[nn.Parameter]) -> None:
    """Memory of the weights' sizes full of nan goes back to the allocator, which hands it out as it is."""
    for weight in weights:
        held = [torch.full_like(weight, math.nan) for _ in range(20)]
        del held


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_as_if_skipped_steps_had_not_been(kind, fused):
    """Also where the very first one is skipped, when a fused optimizer would keep uninitialised buffers."""
    weights, plain = _weights(), _weights()
    optimizer, reference = OPTIMIZERS[kind](weights, fused=fused), OPTIMIZERS[kind](plain, fused=False)
    _garbage_for_new_buffers(weights)
    for seed, skip in enumerate([True, True, False, True, False, False]):
        _step(weights, optimizer, skip, seed)
        if not skip:
            _step(plain, reference, False, seed)
    for a, b in zip(weights, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_weights_added_later_are_safe_in_their_first_skipped_step(dampening):
    weights = _weights()
    optimizer = torch.optim.SGD([weights[0]], lr=0.1, momentum=0.9, dampening=dampening, fused=True)
    _step(weights[:1], optimizer, False, 0)
    optimizer.add_param_group({"params": [weights[1]]})
    _garbage_for_new_buffers(weights)
    _step(weights, optimizer, True, 1)
    buffer = optimizer.state[weights[1]].get("momentum_buffer")
    assert buffer is None or not buffer.any()


def test_fused_step_does_not_ask_the_host(monkeypatch):
    weights = _weights()
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True)
    monkeypatch.setattr(Tensor, "item", lambda self: pytest.fail("waits for the device"))
    monkeypatch.setattr(Tensor, "__bool__", lambda self: pytest.fail("waits for the device"))
    _step(weights, optimizer, True, 0)
