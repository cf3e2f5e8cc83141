"""16-bit convolutions and matrix products on a CPU, computed in fp32 where the CPU has no fast kernel for them.

PyTorch runs a 16-bit operation that oneDNN does not support in a plain loop, 10 to 170 times as slow as the
same operation in fp32. `compute_in_fp32` registers kernels for these operations at PyTorch's dispatcher. A
kernel converts its 16-bit operands to fp32, calls PyTorch's own fp32 kernel, and rounds the result to 16 bits.
A tensor core does the same: 16-bit operands, sums in fp32.

The kernels act below autograd, autocast, `torch.func` and `torch.compile`, which therefore need no special
case. They are registered with the public `torch.library`, for the process, while any thread is inside
`compute_in_fp32`. `operations_in_fp32` decides from the CPU's capabilities which operations need a kernel. It
never measures a time, so a run and its continuation decide alike.

Operations that are missing here on purpose, by measurement (AMD Zen 4 and Intel Sapphire Rapids, also limited
to AVX2): `mv`, `addmv`, `dot` and `addr` read each value once, so the conversion costs as much as the
operation; normalisation, pooling, activations and the forward of attention take at most 3 times fp32's time.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

from ampcompare.machine.device import is_host
from ampcompare.machine.environment import native_unit, onednn_supports

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
CONVOLUTION_BACKWARD = "convolution_backward"
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

# What the contexts that are open in this process ask for.
_lock = threading.RLock()
_requests: Counter[tuple[str, tuple[str, ...]]] = Counter()  # (dtype, operations): how many contexts
_library: Library | None = None
_overloads: list[str] = []  # that have a kernel in `_library`


def operations_in_fp32(device: torch.device, dtype: str) -> tuple[str, ...]:
    """Return the ATen operations that training in a dtype computes in fp32 on a device.

    The decision depends on the CPU's instruction sets and on oneDNN's support, and on nothing that is measured.

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
    elif dtype == "float16" and not native_unit(dtype):
        operations += [CONVOLUTION_BACKWARD]  # oneDNN runs the weights' gradient in its reference loop
    return tuple(sorted(operations))


@contextmanager
def compute_in_fp32(device: torch.device, dtype: str) -> Iterator[None]:
    """Compute the slow 16-bit operations of a CPU in fp32 within this context, in every thread of the process.

    Enter it around training steps, not around fp32 work: while it is active, an fp32 call of the same
    operations takes 4 to 16 µs longer. Contexts may be nested and may be open in several threads at once.

    Args:
        device: The device of the training. On any device but a CPU the context does nothing.
        dtype: The dtype whose operations are computed in fp32: "float16" or "bfloat16". With any other dtype
            the context does nothing.
    """
    operations = operations_in_fp32(device, dtype)
    if not operations:
        yield
        return
    _count_context((dtype, operations), 1)
    try:
        yield
    finally:
        _count_context((dtype, operations), -1)


def active_overloads() -> tuple[str, ...]:
    """Return the ATen overloads that have an fp32 kernel registered now, sorted."""
    with _lock:
        return tuple(sorted(_overloads))


def _count_context(request: tuple[str, tuple[str, ...]], change: int) -> None:
    """Count a context in or out. Replace the kernels where the set of open requests has changed."""
    global _library
    with _lock:
        before = set(_requests)
        _requests[request] += change
        if not _requests[request]:
            del _requests[request]
        if before == set(_requests):
            return
        if _library is not None:
            _library._destroy()  # the only way to take a kernel out before the process ends
            _library = None
            _overloads.clear()
        if _requests:
            _library = _register(_requests)


def _register(requests: Iterable[tuple[str, tuple[str, ...]]]) -> Library:
    """Register a kernel for every overload of the requested operations."""
    dtypes: dict[str, set[torch.dtype]] = {}
    for dtype, operations in requests:
        for name in operations:
            dtypes.setdefault(name, set()).add(DTYPES[dtype])
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"[\s\S]*[Oo]verriding a previously registered kernel")
        for name, taken in dtypes.items():
            for overload in (name, *OVERLOADS.get(name, ())):
                kernel = _make_kernel(name, overload, frozenset(taken))
                library.impl(overload, kernel, "CPU", with_keyset=True)
                _overloads.append(overload)
    return library


def _make_kernel(name: str, overload: str, dtypes: frozenset[torch.dtype]) -> Callable[..., Any]:
    """Make the kernel of an overload: functional (`mm`), with an output (`mm.out`) or in place (`addmm_`)."""
    functional, original = (get_kernel(f"aten::{op}", "CPU").call_boxed for op in (name, overload))
    operands = OPERANDS[name]

    def compute(keyset: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        dtype = args[0].dtype
        wide = [_widened(value, dtype) for value in args]
        result = functional(keyset, *wide, **{key: _widened(value, dtype) for key, value in kwargs.items()})
        if isinstance(result, Tensor):
            return result.to(dtype)
        return tuple(part if part is None else part.to(dtype) for part in result)

    def is_for_us(tensors: Sequence[Any]) -> bool:
        dtype = tensors[0].dtype
        return dtype in dtypes and all(tensor is None or tensor.dtype is dtype for tensor in tensors[1:])

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if is_for_us(args[:operands]):
            return compute(keyset, args, kwargs)
        return original(keyset, *args, **kwargs)

    def kernel_with_target(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs["out"] if overload.endswith(".out") else args[0]
        if is_for_us((*args[:operands], target)):
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            result = compute(keyset, args, rest)
            if result.shape == target.shape:  # otherwise PyTorch resizes the target, or refuses it
                return target.copy_(result)
        return original(keyset, *args, **kwargs)

    return kernel if overload == name else kernel_with_target


def _widened(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor of the dtype in fp32, and anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype is dtype else value
