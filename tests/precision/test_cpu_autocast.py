"""`native` on a CPU casts as CUDA's autocast: PyTorch's own lists for CUDA, operation by operation."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from ampcompare.precision import build_precision

# PyTorch's own test support, which the lists import, forbids every later change of PyTorch's switches.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

Case = tuple[str, Any, Any, torch.dtype | None]  # operation, its arguments, keywords, the expected dtype
HALF, FLOAT = torch.float16, torch.float32
CUDNN = "cudnn_convolution"  # operations without a kernel for CPUs
PROMOTED = None  # in the widest dtype of the arguments


def list_cases() -> Iterator[Case]:
    lists = AutocastTestLists("cpu")
    for kind, expected in (("fp16", HALF), ("fp32", FLOAT)):
        for prefix in ("torch", "nn", "methods", "linalg"):
            for name, *arguments in getattr(lists, f"{prefix}_{kind}", []):
                if name == "einsum":  # PyTorch's entry has too few dimensions for its equation
                    yield name, (arguments[0], *torch.randn(2, 3, 3, 3, 3)), {}, expected
                elif not name.startswith(CUDNN):
                    yield name, arguments[0], arguments[1] if len(arguments) > 1 else {}, expected
    for name, arguments in lists.torch_need_autocast_promote:
        yield name, arguments, {}, PROMOTED
    for name, arguments, expected in (
        *lists.torch_expect_builtin_promote,
        *lists.methods_expect_builtin_promote,
    ):
        yield name, arguments, {}, torch.bool if name == "equal" else expected


def find_operation(name: str, arguments: Any) -> Callable[..., Any]:
    if name.startswith("__"):
        if name == "__div__":
            return torch.Tensor.__truediv__
        return getattr(torch.Tensor, name)
    return next(getattr(m, name) for m in (torch, torch._C._nn, torch._C._linalg) if hasattr(m, name))


def dtype_of(result: Any) -> torch.dtype:
    while isinstance(result, tuple | list):
        result = result[0]
    return torch.bool if isinstance(result, bool) else result.dtype


def in_fp64(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(map(in_fp64, value)) if isinstance(value, tuple | list) else value


CASES = list(list_cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case[0]}" for index, case in enumerate(CASES)])
def test_every_operation_has_the_dtype_of_cudas_autocast_and_its_value(case: Case):
    name, arguments, options, expected = case
    operation = find_operation(name, arguments)
    with build_precision("native").forward_context():
        result = operation(*arguments, **options)
    assert dtype_of(result) is (FLOAT if expected is PROMOTED else expected)
    right = operation(*in_fp64(arguments), **options)
    if isinstance(result, Tensor):
        error = 1e-5 if result.dtype is FLOAT and expected is not PROMOTED else 0.01
        largest = float(right.double().abs().nan_to_num(0, 0, 0).max())
        torch.testing.assert_close(
            result.double(), right.double(), rtol=error, atol=error * max(largest, 1), equal_nan=True
        )


def test_no_operation_that_cudas_autocast_casts_is_missing():
    """PyTorch registers CUDA's kernels in every build; each has one of ours, or one in CPU's lists."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    with build_precision("native").forward_context():
        missing = {*registered("AutocastCUDA")} - {*registered("AutocastCPU")}
    missing = {name for name in missing if name.startswith("aten::")}  # torchvision has its own
    on_gpus_only = {"_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"}
    assert missing == {f"aten::{name}" for name in (*on_gpus_only, "_scaled_dot_product_flash_attention")}


def test_binary_cross_entropy_is_refused_with_the_remedy():
    def call(x: Tensor) -> Tensor:
        return nn.BCELoss()(x.sigmoid(), torch.ones_like(x))

    x = torch.randn(4, 4)
    with build_precision("native").forward_context():
        with pytest.raises(RuntimeError, match=r"unsafe to autocast.*binary_cross_entropy_with_logits"):
            call(x)
        with torch.autocast("cpu", enabled=False):
            assert call(x).isfinite()
    with build_precision("native_bf16").forward_context():
        assert call(x).isfinite()


@pytest.mark.parametrize(
    "layer", [nn.AvgPool3d(2), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(2), nn.ReplicationPad3d(1)]
)
def test_pools_and_pads_keep_the_dtype_of_their_input_as_on_a_gpu(layer: nn.Module):
    x = torch.randn(1, 2, 4, 4, 4)
    with build_precision("native").forward_context():
        assert layer(x.half()).dtype is HALF
        assert layer(x).dtype is FLOAT
        torch.testing.assert_close(layer(x.half()).float(), layer(x), rtol=2e-3, atol=2e-3)


def list_dtypes() -> list[torch.dtype]:
    """Return the dtypes of a few results that differ between the lists for CPUs and for CUDA."""
    x = torch.randn(8, 8).half()
    results = (
        x.softmax(-1),
        x.sum(),
        x.exp(),
        x.norm(),
        F.layer_norm(x, (8,)),
        F.pad(x, (1, 1), "reflect"),
    )
    return [result.dtype for result in results]


def plain(dtype: torch.dtype) -> list[torch.dtype]:
    with torch.autocast("cpu", dtype):
        return list_dtypes()


def test_plain_autocast_is_as_before_outside_and_in_bf16_inside():
    before = plain(HALF), plain(torch.bfloat16)
    assert before[0] == [HALF] * 5 + [FLOAT]
    precision = build_precision("native")
    with precision.training_context():
        assert plain(torch.bfloat16) == before[1]
        assert plain(HALF) == [FLOAT] * 5 + [HALF]
        assert list_dtypes() == [HALF] * 6
        with precision.forward_context(), precision.forward_context():
            assert list_dtypes() == [FLOAT] * 5 + [HALF]
    assert (plain(HALF), plain(torch.bfloat16)) == before
    for name in ("native_bf16", "apex_o1", "none"):
        with build_precision(name).training_context():
            assert (plain(HALF), plain(torch.bfloat16)) == before


def test_arguments_that_are_no_floating_point_tensors_are_left_alone():
    with build_precision("native").forward_context():
        assert torch.arange(5).sum().dtype is torch.int64
        assert torch.ones(5, dtype=HALF).sum(dtype=HALF).dtype is HALF
        for dtype in (torch.float64, torch.complex64):
            assert torch.ones(5, dtype=dtype).sum().dtype is dtype
