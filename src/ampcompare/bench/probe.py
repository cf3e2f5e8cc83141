"""What a training convolution costs here in each type: about a second of measuring, whatever the machine.

A type that a processor has no kernel for is not a little slower but a hundred times (fp16 on an Intel Xeon
with AMX: 0.8 GFLOP/s of fp32's 150, PyTorch 2.14). So the work begins tiny and grows only as long as what it
will take is known from the size before; a hopeless type is told after its first convolutions.

A CPU is measured on one core. With all of them each convolution waits for its slowest thread, and where the
machine has other work too that wait is all one sees (100 ms for a convolution of 0.1 ms, two busy cores).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.machine.device import is_cuda, wait_for

TYPES = ("float32", "float16", "bfloat16")
# Images, channels in and out, height and width of a 3x3 convolution, each some ten times the work of the one
# before it, from 3.5 MFLOP to 460 GFLOP.
SIZES = ((1, 32, 8), (2, 64, 8), (8, 64, 16), (8, 64, 32), (32, 128, 32), (128, 256, 32))
SECONDS_PER_CALL = (
    0.15  # what the next size may be expected to take at most, a call; the second may take more
)
SECONDS_PER_TYPE = 0.4  # after which no size follows; a process's first convolution takes as long beside
HOPELESS = 0.05  # of fp32's rate
REPEATS = 3  # of each size; the fastest counts, as what else runs on the machine only adds


@dataclass(frozen=True)
class Rates:
    """GFLOP/s of a training convolution (forward and backward) by type, on a CPU those of one core.

    A type that does not run is missing.

    >>> rates = Rates({"float32": 60.0, "bfloat16": 120.0})
    >>> rates.rate("bfloat16"), rates.relative("bfloat16"), rates.relative("float16")
    (120.0, 2.0, 0.0)
    """

    by_type: Mapping[str, float]

    def rate(self, dtype: str) -> float:
        """GFLOP/s; 0 where the type does not run here."""
        return self.by_type.get(dtype, 0.0)

    def relative(self, dtype: str) -> float:
        """The rate as a multiple of fp32's; 0 where either does not run."""
        base = self.rate("float32")
        return self.rate(dtype) / base if base else 0.0


def half_type(rates: Rates) -> str:
    """The half type to train in here: the one of the two that is faster than fp32, fp16 where both are, as on
    most GPUs. Where neither is, fp16, with a loss scale to be seen, if it does not take twenty times as long.

    >>> half_type(Rates({"float32": 150.0, "float16": 0.8, "bfloat16": 300.0}))
    'bfloat16'
    >>> half_type(Rates({"float32": 55.0, "float16": 4.3, "bfloat16": 20.0}))
    'float16'
    """
    half, brain = rates.relative("float16"), rates.relative("bfloat16")
    return "bfloat16" if half < 1 <= brain or half < HOPELESS else "float16"


def probe(device: torch.device, dtypes: Sequence[str] = TYPES, *, channels_last: bool | None = None) -> Rates:
    """Measure the types (fp32 too, as the others go by it): on a CPU one core of it.

    `channels_last` is the layout of images and weights; None: the one that a run has by default. Touches no
    global random numbers, and leaves PyTorch as many threads as it had. Waits for the device.
    """
    last = is_cuda(device) if channels_last is None else channels_last
    wanted = tuple(dict.fromkeys(("float32", *dtypes)))
    if device.type != "cpu":
        return _measure(device, wanted, last)
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1) as other:  # the number is a thread's own: this one keeps its team
        try:
            other.submit(torch.set_num_threads, 1).result()
            return other.submit(_measure, device, wanted, last).result()
        finally:
            other.submit(torch.set_num_threads, threads).result()  # threads to come take it from here


def _measure(device: torch.device, dtypes: Sequence[str], last: bool) -> Rates:
    _convolution(device, "float32", SIZES[0], last)()  # what the first use of library and threads costs
    return Rates({dtype: rate for dtype in dtypes if (rate := _rate(device, dtype, last))})


def _rate(device: torch.device, dtype: str, last: bool) -> float:
    """GFLOP/s at the best of the sizes that take little time; 0 where the type does not run."""
    spent, rate = 0.0, 0.0
    known: list[tuple[float, float]] = []  # work and seconds of the sizes so far
    for size in SIZES:
        work = _gflop(size)
        if spent > SECONDS_PER_TYPE or (len(known) > 1 and _expected(work, *known[-2:]) > SECONDS_PER_CALL):
            break
        try:
            call = _convolution(device, dtype, size, last)
            first = call()  # prepares the kernel
            times = [call()]
            while len(times) < REPEATS and sum(times) < SECONDS_PER_CALL:
                times.append(call())
        except RuntimeError:  # no such kernel, or no memory for this size
            break
        spent += first + sum(times)
        known.append((work, min(times)))
        rate = max(rate, work / max(min(times), 1e-9))
    return rate


def _expected(work: float, before: tuple[float, float], last: tuple[float, float]) -> float:
    """Seconds of so much work, by the line through two sizes: a tiny convolution's time is that of a call."""
    per_work = (last[1] - before[1]) / (last[0] - before[0])
    return last[1] + max(per_work, 0.0) * (work - last[0])


def _convolution(
    device: torch.device, dtype: str, size: tuple[int, int, int], last: bool
) -> Callable[[], float]:
    """Forward and backward of one convolution; each call gives the seconds that it took."""
    images, channels, side = size
    layout = torch.channels_last if last else torch.contiguous_format
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=random, device=device)
        return values.to(getattr(torch, dtype), memory_format=layout).requires_grad_()

    x, weight = normal(images, channels, side, side), normal(channels, channels, 3, 3)

    def call() -> float:
        wait_for(device)  # sync: the clock starts on an idle device
        start = time.perf_counter()
        with torch.enable_grad():
            y = F.conv2d(x, weight, padding=1)
            torch.autograd.grad(y, (x, weight), y.detach())
        wait_for(device)  # sync: the clock stops when the work is done
        return time.perf_counter() - start

    return call


def _gflop(size: tuple[int, int, int]) -> float:
    """Of forward and backward: three products of the same size, two operations for each of a product's."""
    images, channels, side = size
    return 6 * images * side**2 * channels**2 * 9 / 1e9
