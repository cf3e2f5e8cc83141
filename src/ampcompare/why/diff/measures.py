"""How far a tensor is from the truth: relative, in ulps, by direction, and what its type could not hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """The error of a tensor, or of several as if they were one, against fp64.

    `relative` is the norm of the difference over that of the truth; None where there are values that are not
    finite. `ulps` is the median over the elements of the error in units in the last place of `type`, at the
    true value; `ulps_most` the largest. `cosine` is None where either is all zeros. The others are shares of
    the elements: `flushed` those that are zero and should be a number below the smallest normal one,
    `saturated` those at the largest finite one, `infinite` and `nan`.
    """

    type: str
    relative: float | None
    ulps: float | None
    ulps_most: float | None
    cosine: float | None
    flushed: float
    saturated: float
    infinite: float
    nan: float

    @property
    def is_finite(self) -> bool:
        return self.infinite == 0 and self.nan == 0

    @property
    def size(self) -> float:
        """The relative error as something to sort by: what is not finite is the worst."""
        return math.inf if self.relative is None else self.relative


def measure(
    found: Sequence[Tensor],
    truth: Sequence[Tensor],
    dtype: torch.dtype,
    *,
    scale: float = 1.0,
    flushed_below: float | None = None,
) -> Measure | None:
    """The error of tensors that were computed in `dtype`, `scale` times as large as the truth.

    `flushed_below` counts as flushed what should be smaller, by default the smallest normal number. Values
    that are not finite in the truth are left out. None for tensors of other shapes, and of none.
    """
    pairs = list(zip(found, truth, strict=False))
    if not pairs or len(found) != len(truth) or any(a.shape != b.shape for a, b in pairs):
        return None
    # Sorted out on the host, in float64 whatever the device. sync: a look waits wherever it looks
    values = torch.cat([a.detach().cpu().double().flatten() for a, _ in pairs])
    wanted = torch.cat([b.detach().cpu().double().flatten() for _, b in pairs]) * scale
    largest = torch.cat([_at_largest(a).cpu().flatten() for a, _ in pairs])
    known = wanted.isfinite()
    values, wanted, largest = values[known], wanted[known], largest[known]
    if not len(values):
        return None
    info = torch.finfo(dtype)
    bound = info.tiny if flushed_below is None else flushed_below
    lost = (values == 0) & (wanted != 0) & (wanted.abs() < bound)
    finite = bool(values.isfinite().all())
    error = (values - wanted).abs()
    ulps = error / _spacing(wanted, info)
    return Measure(
        str(dtype).removeprefix("torch."),
        _ratio(float(error.norm()), float(wanted.norm())) if finite else None,
        float(ulps.median()) if finite else None,
        float(ulps.max()) if finite else None,
        _cosine(values, wanted) if finite else None,
        _share(lost),
        _share(largest),
        _share(values.isinf()),
        _share(values.isnan()),
    )


def _spacing(wanted: Tensor, info: torch.finfo) -> Tensor:
    """The unit in the last place of a type at each value, that of the smallest normal number below it."""
    exponent = torch.frexp(wanted.abs().clamp(min=info.tiny))[1]
    return torch.ldexp(torch.full_like(wanted, info.eps), exponent - 1)


def _ratio(error: float, size: float) -> float:
    """`error / size`; of a truth that is all zeros 0 if that was found, and 1 for anything else."""
    if size == 0:
        return 0.0 if error == 0 else 1.0
    return error / size


def _cosine(values: Tensor, wanted: Tensor) -> float | None:
    sizes = float(values.norm()) * float(wanted.norm())
    return max(-1.0, min(1.0, float(values @ wanted) / sizes)) if sizes else None


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _at_largest(tensor: Tensor) -> Tensor:
    return tensor.detach().abs() == torch.finfo(tensor.dtype).max
