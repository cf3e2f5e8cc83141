"""O1 in bf16: apex's lists and scaler with another half type, which NVIDIA's apex never had."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ampcompare.precision import build_precision
from ampcompare.precision.o1.patches import casts, disable_casts
from ampcompare.precision.o1.weights import STATE

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def _in_bf16():
    return casts(device_type="cpu", half=BF16)


def test_fp16_is_the_half_type_of_whoever_names_none():
    x = torch.randn(2, 2)
    with casts(device_type="cpu"):
        assert torch.mm(x, x).dtype is FP16
    with _in_bf16(), casts():  # inside a context nothing changes but what is named
        assert torch.mm(x, x).dtype is BF16
    with _in_bf16(), disable_casts(), casts():
        assert torch.mm(x, x).dtype is BF16
    assert STATE.half is FP16


def test_a_weight_has_a_copy_of_its_own_in_each_half_type():
    weight, x = nn.Parameter(torch.randn(2, 2)), torch.randn(2, 2)
    with _in_bf16():
        assert F.linear(x, weight).dtype is BF16
        with casts(half=FP16):
            assert F.linear(x, weight).dtype is FP16
        assert F.linear(x, weight).dtype is BF16


def test_a_traced_step_in_bf16_has_the_numbers_of_the_eager_one():
    x, results = torch.randn(4, 8), []
    for compiled in (False, True):
        torch.manual_seed(0)
        precision = build_precision("apex_o1_bf16")
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

        def forward(x, model=model, precision=precision):
            with precision.forward_context():
                return model(x).square().mean()

        with precision.session():
            run = torch.compile(forward, backend="aot_eager") if compiled else forward
            precision.backward(run(x))
            precision.step(optimizer)
        results.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
