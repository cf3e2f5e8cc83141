"""The context of the casts: where it reaches, what it leaves behind, what a user may add to the lists."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # by name, before any context: as users do

from ampcompare.precision.o1.patches import casts, disable_casts
from ampcompare.precision.o1.weights import STATE

HALF, FLOAT = torch.float16, torch.float32


def _dtype() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.eye(2), torch.eye(2)).dtype


def test_disabled_inside_and_enabled_inside_that():
    with casts(device_type="cpu", allow_banned=True):
        with disable_casts():
            assert _dtype() is FLOAT
            with casts():
                assert _dtype() is HALF
                assert STATE.allow_banned
                with disable_casts():
                    assert _dtype() is FLOAT
                assert _dtype() is HALF
            assert _dtype() is FLOAT
        assert _dtype() is HALF


class _Block(nn.Module):
    """Two uses of one weight, a norm and a softmax; notes the type that its linear layer gives each time it
    runs.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        hidden = self.layer(x)
        self.dtypes.append(hidden.dtype)
        return F.softmax(self.layer(torch.relu(self.norm(hidden))), 1)


def _gradients(block: _Block, run, x: Tensor, thread: bool = False) -> list[Tensor]:
    x = x.clone().requires_grad_()
    block.zero_grad()
    with casts(device_type="cpu"):
        loss = run(x).float().square().sum()
    if thread:
        other = threading.Thread(target=loss.backward)
        other.start()
        other.join()
    else:
        loss.backward()
    return [x.grad, *(p.grad for p in block.parameters())]


@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_runs_under_the_casts(use_reentrant, thread):
    block, x = _Block(), torch.randn(3, 4)
    expected = _gradients(block, block, x)
    block.dtypes.clear()
    found = _gradients(block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant), x, thread)
    assert block.dtypes == [HALF, HALF]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert _dtype() is FLOAT
