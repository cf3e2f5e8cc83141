"""Native AMP: autocast and GradScaler through the contract."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.one_weight import OneWeight

Case = partial(OneWeight, "native")


@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_overflow_skips_the_step_and_halves_the_scale(fused, unscale_first):
    case = Case(fused=fused)
    before = case.weight.detach().clone()
    for slope, skipped in ((math.inf, 1), (math.nan, 2)):
        case.backward(slope)
        if unscale_first:
            case.precision.unscale_(case.optimizer)
        case.step()
        assert torch.equal(case.weight, before)
        assert (case.scale, case.skipped) == (2.0 ** (16 - skipped), skipped)
    case.backward(1.0)
    if unscale_first:
        case.precision.unscale_(case.optimizer)
    case.step()
    assert torch.equal(case.weight, before - 0.5)
    assert (case.scale, case.skipped) == (2.0**14, 2)


@pytest.mark.parametrize("fused", [False, True])
def test_static_scale_stays_and_still_skips(fused):
    case = Case(fused=fused, loss_scale=128.0, growth_interval=1)
    assert not case.precision.scales_dynamically()
    before = case.weight.detach().clone()
    assert case.scale == 128.0
    case.backward(math.inf)
    case.step()
    assert torch.equal(case.weight, before)
    case.backward(1.0)
    assert case.weight.grad.tolist() == [128.0, 128.0]
    case.step()
    assert torch.equal(case.weight, before - 0.5)
    assert (case.scale, case.skipped) == (128.0, 1)
