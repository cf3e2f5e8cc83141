"""The device of a run: everything that depends on its kind, its memory, and its numerics switches.

Code elsewhere does not ask what kind a device is; a new kind of device is added here.
"""

import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.errors import UserError

MIB = 2**20
TF32_CAPABILITY = (8, 0)  # the lowest with TF32. Source: NVIDIA's CUDA C++ Programming Guide
TimingEvent = torch.cuda.Event | float


def resolve_device(name: str) -> torch.device:
    """Return the device that the option `device` names, and make it the current one.

    Raises:
        UserError: The device does not exist.
    """
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] if torch.backends.mps.is_available() else []
    present = [*(f"cuda:{i}" for i in range(cuda)), *mps, "cpu"]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise UserError(
            f"device={name!r}: this device does not exist here; PyTorch sees {', '.join(present)}; "
            "use one of these or device=auto"
        )
    device = torch.device(wanted)
    if is_cuda(device):
        torch.cuda.set_device(device)  # streams, events and graphs are those of the current device
    return device


def is_cuda(device: torch.device) -> bool:
    """Return whether the device is a GPU under PyTorch's name `cuda`.

    Such a device has NCCL, CUDA graphs, fused optimizers and asynchronous copies, and prefers channels_last.
    """
    return device.type == "cuda"


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Return the CUDA compute capability, such as (9, 0) for an H100; None without an NVIDIA GPU."""
    if not is_cuda(device) or torch.version.hip is not None or not torch.cuda.is_available():
        return None  # PyTorch calls AMD's GPUs (HIP) cuda, too
    return torch.cuda.get_device_capability(device)


def has_tf32(device: torch.device) -> bool:
    """Return whether the device has TF32: an NVIDIA GPU of compute capability 8.0 (Ampere) or higher."""
    return (compute_capability(device) or (0, 0)) >= TF32_CAPABILITY


def check_tf32(device: torch.device, backend: str) -> None:
    """Raise UserError if the backend uses TF32 and the device does not have it."""
    if has_tf32(device):
        return
    capability = compute_capability(device)
    if capability is None:
        raise UserError(
            f"backend={backend!r}: needs an NVIDIA GPU of compute capability 8.0 or higher, "
            f"but the device is {device}; use backend=none"
        )
    major, minor = capability
    raise UserError(
        f"backend={backend!r}: needs an NVIDIA GPU of compute capability 8.0 or higher, "
        f"but {torch.cuda.get_device_name(device)} has {major}.{minor}; use backend=none"
    )


def autocast_name(device: torch.device) -> str:
    """Return the name by which `torch.autocast` knows the device."""
    return device.type


def has_float64(device: torch.device) -> bool:
    """Return whether tensors on the device may be float64."""
    return device.type != "mps"


def widest_float(device: torch.device) -> torch.dtype:
    """Return the dtype for sums and counts on the device.

    Counts are exact in float32 too, up to 16.7 million.
    """
    return torch.float64 if has_float64(device) else torch.float32


def is_host(device: torch.device) -> bool:
    """Return whether the host can read tensors of the device without waiting."""
    return device.type == "cpu"


def start_copy(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start to copy a tensor to the host.

    Returns:
        The tensor on the host, and the event to wait for before it is read; None: it can be read now.
    """
    if not is_cuda(values.device):
        return values, None
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(values.device))
    return pinned, arrived


def event_recorder(device: torch.device) -> Callable[[], TimingEvent]:
    """Return a function that records an event in the device's queue of work.

    The function is looked up once because it is called twice a step. On a GPU an event is a CUDA event,
    elsewhere the time in seconds.
    """

    def event() -> TimingEvent:
        recorded = torch.cuda.Event(enable_timing=True)
        recorded.record(torch.cuda.current_stream(device))
        return recorded

    def waited() -> TimingEvent:
        torch.mps.synchronize()  # sync: MPS steps are asynchronous and its events give no pairwise times
        return time.perf_counter()

    if is_cuda(device):
        return event
    return time.perf_counter if is_host(device) else waited


def elapsed_ms(began: TimingEvent, ended: TimingEvent) -> float:
    """Return the milliseconds between two events that the device has reached."""
    if isinstance(began, float):
        return (ended - began) * 1e3  # type: ignore[operator]
    return began.elapsed_time(ended)  # type: ignore[arg-type]


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all queued work."""
    if is_cuda(device):
        torch.cuda.synchronize(device)  # sync: what this is for
    elif device.type == "mps":
        torch.mps.synchronize()  # sync: what this is for


def reset_peak(device: torch.device) -> None:
    """Reset the peak of allocated memory, on a device that has one.

    Do not call it after a step was captured. PyTorch's allocator counts the tensors of a captured step only
    during the capture (a launch allocates nothing), so the peak of the capture is that of the step. Source:
    c10/cuda/CUDACachingAllocator.cpp (`alloc_found_block`, `free`).
    """
    if is_cuda(device):
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    """Return the peak memory in MiB, or None on MPS, which only reports current memory.

    On a GPU it is the memory allocated for tensors and workspaces, on a CPU the resident set of the process.
    """
    if is_cuda(device):
        return torch.cuda.max_memory_allocated(device) / MIB
    if is_host(device):
        return process_peak_mib()
    return None


def reserved_mib(device: torch.device) -> float | None:
    """Return the MiB that PyTorch reserved on a GPU at most, on MPS now; None on a CPU."""
    if is_cuda(device):
        return torch.cuda.max_memory_reserved(device) / MIB
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / MIB
    return None


def nvml_name(device: torch.device) -> str | None:
    """Return the UUID by which NVML knows the device; None if it is not an NVIDIA GPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if is_cuda(device) else None


def seed_process(seed: int, rank: int = 0) -> None:
    """Seed the generators of Python, NumPy and PyTorch (all devices) in this process.

    Args:
        seed: The seed of the run.
        rank: The rank of the process. Each has its own seed, so that dropout differs between processes; that
            of rank 0 is `seed` itself.
    """
    if rank:
        mixed = np.random.SeedSequence([seed % 2**64, rank]).generate_state(1, np.uint64)[0]
        seed = int(mixed) % 2**63
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all random number generators, as tensors and plain values.

    The generator of an MPS device is not included.
    """
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if is_cuda(device) else None,
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), *rest),
    }


def set_random_states(device: torch.device, states: Mapping[str, Any]) -> None:
    """Restore what `random_states` returned, in this process or another."""
    torch.set_rng_state(states["torch"])
    if is_cuda(device):
        torch.cuda.set_rng_state(states["cuda"], device)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])


def set_numerics(*, tf32: bool, cudnn_benchmark: bool, deterministic: bool) -> None:
    """Set the switches of PyTorch for TF32, cuDNN and determinism.

    By default PyTorch leaves TF32 on for cuDNN convolutions, so "fp32" is not fp32 until it is switched off.
    """
    allow_tf32(tf32)
    # Trying algorithms may pick another one each time, so determinism rules it out.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:  # cuBLAS asks for this before its first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


def allow_tf32(on: bool) -> None:
    """Allow or forbid TF32 in fp32 matrix products and convolutions.

    PyTorch (2.11 and 2.14) has two sets of switches. If the old ones are read, as Inductor does, and the new
    ones differ, PyTorch raises. The old ones are set first because setting them writes into the new ones.
    """
    precision = "tf32" if on else "ieee"
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]  # not "tf32"
    torch.backends.cudnn.fp32_precision = precision  # Inductor asks this of convolutions
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]


@contextmanager
def tf32_as(on: bool) -> Iterator[None]:
    """Allow or forbid TF32 while the body runs.

    All switches are restored at the end, also those that were set one by one.
    """
    backends: Any = torch.backends
    cudnn = backends.cudnn
    switches = (backends.mkldnn.matmul, cudnn, backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    old = None
    with suppress(RuntimeError):  # raised where old and new switches were set to differ
        old = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    allow_tf32(on)
    try:
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old[0])
            torch.backends.cudnn.allow_tf32 = old[1]
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def is_channels_last(memory_format: str, device: torch.device) -> bool:
    """Return whether images and weights are in channels_last: by the option, or by default on a GPU."""
    return is_cuda(device) if memory_format == "auto" else memory_format == "channels_last"


def current_numerics() -> dict[str, object]:
    """Return the current switches of PyTorch, for the record.

    The switches for reductions in 16 bits (`metrics.REDUCTION_DEFAULTS`) have PyTorch's names. Nothing here
    sets them: a user's code may. They apply to GPUs, and are recorded on every device.
    """
    matmul = torch.backends.cuda.matmul
    return {
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "allow_fp16_accumulation": matmul.allow_fp16_accumulation,
        "allow_fp16_bf16_reduction_math_sdp": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        metrics.TF32: matmul.fp32_precision == "tf32",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def current_tf32(device: torch.device) -> dict[str, bool]:
    """Return where the current switches of PyTorch allow TF32 on a device, for the record.

    A loop of the user's own may set one switch and not another. PyTorch's default allows TF32 in convolutions
    and recurrent layers, and not in matrix products.
    """
    if not has_tf32(device):
        return dict.fromkeys(metrics.TF32_SWITCHES, False)
    cudnn: Any = torch.backends.cudnn
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    allowed = [switch.fp32_precision == "tf32" for switch in switches]
    return dict(zip(metrics.TF32_SWITCHES, allowed, strict=True))


def process_peak_mib() -> float:
    """Return the peak resident set of this process in MiB."""
    if _inherits_maxrss(os.getpid()):
        return _peak_from_status() or 0.0
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


@cache
def _inherits_maxrss(process: int) -> bool:
    """Return whether `ru_maxrss` is that of the process that launched this one, as it may be on Linux.

    Otherwise `ru_maxrss` is read: 1 us, where the kernel takes 70 us to write the status.
    """
    peak = _peak_from_status()
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return peak is not None and inherited > 1.01 * peak  # both are counted to about 1 MiB


def _peak_from_status() -> float | None:
    """Return the peak resident set in MiB that Linux tells, or None on another system."""
    try:
        _, found, rest = Path("/proc/self/status").read_bytes().partition(b"VmHWM:")
    except OSError:
        return None
    return int(rest.split(maxsplit=1)[0]) / 1024 if found else None


def is_out_of_memory(problem: BaseException | None) -> bool:
    """Return whether a device ran out of memory: in this exception, its cause or its context.

    In a capture the end of the capture fails then, and its error hides the first one.
    """
    visited: set[int] = set()
    while problem is not None and id(problem) not in visited:
        visited.add(id(problem))
        if isinstance(problem, torch.OutOfMemoryError):
            return True
        says_so = any(text in str(problem) for text in ("out of memory", "STATUS_ALLOC_FAILED"))
        if isinstance(problem, RuntimeError) and says_so:
            return True
        problem = problem.__cause__ or problem.__context__
    return False
