"""16-bit convolutions and matrix products in fp32, on CPUs that have no fast kernels for them.

PyTorch runs a 16-bit operation that oneDNN does not support in a plain loop, 10 to 170 times as slow as the
same operation in fp32. `compute_in_fp32` registers kernels for these operations at PyTorch's dispatcher. A
kernel converts its 16-bit operands to fp32, calls PyTorch's own fp32 kernel, and rounds the result to 16
bits. A tensor core does the same: 16-bit operands, sums in fp32.

The kernels act below autograd, autocast, `torch.func` and `torch.compile`, which therefore need no special
case. They are registered while any thread is inside `compute_in_fp32`. `list_fp32_operations` decides from
the CPU's capabilities which operations need a kernel. It never measures a time, so a run and its continuation
decide alike.

Operations that are missing here on purpose, by measurement (AMD Zen 4 and Intel Sapphire Rapids, also limited
to AVX2): `mv`, `addmv`, `dot` and `addr` read each value once, so the conversion costs as much as the
operation; normalisation, pooling, activations and the forward of attention take at most 3 times fp32's time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.library import get_kernel

from ampcompare.precision.scoped_kernels import ScopedKernels
from ampcompare.system.device import is_host
from ampcompare.system.environment import native_unit, onednn_supports

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
CONVOLUTION_BACKWARD = "convolution_backward"
RECURRENT = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")  # oneDNN's LSTM, which fails without support
FORWARD = ("_convolution", "mm", "addmm", "bmm", "baddbmm", "addbmm")
# The number of leading arguments that are the operands: all must have the same 16-bit dtype.
OPERANDS = {
    "_convolution": 3,  # input, weight, bias
    CONVOLUTION_BACKWARD: 3,  # gradient of the output, input, weight
    "mm": 2,
    "addmm": 3,
    "bmm": 2,
    "baddbmm": 3,
    "addbmm": 3,
    "mkldnn_rnn_layer": 7,  # input, four weights, both states
    "mkldnn_rnn_layer_backward": 10,  # the same, output, both new states
    ATTENTION_BACKWARD: 5,  # gradient of the output, query, key, value, output
}
# The overloads that have CPU kernels of their own. PyTorch derives all others from these.
OVERLOADS = {
    "mm": ("mm.out",),
    "addmm": ("addmm.out", "addmm_"),
    "bmm": ("bmm.out",),
    "baddbmm": ("baddbmm.out", "baddbmm_"),
    "addbmm": ("addbmm.out", "addbmm_"),
}


def list_fp32_operations(device: torch.device, dtype: str) -> tuple[str, ...]:
    """Return the ATen operations that training in a dtype computes in fp32 on a device.

    The decision depends on the CPU's instruction sets and on oneDNN's support, never on a measurement.

    Args:
        device: The device of the training. Only a CPU has such operations.
        dtype: The backend's dtype, such as "float16".

    Returns:
        Operation names without namespace, sorted; empty where none is needed.
    """
    if not is_host(device) or dtype not in DTYPES:
        return ()
    operations = [ATTENTION_BACKWARD]  # PyTorch has no fast 16-bit kernel for it on any CPU
    if not onednn_supports(dtype):
        operations += [*FORWARD, CONVOLUTION_BACKWARD]
        if torch.backends.mkldnn.is_available():  # else PyTorch has no such kernel
            operations += RECURRENT
    elif dtype == "float16" and not native_unit(dtype):
        # oneDNN runs the gradient of a convolution's weights in its reference loop, and trains no fp16 LSTM.
        operations += [CONVOLUTION_BACKWARD, *RECURRENT]
    return tuple(sorted(operations))


@contextmanager
def compute_in_fp32(device: torch.device, dtype: str) -> Iterator[None]:
    """Compute the slow 16-bit operations of a CPU in fp32 inside this context, in every thread.

    Enter it around training steps, not around fp32 work: while it is active, an fp32 call of the same
    operations takes 4 to 16 µs longer. Contexts may be nested and may be open in several threads at once.

    Args:
        device: The device of the training. On any device but a CPU the context does nothing.
        dtype: The dtype whose operations are computed in fp32: "float16" or "bfloat16". With any other dtype
            the context does nothing.
    """
    operations = list_fp32_operations(device, dtype)
    if not operations:
        yield
        return
    with _kernels.active(operations, DTYPES[dtype]):
        yield


def list_active_overloads() -> tuple[str, ...]:
    """Return the ATen overloads that are computed in fp32 now for a 16-bit dtype, sorted."""
    return _kernels.list_active_overloads()


def _make_kernels(name: str) -> dict[str, Callable[..., Any]]:
    """Make a kernel for every overload of an operation."""
    return {overload: _make_kernel(name, overload) for overload in (name, *OVERLOADS.get(name, ()))}


def _make_kernel(name: str, overload: str) -> Callable[..., Any]:
    """Make the kernel of an overload: functional (`mm`), with an output (`mm.out`) or in place (`addmm_`)."""
    functional, original = (get_kernel(f"aten::{op}", "CPU").call_boxed for op in (name, overload))
    operands = OPERANDS[name]

    def compute(keyset: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        dtype = args[0].dtype
        wide_args = [_widen(value, dtype) for value in args]
        wide_kwargs = {key: _widen(value, dtype) for key, value in kwargs.items()}
        result = functional(keyset, *wide_args, **wide_kwargs)
        if isinstance(result, Tensor):
            return result.to(dtype)
        return tuple(_round(part, dtype) for part in result)

    def has_16_bit_operands(tensors: Sequence[Any]) -> bool:
        dtype = tensors[0].dtype
        if not _kernels.is_active(name, dtype):
            return False
        return all(tensor is None or tensor.dtype is dtype for tensor in tensors[1:])

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if has_16_bit_operands(args[:operands]):
            return compute(keyset, args, kwargs)
        return original(keyset, *args, **kwargs)

    def kernel_with_target(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs["out"] if overload.endswith(".out") else args[0]
        if has_16_bit_operands((*args[:operands], target)):
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            with suppress(RuntimeError):  # PyTorch's own kernel raises PyTorch's own error
                result = compute(keyset, args, rest)
                if result.shape == target.shape:  # otherwise PyTorch resizes the target, or refuses it
                    return target.copy_(result)
        return original(keyset, *args, **kwargs)

    return kernel if overload == name else kernel_with_target


def _round(value: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return an fp32 result in the dtype, and anything else as it is: no gradient, oneDNN's workspace."""
    if value is None or value.dtype is not torch.float32:
        return value
    return value.to(dtype)


def _widen(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor of the dtype in fp32, and anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype is dtype else value


_kernels = ScopedKernels("CPU", _make_kernels)
