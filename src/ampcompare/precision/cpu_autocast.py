"""The casts of fp16 autocast on a CPU as on a GPU.

PyTorch's lists for `torch.autocast("cpu", torch.float16)` are other ones than those for CUDA: `softmax`,
`sum`, `exp`, `norm`, `layer_norm` and more stay in fp16, where CUDA computes them in fp32. A sum over 100,000
ones is then inf on a CPU and right on a GPU. Inside `cast_as_cuda`, kernels for the dispatch key of the CPU's
autocast apply CUDA's lists.

The lists are those of ATen/autocast_mode.h (torch 2.14), without the operations of cuDNN. `torch.autocast`
in bf16 keeps PyTorch's lists for CPUs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.library import get_kernel
from torch.utils._pytree import tree_leaves

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES
from ampcompare.precision.scoped_kernels import ScopedKernels
from ampcompare.system.device import is_host

# Computed in fp16. PyTorch's lists for CPUs have the other operations that CUDA computes in fp16.
LOWER_PRECISION = """
    _convolution convolution addmv addr einsum mv chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""".split()
# Computed in fp32. A call that names the dtype of its result is left alone: it converts its input itself.
FP32 = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList norm.Scalar
    norm.ScalarOpt_dim linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity dist pdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
""".split()
# In the widest dtype of the arguments.
PROMOTE = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()
# PyTorch's lists for CPUs return fp32, CUDA's kernels the dtype of the input.
INPUT_DTYPE = """
    adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d fractional_max_pool3d max_pool3d
    max_unpool2d max_unpool3d grid_sampler_2d grid_sampler_3d reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d replication_pad3d trace
""".split()
REFUSED = "binary_cross_entropy"
REFUSAL = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast, as on a GPU: fp16 "
    "outputs of a sigmoid are 0 or 1 too often. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss on "
    "the inputs of the sigmoid, or compute this loss in fp32 under torch.autocast(enabled=False)"
)

AUTOCAST = torch._C.DispatchKey.AutocastCPU
BELOW_AUTOCAST = torch._C._dispatch_keyset_full_after(AUTOCAST)
HALF = torch.float16
CASTABLE = (*SIXTEEN_BIT_DTYPES, torch.float32)

Kernel = Callable[..., Any]


def cast_as_cuda(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which fp16 autocast on a CPU casts as on a GPU, in every thread.

    On any device but a CPU it does nothing. Contexts may be nested.
    """
    return _kernels.active(_POLICIES, HALF) if is_host(device) else nullcontext()


def _in_lower_precision(call: Kernel, *args: Any, **kwargs: Any) -> Any:
    return call(*_cast(args, HALF), **_cast(kwargs, HALF))


def _in_fp32(call: Kernel, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("dtype") is not None:
        return call(*args, **kwargs)
    return call(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))


def _in_widest(call: Kernel, *args: Any, **kwargs: Any) -> Any:
    is_wide = any(_is_castable(leaf) and leaf.dtype is torch.float32 for leaf in tree_leaves((args, kwargs)))
    return (_in_fp32 if is_wide else _in_lower_precision)(call, *args, **kwargs)


def _in_input_dtype(call: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Compute in fp32 and round to the dtype of the first argument.

    CPUs have no kernels in fp16 for some of these operations. CUDA's compute in fp32 and round, too.
    """
    result = _in_fp32(call, *args, **kwargs)
    return _cast(result, args[0].dtype) if _is_castable(args[0]) else result


def _refuse(call: Kernel, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(REFUSAL)


_POLICIES: dict[str, Kernel] = {
    **dict.fromkeys(LOWER_PRECISION, _in_lower_precision),
    **dict.fromkeys(FP32, _in_fp32),
    **dict.fromkeys(PROMOTE, _in_widest),
    **dict.fromkeys(INPUT_DTYPE, _in_input_dtype),
    REFUSED: _refuse,
}


def _make_kernels(overload: str) -> dict[str, Kernel]:
    """Make the kernel of an overload (`softmax.int`), by its name."""
    name, _, variant = overload.partition(".")
    operation = getattr(getattr(torch.ops.aten, name), variant or "default")
    policy = _POLICIES[overload]
    has_original = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{overload}", "AutocastCPU")
    original = get_kernel(f"aten::{overload}", "AutocastCPU").call_boxed if has_original else None

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if _kernels.is_active(overload, HALF) and torch.get_autocast_dtype("cpu") is HALF:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
                return policy(operation, *args, **kwargs)
        if original:
            return original(keyset, *args, **kwargs)
        return operation.redispatch(keyset & BELOW_AUTOCAST, *args, **kwargs)

    return {overload: kernel}


def _is_castable(value: Any) -> bool:
    """Return whether autocast may cast an argument: a tensor of the CPU in at most 32 bits."""
    return isinstance(value, Tensor) and value.dtype in CASTABLE and value.device.type == "cpu"


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with every tensor in it that autocast may cast in the dtype."""
    if _is_castable(value):
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)(_cast(part, dtype) for part in value)
    if isinstance(value, dict):
        return {key: _cast(part, dtype) for key, part in value.items()}
    return value


_kernels = ScopedKernels("AutocastCPU", _make_kernels)
