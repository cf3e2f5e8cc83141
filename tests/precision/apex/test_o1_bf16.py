"""O1 in bf16: apex's lists and scaler with another half type, which NVIDIA's apex never had."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

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
