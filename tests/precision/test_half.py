"""Half weights: which types the parts of a network have, and why fp16 needs loss scaling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampcompare.precision import build_precision

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("backend", "half", "own"),
    [("fp16", HALF, HALF), ("apex_o2", HALF, FLOAT), ("bf16", BF16, BF16), ("bf16_sr", BF16, BF16)],
)
@pytest.mark.parametrize("keep", [None, False, True])
def test_batchnorm_is_kept_in_fp32_where_it_is_asked_for_or_the_backend_s_own(backend, half, own, keep):
    model, norms = small_net(), {None: own, False: half, True: FLOAT}[keep]
    precision = build_precision(backend, keep_batchnorm_fp32=keep, loss_scale=1024.0)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert {model[0].weight.dtype, model[3].bias.dtype} == {half}
    assert model(torch.randn(8, 4)).dtype is FLOAT
    assert {t.dtype for t in (*model[1].parameters(), model[1].running_mean, model[1].running_var)} == {norms}
    before = model[1].weight.detach().clone()
    for _ in range(2):
        precision.backward(model(torch.randn(8, 4)).square().mean())
        precision.step(optimizer)
        optimizer.zero_grad()
    assert not torch.equal(model[1].weight, before)
    assert model[1].weight.dtype is norms


@pytest.mark.parametrize(("loss_scale", "left"), [(1.0, 0.0), (1024.0, 2.0**-18), ("dynamic", 2.0**-18)])
def test_tiny_gradient_survives_with_loss_scaling_alone(loss_scale, left) -> None:
    model = nn.Linear(1, 1, bias=False)
    precision = build_precision("fp16", loss_scale=loss_scale)
    precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    precision.backward(model(torch.full((1, 1), 256.0)).sum() * 2.0**-26)
    assert model.weight.grad.item() == left
