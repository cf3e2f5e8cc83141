"""The error of tensors relative to a reference, and how an error is written."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampcompare.precision import get_backend
from ampcompare.precision.casting import view_as_real

TF32_ROUNDOFF = 2.0**-11


@dataclass(frozen=True)
class RelativeError:
    """The error of tensors relative to their reference.

    Attributes:
        size: Norm of the difference divided by the norm of the reference. Infinite where the tensors are not
            finite and the reference is.
        flushed: Fraction of elements that are 0 and should not be.
    """

    size: float
    flushed: float


def relative_error(
    tensors: Sequence[Tensor], reference: Sequence[Tensor], *, scale: float = 1.0, floor: float = 0.0
) -> RelativeError | None:
    """Return the error of several tensors, taken together; None where there is nothing to compare.

    Elements where the reference is not finite, and tensors of another shape than their reference, do not
    count. Waits for the device.

    Args:
        reference: What they are compared with, in the same order.
        scale: Factor by which the tensors are larger than the reference, such as the loss scale.
        floor: A smaller norm of the reference counts as this one. Where a gradient cancels out, rounding
            errors have no relation to its size.
    """
    alike = [pair for pair in zip(tensors, reference, strict=False) if pair[0].shape == pair[1].shape]
    if not alike:
        return None
    values = torch.cat([flat_in_fp64(tensor) for tensor, _ in alike])
    expected = torch.cat([flat_in_fp64(tensor) for _, tensor in alike])
    counts = expected.isfinite()
    values = values[counts]
    expected = expected[counts] * scale
    if not len(expected):
        return None
    flushed = float(((values == 0) & (expected != 0)).double().mean())
    if not bool(values.isfinite().all()):
        return RelativeError(math.inf, flushed)
    error = float((values - expected).norm())
    size = max(float(expected.norm()), floor)
    return RelativeError(error / size if size else float(error > 0), flushed)


def flat_in_fp64(tensor: Tensor) -> Tensor:
    """Return the elements in fp64 on the CPU, in one dimension; a complex number is two elements."""
    tensor = tensor.detach().cpu()  # sync: a diagnostic step, not a training loop
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return real_numbers(tensor).double().flatten()


def real_numbers(tensor: Tensor) -> Tensor:
    """Return a complex tensor as real numbers, [..., 2], and any other as it is; without a gradient."""
    return view_as_real(tensor.detach().resolve_conj())


def worst(errors: Iterable[RelativeError | None]) -> RelativeError | None:
    """Return the largest error, None without any."""
    return max((e for e in errors if e is not None), key=lambda error: error.size, default=None)


def unit_roundoff(backend: str) -> float:
    """Return the relative error of one rounding in the dtype of a backend."""
    metadata = get_backend(backend)
    if metadata.uses_tf32:
        return TF32_ROUNDOFF
    return float(torch.finfo(getattr(torch, metadata.dtype)).eps) / 2


def format_error(value: float) -> str:
    """Return an error as text: `4.1e-4`, `0` or `inf/nan`.

    >>> format_error(0.00041)
    '4.1e-4'
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "inf/nan"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if int(power) else digits
