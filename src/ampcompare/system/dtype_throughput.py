"""The throughput of a training convolution in each dtype, measured in about a second.

Throughput differs between machines by a factor of thousands. So the work starts tiny and grows tenfold as
long as it takes little time.

A CPU is measured on one core. With all cores each convolution waits for the slowest thread, and on a busy
machine this wait hides everything else (100 ms for a convolution of 0.1 ms on two busy cores).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.system.device import is_cuda, is_host, wait_for

DTYPES = ("float32", "float16", "bfloat16")
# Images, channels in and out, height and width of a 3x3 convolution. Each size has about ten times the work
# of the previous one, from 3.5 MFLOP to 460 GFLOP.
SIZES = ((1, 32, 8), (2, 64, 8), (8, 64, 16), (8, 64, 32), (32, 128, 32), (128, 256, 32))
MAX_CALL_SECONDS = 0.03  # a call that takes longer is the last one
REPEATS = 3  # of each size; the fastest counts, because other work on the machine only adds time


def relative_rate(rates: Mapping[str, float], dtype: str) -> float:
    """Return the rate of a dtype as a multiple of fp32's; 0 if the dtype does not run."""
    return rates.get(dtype, 0.0) / rates["float32"]


def measure_throughput(device: torch.device) -> dict[str, float]:
    """Return GFLOP/s of a training convolution (forward and backward) for each dtype that runs.

    Waits for the device. Global random numbers and the number of threads stay as they are.

    Args:
        device: A CPU is measured on one core.
    """
    with _on_one_core(device):
        _convolution(device, "float32", SIZES[0])()  # loads the library and starts its threads
        rates = {dtype: _rate(device, dtype) for dtype in DTYPES}
    return {dtype: rate for dtype, rate in rates.items() if rate}


@contextmanager
def _on_one_core(device: torch.device) -> Iterator[None]:
    """Let a CPU compute with one thread while the body runs."""
    threads = torch.get_num_threads()
    if is_host(device):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rate(device: torch.device, dtype: str) -> float:
    """Return GFLOP/s at the best of the sizes that take little time; 0 if the dtype does not run."""
    rate = last_seconds = 0.0
    for size in SIZES:
        try:
            call = _convolution(device, dtype, size)
            call()  # prepares the kernel
            seconds = min(call() for _ in range(REPEATS))
        except RuntimeError:  # no such kernel, or no memory for this size
            break
        rate = max(rate, _gflop(size) / max(seconds, 1e-9))
        # On a busy machine the time of a tiny convolution may be that of its call. So it must grow with the
        # work.
        if seconds > MAX_CALL_SECONDS and seconds > 2 * last_seconds > 0:
            break
        last_seconds = seconds
    return rate


def _convolution(device: torch.device, dtype: str, size: tuple[int, int, int]) -> Callable[[], float]:
    """Return a function that runs one convolution forward and backward and returns its seconds.

    The layout is the default of a run.
    """
    images, channels, side = size
    layout = torch.channels_last if is_cuda(device) else torch.contiguous_format
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=random, device=device)
        return values.to(getattr(torch, dtype), memory_format=layout).requires_grad_()

    x = normal(images, channels, side, side)
    weight = normal(channels, channels, 3, 3)

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
    """Return the GFLOP of forward and backward: three products, two operations for each term."""
    images, channels, side = size
    return 6 * images * side**2 * channels**2 * 9 / 1e9
