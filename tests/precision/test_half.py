"""Pure fp16: everything in half precision, and why it needs loss scaling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampcompare.precision import build_precision

HALF, FLOAT = torch.float16, torch.float32


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("backend", "keep", "norms"),
    [
        *[("fp16", None, HALF), ("fp16", False, HALF), ("fp16", True, FLOAT)],
        *[("apex_o2", None, FLOAT), ("apex_o2", False, HALF), ("apex_o2", True, FLOAT)],
    ],
)
def test_batchnorm_is_kept_in_fp32_where_it_is_asked_for_or_the_level_s_own(
    backend: str, keep, norms
) -> None:
    model = small_net()
    precision = build_precision(backend, keep_batchnorm_fp32=keep, loss_scale=1024.0)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert {model[0].weight.dtype, model[3].bias.dtype} == {HALF}
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
