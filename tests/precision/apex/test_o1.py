"""The O1 backend: casts and scaling through the contract, as the training loop uses them."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.one_weight import OneWeight
from torch import nn

from ampcompare.precision import build_precision

HALF, FLOAT = torch.float16, torch.float32
Case = partial(OneWeight, "apex_o1")


def test_schedule_moves_once_for_each_backward_not_for_each_step():
    case = Case(growth_interval=2)
    case.backward(1.0)
    case.backward(1.0)
    case.step()
    assert case.scale == 2.0**17
    case.backward(math.inf)
    case.backward(math.inf)
    case.step()
    assert (case.scale, case.skipped) == (2.0**15, 1)
    case.backward(1.0)
    case.step()
    assert case.skipped == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("bad", "sync"), [(0, True), (0, False), (1, False), (2, False)])
def test_overflow_in_any_micro_batch_skips_the_step(bad, sync, fused):
    case = Case(fused=fused)
    before = case.weight.detach().clone()
    for number in range(3):
        case.backward(math.inf if number == bad else 1.0, sync=sync or number == 2)
    case.step()
    assert torch.equal(case.weight, before)
    assert case.skipped == 1


@pytest.mark.parametrize("sync", [False, True])
def test_micro_batches_add_up(sync):
    case = Case(growth_interval=1)
    for slope in (1.0, 2.0, 3.0):
        case.backward(slope, sync=sync)
    case.precision.unscale_(case.optimizer)
    assert case.weight.grad.tolist() == [6.0, 6.0]
    case.precision.unscale_(case.optimizer)
    assert case.weight.grad.tolist() == [6.0, 6.0]
    case.step()
    assert case.weight.tolist() == [-2.0, -1.0]


def test_step_after_micro_batches_without_a_last_one_unscales():
    case = Case()
    case.backward(1.0, sync=False)
    case.step()
    assert case.weight.tolist() == [0.5, 1.5]
    case.backward(math.inf, sync=False)
    case.step()
    assert case.weight.tolist() == [0.5, 1.5]
    assert case.skipped == 1


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_scaled_loss_is_float_whatever_the_loss_was(dtype, shape):
    for options in ({}, {"loss_scale": 8.0}, {"loss_scale": 1.0}):
        precision = Case(**options).precision
        assert precision.scale(torch.ones(shape, dtype=dtype)).dtype is FLOAT


@pytest.mark.parametrize("fused", [False, True])
def test_static_scale_counts_and_never_skips(fused):
    case = Case(loss_scale=128.0, fused=fused)
    assert not case.precision.scales_dynamically()
    case.backward(1.0)
    assert case.weight.grad.tolist() == [1.0, 1.0]
    case.step()
    case.backward(math.inf)
    case.step()
    assert not case.weight.isfinite().any()
    assert (case.scale, case.skipped) == (128.0, 0)
    assert case.precision.state_dict()["loss_scaler0"] == {"loss_scale": 128.0, "unskipped": 2}


@pytest.mark.parametrize("slope", [math.inf, 1.0])
def test_the_scale_of_a_step_is_told_until_it_is_taken(slope):
    case = Case(growth_interval=1)
    case.backward(slope)
    case.precision.unscale_(case.optimizer)
    assert case.scale == 2.0**16
    case.step()
    assert case.scale != 2.0**16


def test_state_goes_on_exactly():
    case, resumed = Case(growth_interval=3), Case(growth_interval=3)
    for slope in (1.0, math.inf, 1.0, 1.0):
        case.backward(slope)
        case.step()
    state = case.precision.state_dict()
    assert state == {"skipped_steps": 1, "loss_scaler0": {"loss_scale": 32768.0, "unskipped": 2}}
    resumed.precision.load_state_dict(state)
    for each in (case, resumed):
        each.backward(1.0)
        each.step()
    assert resumed.precision.state_dict() == case.precision.state_dict()
    assert resumed.scale == 65536.0
    assert resumed.skipped == 1


def test_a_network_that_begins_with_a_normed_weight_trains():
    torch.manual_seed(0)
    parametrizations = torch.nn.utils.parametrizations
    first = parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    model = nn.Sequential(first, nn.Flatten(), parametrizations.weight_norm(nn.Linear(4, 2)))
    precision = build_precision("apex_o1", init_scale=1024.0)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = [p.clone() for p in model.parameters()]
    with precision.session():
        with precision.forward_context():
            loss = model(torch.randn(2, 3, 3, 3)).float().square().mean()
        precision.backward(loss)
        precision.step(optimizer)
    assert not any(torch.equal(a, b) for a, b in zip(before[:1], list(model.parameters())[:1], strict=True))
