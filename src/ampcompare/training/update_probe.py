"""What an update does to the weights: its gradients before, the updates that rounding swallows after.

Our trainer and the Recorder measure by the same `UpdateProbe`. It changes no weight and no gradient, and it
waits for the device only to read sparse gradients.

Gradients spread over some forty binary orders of magnitude. fp16 holds those from 2**-24 to 2**16. The loss
scale decides which part of the spread falls into that range.

A weight in bf16 has 8 significant bits, in fp16 11. An update below half a unit in the last place of its
weight (2**-9 to 2**-8 of the weight in bf16, 2**-12 to 2**-11 in fp16) leaves the weight unchanged, at every
step again. For that reason Micikevicius et al. 2018, "Mixed Precision Training", keep fp32 master weights.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES, stored_values
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

# The stride of the sample, and for each tensor: the weights, their sample before the step, and which of the
# sampled weights have a gradient.
WeightSample = tuple[int, list[tuple[Tensor, Tensor, Tensor]]]


class UpdateProbe:
    """Measures the updates of one optimizer: its gradients before an update, lost updates after it.

    Args:
        groups: What the optimizer updates, by layer group.
        norm_key: The metric of the gradients' norm. It tells where in a step they are measured: before our
            trainer clips them, or where the optimizer of a user's loop reads them.

    Attributes:
        parameters: What the optimizer updates, in the order of the groups.
    """

    def __init__(self, groups: Mapping[str, Sequence[Tensor]], norm_key: str) -> None:
        self.groups = groups
        self.parameters = [parameter for group in groups.values() for parameter in group]
        self._norm_key = norm_key
        self._weights: dict[str, WeightSample] = {}

    def measure_norm(self) -> dict[str, Tensor]:
        """Return the norm of the gradients by its metric, 0-d fp32 on the device."""
        return {self._norm_key: gradient_norm([p.grad for p in self.parameters if p.grad is not None])}

    @torch.no_grad()
    def before_update(self, scale: Tensor, *, grad_scale: Tensor | None = None) -> dict[str, Tensor]:
        """Measure the gradients, and keep a sample of 16-bit weights to compare after the update.

        Args:
            scale: The loss scale of the step, 0-d.
            grad_scale: What the gradients are still multiplied by, 0-d; None: they are unscaled.

        Returns:
            Norm and fractions by metric key, on the device; empty if no parameter has a gradient.
        """
        gradients: dict[str, list[Tensor]] = {}
        for name, group in self.groups.items():
            of_group = [parameter.grad for parameter in group if parameter.grad is not None]
            if grad_scale is not None:
                of_group = [gradient.float() / grad_scale.to(gradient.device) for gradient in of_group]
            if of_group:
                gradients[name] = of_group
        self._weights = {name: sample_weights(group) for name, group in self.groups.items()}
        if not gradients:
            return {}
        norm = gradient_norm([gradient for group in gradients.values() for gradient in group])
        return {self._norm_key: norm} | measure_gradients(gradients, scale)

    @torch.no_grad()
    def after_update(self, skipped: Tensor | None) -> dict[str, Tensor]:
        """Return the lost updates since `before_update` by metric key.

        Args:
            skipped: Above 0 if the step was skipped, 0-d; None if it cannot have been.
        """
        weights, self._weights = self._weights, {}
        if not any(group for _, group in weights.values()):
            return {}
        if skipped is None:
            skipped = torch.zeros((), device=self.parameters[0].device)
        return lost_updates(weights, skipped > 0)


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
    for suffix, row in _with_total(counts).items():
        for key, count in zip(TOTALS, row, strict=False):
            base = row[3] + row[4] if key == metrics.ZEROS else row[4]
            values[f"{key}{suffix}"] = count.to(wide) / base.clamp(min=1)
    values[metrics.EXPONENTS] = histogram
    return values


def exponent_histogram(counts: list[float]) -> metrics.Histogram:
    """Return the histogram of `measure_gradients` with the edges of its bins, exponents of two."""
    edges = [float(FIRST_EXPONENT + i) for i in range(len(counts) + 1)]
    return metrics.Histogram([int(n) for n in counts], edges)


@torch.no_grad()
def sample_weights(parameters: Sequence[Tensor]) -> WeightSample:
    """Return a sample of the 16-bit weights that have a gradient, before a step.

    Up to `SAMPLE` elements all are taken, beyond that every n-th.
    """
    weights = [(p, p.grad) for p in parameters if p.grad is not None and p.dtype in SIXTEEN_BIT_DTYPES]
    stride = even_stride(sum(p.numel() for p, _ in weights) // SAMPLE)
    return stride, [(p, _sample(p, stride).clone(), _sample(g, stride) != 0) for p, g in weights]


@torch.no_grad()
def lost_updates(groups: Mapping[str, WeightSample], skipped: Tensor) -> dict[str, Tensor]:
    """Return the fraction of weights with a gradient that the optimizer left unchanged.

    Does not wait for the device.

    Args:
        groups: The weights before the step by layer group, as `sample_weights` returns them.
        skipped: Whether the step was skipped, 0-d bool.

    Returns:
        `update/lost_fraction` by metric key, for each layer group and over all, 0-d on the device. A group
        counts by the number of its elements. The value is nan where no weight has a gradient, and for a
        skipped step.
    """
    counts: dict[str, Tensor] = {}
    for name, (stride, group) in groups.items():
        if group:
            lost = [(had & (_sample(p, stride) == before)).sum() for p, before, had in group]
            moved = [had.sum() for _, _, had in group]
            counts[name] = stride * torch.stack([torch.stack(lost).sum(), torch.stack(moved).sum()])
    if not counts:
        return {}
    fractions = {}
    wide = widest_float(skipped.device)
    for suffix, row in _with_total(counts).items():
        lost_count, moved_count = row.to(wide).unbind()
        fraction = torch.where(skipped, torch.nan, lost_count / moved_count)
        fractions[f"{metrics.LOST_UPDATES}{suffix}"] = fraction
    return fractions


def _with_total(counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of all counts by "", and those of each group by `/GROUP`, the ends of metric keys."""
    of_groups = {f"/{name}" if name else "": count for name, count in counts.items()}
    return {"": torch.stack([*counts.values()]).sum(0), **of_groups}


def _sample(x: Tensor, stride: int) -> Tensor:
    # Not kept between calls: for a tensor in another order of memory, such as channels_last, it is a copy.
    return x.detach().to_dense().flatten()[::stride]


def even_stride(times: int) -> int:
    """Return the stride of an even sample from `times` as many elements too many.

    It is not a multiple of 2 or 3, since numbers of channels and sides of kernels are.
    """
    stride = 1 + times
    while stride > 1 and (stride % 2 == 0 or stride % 3 == 0):
        stride += 1
    return stride
