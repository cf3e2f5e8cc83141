"""What a training convolution costs here in each type: about a second of measuring, whatever the machine.

A type that a processor has no kernel for is not a little slower but a hundred times (fp16 on an Intel Xeon
with AMX: 0.8 GFLOP/s of fp32's 150, PyTorch 2.14). So the work begins tiny and grows only as long as what it
will take is known from the size before; a hopeless type is told after its first convolutions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.machine.device import is_cuda, wait_for

TYPES = ("float32", "float16", "bfloat16")
# Images, channels in and out, height and width of a 3x3 convolution, each some ten times the work of the one
# before it, from 3.5 MFLOP to 460 GFLOP.
SIZES = ((1, 32, 8), (2, 64, 8), (8, 64, 16), (8, 64, 32), (32, 128, 32), (128, 256, 32))
SECONDS_PER_TYPE = 0.25  # measured; the first convolution of a process takes up to half a second beside
REPEATS = 3  # of each size; the fastest counts, as what else runs on the machine only adds


@dataclass(frozen=True)
class Rates:
    """GFLOP/s of a training convolution (forward and backward) by type; a type that does not run is missing.

    >>> rates = Rates({"float32": 60.0, "bfloat16": 120.0})
    >>> rates.rate("bfloat16"), rates.relative("bfloat16"), rates.relative("float16")
    (120.0, 2.0, 0.0)
    """

    by_type: Mapping[str, float]

    def rate(self, dtype: str) -> float:
        """GFLOP/s; 0 where the type does not run here."""
        return self.by_type.get(dtype, 0.0)

    def relative(self, dtype: str) -> float:
        """The rate as a multiple of fp32's."""
        return self.rate(dtype) / self.by_type["float32"]

    def fastest(self, dtypes: Sequence[str]) -> str:
        """The fastest of the types, the first of those that are level."""
        return max(dtypes, key=self.rate)


def probe(device: torch.device, dtypes: Sequence[str] = TYPES, *, channels_last: bool | None = None) -> Rates:
    """Measure the types (fp32 too, as the others go by it) with as many threads as PyTorch has now.

    `channels_last` is the layout of images and weights; None: the one that a run has by default. Touches no
    global random numbers. Waits for the device.
    """
    last = is_cuda(device) if channels_last is None else channels_last
    wanted = dict.fromkeys(("float32", *dtypes))
    _seconds(device, "float32", SIZES[0], last)  # what the first use of library and threads costs
    rates = {dtype: rate for dtype in wanted if (rate := _rate(device, dtype, last))}
    return Rates(rates)


def _rate(device: torch.device, dtype: str, last: bool) -> float:
    """GFLOP/s at the largest size that is known to take little time; 0 where the type does not run."""
    left, rate = SECONDS_PER_TYPE, 0.0
    for size in SIZES:
        expected = _gflop(size) / rate if rate else 0.0
        if expected > left / 2:  # a first call, which prepares the kernel, and one that counts
            break
        try:
            times = [_seconds(device, dtype, size, last)]
            # What comes after the first is not kept from it, or a type with one slow step had no figure.
            while len(times) < REPEATS + 1 and (len(times) < 2 or sum(times) + times[-1] < left):
                times.append(_seconds(device, dtype, size, last))
        except RuntimeError:  # no such kernel, or no memory for this size
            break
        left -= sum(times)
        rate = _gflop(size) / max(min(times[1:]), 1e-9)
    return rate


def _seconds(device: torch.device, dtype: str, size: tuple[int, int, int], last: bool) -> float:
    """How long forward and backward of one convolution take."""
    images, channels, side = size
    layout = torch.channels_last if last else torch.contiguous_format
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=random)
        return values.to(device, getattr(torch, dtype), memory_format=layout).requires_grad_()

    x, weight = normal(images, channels, side, side), normal(channels, channels, 3, 3)
    wait_for(device)  # sync: the clock starts behind the copies
    start = time.perf_counter()
    with torch.enable_grad():
        y = F.conv2d(x, weight, padding=1)
        torch.autograd.grad(y, (x, weight), y.detach())
    wait_for(device)  # sync: the clock stops when the work is done
    return time.perf_counter() - start


def _gflop(size: tuple[int, int, int]) -> float:
    """Of forward and backward: three products of the same size, two operations for each of a product's."""
    images, channels, side = size
    return 6 * images * side**2 * channels**2 * 9 / 1e9
