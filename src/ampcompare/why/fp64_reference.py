"""Take a training step in fp64: the reference for steps that both round.

Network, batch and optimizer state are converted to fp64, and the step runs eagerly. Code of the network that
asks for a smaller dtype (`x.float()`, `torch.zeros(..., dtype=torch.float32)`) gets fp64.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch
from ampcompare.errors import UserError
from ampcompare.system.device import has_float64, is_cuda
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import map_tensors, module_calls, numeric_tensors
from ampcompare.why.memory_estimate import estimate_memory
from ampcompare.why.op_dtypes import trace_forward

COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
WIDEST = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    **COMPLEX,
}
CASTS = {Tensor.float, Tensor.half, Tensor.bfloat16}
GB = 1e9
ROUNDED = "ampcompare_rounded"  # attribute of a tensor that was changed


def convert_to_fp64(trainer: Trainer) -> None:
    """Convert the network and the optimizer state of a strict fp32 trainer to fp64, in place."""
    trainer.model._apply(_to_fp64)
    for state in trainer.optimizer.state.values():
        state.update({k: _to_fp64(v) for k, v in state.items() if isinstance(v, Tensor) and k != "step"})


def batches_in_fp64(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with their floating-point tensors in fp64."""
    return map_tensors([*batches], _to_fp64)


def _to_fp64(value: Tensor) -> Tensor:
    return value.to(WIDEST.get(value.dtype, value.dtype))


@contextmanager
def fp64_arithmetic() -> Iterator[None]:
    """Return a context in which PyTorch's functions compute in fp64, whatever dtype the code asks for."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Fp64Mode():
            yield
    finally:
        torch.set_default_dtype(before)


class _Fp64Mode(TorchFunctionMode):
    """Replaces smaller dtypes in the arguments of PyTorch's functions by fp64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CASTS:
            func = Tensor.double
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(_has_smaller_dtype(leaf) for leaf in leaves):  # nearly every call of a step
            return func(*args, **kwargs)
        args, kwargs = tree_map(_replace_dtype, (args, kwargs))
        # A network may keep a table as a plain tensor, which no conversion of the network reaches.
        dtypes = {tensor.dtype for tensor in numeric_tensors((args, kwargs))}
        if not _is_in_place(func) and not dtypes.isdisjoint(WIDEST.values()):
            args, kwargs = tree_map(lambda x: _to_fp64(x) if isinstance(x, Tensor) else x, (args, kwargs))
        return func(*args, **kwargs)


def _has_smaller_dtype(value: Any) -> bool:
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(dtype, torch.dtype) and dtype in WIDEST


def _replace_dtype(value: Any) -> Any:
    return WIDEST.get(value, value) if isinstance(value, torch.dtype) else value


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    is_operator = name.startswith("__") and name.endswith("__")
    if is_operator:
        return name.startswith("__i") or name in ("__set__", "__setitem__")
    return name.endswith("_")


@contextmanager
def rounded_arithmetic(model: nn.Module, unit: float, generator: torch.Generator) -> Iterator[None]:
    """Return a context of fp64 with random changes of up to one rounding, in outputs and their gradients.

    The step then deviates by as much as rounding makes it deviate, whatever cancels out or is amplified in it
    (Monte Carlo arithmetic, as in Parker, 1997).

    Args:
        model: The network, in fp64.
        unit: The relative error of one rounding.
        generator: Draws the changes, on the device of the network.
    """

    def change(tensor: Tensor) -> Tensor:
        # The output of a module may be that of a module inside it.
        if not tensor.is_floating_point() or getattr(tensor, ROUNDED, False):
            return tensor
        changed: Tensor = _Rounding.apply(tensor, unit, generator)
        setattr(changed, ROUNDED, True)
        return changed

    def leave(name: str, module: nn.Module, output: Any) -> Any:
        return map_tensors(output, change)

    with fp64_arithmetic(), module_calls(model, leave=leave):
        yield


class _Rounding(torch.autograd.Function):
    """Multiplies a tensor and its gradient by random factors next to 1."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, unit: float, generator: torch.Generator) -> Tensor:
        ctx.unit = unit
        ctx.generator = generator
        return _round_at_random(tensor, unit, generator)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _round_at_random(gradient, ctx.unit, ctx.generator), None, None


def _round_at_random(tensor: Tensor, unit: float, generator: torch.Generator) -> Tensor:
    """Return the tensor with relative errors like those of rounding, which depend on its leading digits."""
    error, digits = torch.rand(
        (2, *tensor.shape), generator=generator, device=tensor.device, dtype=torch.float64
    )
    return tensor * (1 + unit * (2 * error - 1) * torch.exp2(-digits))


def check_memory(plain: Trainer, batch: Batch, config: Config, device: torch.device) -> int:
    """Check that a step in fp64 is possible on the device.

    Args:
        plain: A trainer in strict fp32, which takes a forward pass.
        batch: A micro-batch of the step.
        config: The options of the run.

    Returns:
        About how many bytes the step needs.

    Raises:
        UserError: The device has no fp64, or too little free memory.
    """
    if not has_float64(device):
        raise UserError(f"device={device} has no fp64, with which both steps are compared; use device=cpu")
    # Every tensor of the step in fp32 is twice as large. Weights before and after the step are kept, too.
    memory = estimate_memory(trace_forward(plain, batch), config)
    need = 2 * (memory.total + 2 * memory.weights)
    free = available_bytes(device)
    if need > free:
        raise out_of_memory(need, free, device)
    return need


def out_of_memory(need: int, free: int, device: torch.device) -> UserError:
    """Return the error of a step in fp64 that does not fit into memory."""
    return UserError(
        f"the step in fp64, the reference of both steps, needs about {need / GB:,.2g} GB of memory, but "
        f"{free / GB:,.2g} GB are free on {device}; use a smaller batch_size, or a machine with more memory"
    )


def available_bytes(device: torch.device) -> int:
    """Return how much memory this process can still allocate on the device."""
    if is_cuda(device):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    free = int(psutil.virtual_memory().available)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # `ulimit -v`, which batch systems set
    if limit == resource.RLIM_INFINITY:
        return free
    return min(free, limit - psutil.Process().memory_info().vms)
