"""What fp16 does to gradients: the fraction flushed to zero, with and without the loss scale.

Gradients spread over some forty binary orders of magnitude. fp16 holds those from 2**-24 to 2**16. The loss
scale decides which part of the spread falls into that range.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.precision.casting import stored_values
from ampcompare.system.device import widest_float

# The smallest fp16 number is 2**-24; half of that and less rounds to zero (round to nearest, ties to even).
FLUSHED_TO_ZERO = 2.0**-25
# The largest is 65504; from half a unit in the last place above it on, numbers round to infinity.
ROUNDED_TO_INF = 65520.0
# Bins of the histogram: |gradient| in [2**e, 2**(e+1)); the first and last take what lies beyond.
FIRST_EXPONENT, LAST_EXPONENT = -48, 16
BINS = LAST_EXPONENT - FIRST_EXPONENT + 1

# From a layer group with more elements every n-th is taken: all 23.5 M of a ResNet50 took 0.75 s on two CPU
# cores, the time of several steps.
SAMPLE = 500_000

TOTALS = (metrics.UNDERFLOW, metrics.UNDERFLOW_UNSCALED, metrics.OVERFLOW, metrics.ZEROS)


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm over all gradients, 0-d fp32 on the device."""
    real = map(stored_values, gradients)
    return torch.nn.utils.get_total_norm([g.float() if g.dtype != torch.float32 else g for g in real])


@torch.no_grad()
def measure_gradients(groups: Mapping[str, Sequence[Tensor]], scale: Tensor) -> dict[str, Tensor]:
    """Return the fractions of the true gradients that fp16 cannot hold, and their exponents.

    Does not wait for the device, except for sparse gradients, of which the stored values are measured. From
    a group with more than `SAMPLE` elements an even sample is taken; totals weight groups by the size of the
    sample.

    Returns:
        Values on the device by metric key, over all (`NAME`) and for each group (`NAME/GROUP`). Fractions of
        the non-zero elements: `grad/underflow_fraction` would be flushed to zero at the scale,
        `grad/underflow_fraction_unscaled` at scale 1, and `grad/overflow_fraction` would become infinite at
        the scale (inf and nan count). Fraction of all elements: `grad/zero_fraction` is zero, where a
        backward in fp16 has flushed gradients. `grad/exponents` is a histogram [BINS] of the binary exponents
        of the non-zero elements.
    """
    counts: dict[str, Tensor] = {}
    histogram = torch.zeros(BINS, dtype=torch.int64, device=scale.device)
    for name, gradients in groups.items():
        real = [stored_values(g.detach()) for g in gradients]
        stride = 1 + sum(g.numel() for g in real) // SAMPLE
        size = torch.cat([g.to(scale.device).flatten()[::stride].float().abs() for g in real])
        scaled = size * scale
        nonzero = size != 0  # true for nan
        counts[name] = torch.stack(
            [
                (nonzero & (scaled <= FLUSHED_TO_ZERO)).sum(),
                (nonzero & (size <= FLUSHED_TO_ZERO)).sum(),
                (~(scaled < ROUNDED_TO_INF)).sum(),
                size.numel() - nonzero.sum(),
                nonzero.sum(),
            ]
        )
        exponents = torch.frexp(size)[1] - 1 - FIRST_EXPONENT  # frexp's mantissa is in [0.5, 1)
        histogram.scatter_add_(0, exponents.clamp(0, BINS - 1).long(), (nonzero & size.isfinite()).long())
    values = {}
    wide = widest_float(scale.device)
    for name, row in [("", torch.stack(list(counts.values())).sum(0)), *counts.items()]:
        suffix = f"/{name}" if name else ""
        for key, count in zip(TOTALS, row, strict=False):
            base = row[3] + row[4] if key == metrics.ZEROS else row[4]
            values[f"{key}{suffix}"] = count.to(wide) / base.clamp(min=1)
    values[metrics.EXPONENTS] = histogram
    return values


def exponent_histogram(counts: list[float]) -> metrics.Histogram:
    """Return the histogram of `measure_gradients` with the edges of its bins, exponents of two."""
    edges = [float(FIRST_EXPONENT + i) for i in range(len(counts) + 1)]
    return metrics.Histogram([int(n) for n in counts], edges)
