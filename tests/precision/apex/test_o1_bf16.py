"""O1 in bf16: apex's lists and scaler with another half type, which NVIDIA's apex never had."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampcompare.models import build_model
from ampcompare.precision import build_precision
from ampcompare.precision.o1.patches import casts, disable_casts
from ampcompare.precision.o1.weights import STATE

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def _in_bf16():
    return casts(device_type="cpu", half=BF16)


def test_half_listed_functions_run_in_bf16_and_float_listed_ones_in_fp32():
    x = torch.randn(2, 4)
    with _in_bf16():
        assert F.linear(x, torch.randn(3, 4)).dtype is BF16
        assert torch.mm(x, x.T).dtype is BF16
        assert (x @ x.T).dtype is BF16
        assert F.conv2d(torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3)).dtype is BF16
        assert F.softmax(x.to(BF16), dim=1).dtype is FP32
        assert x.to(BF16).exp().dtype is FP32


def test_a_convolution_is_bit_for_bit_that_of_its_arguments_in_bf16():
    x, weight = torch.randn(2, 3, 8, 8), nn.Parameter(torch.randn(4, 3, 3, 3))
    with _in_bf16():
        found = F.conv2d(x, weight)
    assert torch.equal(found, F.conv2d(x.to(BF16), weight.to(BF16)))


def test_mixed_arguments_are_promoted_to_fp32_and_two_half_types_refused():
    with _in_bf16():
        assert torch.add(torch.ones(2, dtype=BF16), torch.ones(2)).dtype is FP32
        assert torch.cat([torch.ones(2, dtype=BF16), torch.ones(2)]).dtype is FP32
        with pytest.raises(NotImplementedError, match=r"\{bfloat16, float16\}.*mix of bfloat16 and float32"):
            torch.add(torch.ones(2, dtype=BF16), torch.ones(2, dtype=FP16))


def test_in_place_functions_and_banned_ones_see_bf16_as_the_half_type():
    x = torch.ones(2, dtype=BF16)
    with _in_bf16():
        x.add_(torch.ones(2))
        assert x.dtype is BF16
        with pytest.raises(NotImplementedError, match="cannot write into a bfloat16 tensor"):
            x.exp_()
        with pytest.raises(NotImplementedError, match="does not run binary_cross_entropy on bfloat16"):
            F.binary_cross_entropy(torch.full((2,), 0.5, dtype=BF16), torch.ones(2))


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


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_is_run_again_in_the_backward_runs_in_bf16(reentrant):
    seen = []

    def block(x):
        seen.append(F.linear(x, weight).dtype)
        return F.linear(x, weight).float()

    weight = nn.Parameter(torch.randn(2, 2))
    with _in_bf16():
        y = checkpoint(block, torch.randn(2, 2, requires_grad=True), use_reentrant=reentrant)
    y.sum().backward()
    assert seen == [BF16, BF16]


def test_a_step_casts_to_bf16_keeps_fp32_weights_and_scales_the_loss():
    torch.manual_seed(0)
    precision = build_precision("apex_o1_bf16", init_scale=1024.0, growth_interval=1)
    model = build_model("tiny", "cifar", 10)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    types = set()
    convolution = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    convolution.register_forward_hook(lambda _m, _i, output: types.add(output.dtype))
    with precision.session():
        with precision.forward_context():
            loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4))
        precision.backward(loss)
        precision.step(optimizer)
    assert types == {BF16}
    assert loss.dtype is FP32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {FP32}
    assert precision.scale_factor().item() == 2048.0
    assert precision.input_dtype is BF16


def test_an_overflow_in_bf16_is_skipped_and_halves_the_scale():
    precision = build_precision("apex_o1_bf16")
    weight = nn.Parameter(torch.ones(2))
    _, optimizer = precision.prepare(nn.Module(), torch.optim.SGD([weight], lr=0.5))
    precision.backward((weight * float("inf")).sum())
    precision.step(optimizer)
    assert weight.tolist() == [1.0, 1.0]
    assert (precision.scale_factor().item(), precision.skipped_steps().item()) == (32768.0, 1)


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
