"""The context of the casts: where it reaches, what it leaves behind, what a user may add to the lists."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # by name, before any context: as users do

from ampcompare.precision.o1.patches import (
    casts,
    default_device_type,
    disable_casts,
    forget_registered,
)
from ampcompare.precision.o1.weights import STATE

HALF, FLOAT = torch.float16, torch.float32
NAMESPACES = [F, torch, Tensor, checkpointing, checkpointing.CheckpointFunction]


def _names() -> list[dict]:
    return [dict(vars(namespace)) for namespace in NAMESPACES]


def _differences(before: list[dict]) -> list[str]:
    return [
        name
        for old, new in zip(before, _names(), strict=True)
        for name in old.keys() | new.keys()
        if old.get(name, "absent") is not new.get(name, "absent")
    ]


ORIGINALS = _names()
with casts():
    WRAPPED = set(_differences(ORIGINALS))


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """After every test each name is what it was, also in tests of something else."""
    yield
    forget_registered()
    assert not WRAPPED.intersection(
        _differences(ORIGINALS)
    )  # PyTorch adds others of its own, when first used
    assert not STATE.on


def _dtype() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.eye(2), torch.eye(2)).dtype


# Nesting


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


def test_device_is_cuda_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device_type() == "cuda"
    with casts():
        assert STATE.device_type == "cuda"
        assert _dtype() is FLOAT
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with casts():
        assert STATE.device_type == "cpu"


# Threads


def _in_thread(function) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
    assert not thread.is_alive()


# Activation checkpointing


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
    _in_thread(loss.backward) if thread else loss.backward()
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


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_outside_the_casts_stays_outside(use_reentrant):
    """Wherever `backward` is called from."""
    block, x = _Block(), torch.randn(3, 4, requires_grad=True)
    with casts(device_type="cpu"):
        with disable_casts():
            loss = checkpoint(block, x, use_reentrant=use_reentrant).sum()
        loss.backward()
    assert block.dtypes == [FLOAT, FLOAT]
