"""The device of a run: what depends on its kind, and the switches that decide its speed and numerics.

No other room of the training asks what kind of device it has; a new kind is answered for here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.errors import UserError
from ampcompare.program.loading import loading

Mark = torch.cuda.Event | float


def resolve_device(name: str) -> torch.device:
    """The device that `name` means here, made the current one. Raises UserError where it is not there."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] if torch.backends.mps.is_available() else []
    present = [*(f"cuda:{i}" for i in range(cuda)), *mps, "cpu"]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        seen = f"PyTorch sees {', '.join(present)}"
        raise UserError(f"device={name!r}: not there; {seen}; use one of them or device=auto")
    device = torch.device(wanted)
    make_current(device)
    return device


def check_present(device: torch.device) -> None:
    """Raise UserError for a GPU that is not there."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if is_cuda(device) and (device.index or 0) >= there:
        raise UserError(
            f"device={str(device)!r}: not there; PyTorch sees {there} GPUs; use one of them or cpu"
        )


def make_current(device: torch.device) -> None:
    """Streams, events and graphs are those of the current device."""
    if is_cuda(device):
        torch.cuda.set_device(device)


def is_cuda(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU: has NCCL, CUDA graphs, fused kernels; likes channels_last."""
    return device.type == "cuda"


def has_float64(device: torch.device) -> bool:
    """Whether tensors there may be float64."""
    return device.type != "mps"


def widest_float(device: torch.device) -> torch.dtype:
    """The type for sums and counts on the device. Counts are exact in float32, too, up to 16.7 million."""
    return torch.float64 if has_float64(device) else torch.float32


def is_host(device: torch.device) -> bool:
    """Whether the values of its tensors are there for the host at once, at no more than a look."""
    return device.type == "cpu"


def queues_copies(device: torch.device) -> bool:
    """Whether copies from and to pinned memory are queued behind the steps, and the host goes on."""
    return is_cuda(device)


def start_copy(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Values on their way to the host, and what to wait for (`wait_until`) before they are read."""
    if not queues_copies(values.device):
        return values, None
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(values.device))
    return pinned, arrived


def mark(device: torch.device) -> Mark:
    """This place in the device's queue of work: an event on a GPU, the time (s) where the work is done."""
    if device.type == "cuda":  # not by a call: this is asked twice a step
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event
    if device.type == "mps":
        torch.mps.synchronize()  # sync: MPS steps are asynchronous and its events give no pairwise times
    return time.perf_counter()


def marker(device: torch.device) -> Callable[[], Mark]:
    """What gives `mark(device)`, looked up once: it is asked twice a step."""
    return time.perf_counter if is_host(device) else partial(mark, device)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what is queued."""
    if is_cuda(device):
        torch.cuda.synchronize(device)  # sync: what this is for
    elif device.type == "mps":
        torch.mps.synchronize()  # sync: what this is for


def wait_until(event: torch.cuda.Event) -> None:
    """Wait until the device has come past the event. Asked first, so that what is called a wait is one."""
    if not event.query():
        event.synchronize()  # sync: what this is for


def reset_peak(device: torch.device) -> None:
    """Forget the peak of `peak_bytes`, where the device has one."""
    if is_cuda(device):
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Bytes that tensors had at most (on MPS: have now); None where the memory is that of the process."""
    if is_cuda(device):
        return torch.cuda.max_memory_allocated(device)
    return torch.mps.current_allocated_memory() if device.type == "mps" else None


def allocated_bytes(device: torch.device) -> int:
    """Bytes that tensors have now; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if is_cuda(device) else 0


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free there; None where tensors of the host are the device's own."""
    return torch.cuda.mem_get_info(device)[0] if is_cuda(device) else None


def reserved_bytes(device: torch.device) -> int | None:
    """Bytes that PyTorch had taken at most, in use or not; None where the memory is that of the process."""
    if is_cuda(device):
        return torch.cuda.max_memory_reserved(device)
    return torch.mps.driver_allocated_memory() if device.type == "mps" else None


def nvml_name(device: torch.device) -> str | None:
    """The name under which NVIDIA's management library knows it; None for a device that it does not know."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if is_cuda(device) else None


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own random numbers; None where they are those of the CPU."""
    return torch.cuda.get_rng_state(device) if is_cuda(device) else None


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    """Put the device's random numbers where they were, if it is of the kind that the state is of."""
    if state is not None and is_cuda(device):
        torch.cuda.set_rng_state(state, device)


def set_numerics(config: Config) -> None:
    """Set TF32, cuDNN and determinism as the config says, each time all of them.

    PyTorch leaves TF32 on for cuDNN convolutions by default: "fp32" is not fp32 until it is switched off.
    """
    allow_tf32(config.tf32)
    # Trying algorithms may pick another one each time, so determinism rules it out.
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    torch.backends.cudnn.deterministic = config.deterministic
    if config.deterministic:  # cuBLAS asks for this before its first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with loading("torch._inductor.config"):  # it loads PyTorch's compiler, as every optimizer would
        torch.use_deterministic_algorithms(config.deterministic)


def allow_tf32(on: bool) -> None:
    """Let fp32 products and convolutions round to TF32, or not.

    PyTorch (2.11 and 2.14) has two sets of switches. Asked for the old ones, as Inductor does, it raises
    where the new ones say something else. The old ones come first: setting them writes into the new.
    """
    precision = "tf32" if on else "ieee"
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]  # not "tf32"
    torch.backends.cudnn.fp32_precision = precision  # Inductor asks this of convolutions
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]


def allows_tf32() -> bool:
    """Whether fp32 products round to TF32 now."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def is_channels_last(config: Config, device: torch.device) -> bool:
    """Whether images and weights lie in channels_last: as the config says, or else on a GPU."""
    if config.memory_format == "auto":
        return is_cuda(device)
    return config.memory_format == "channels_last"


def numerics_now() -> dict[str, object]:
    """PyTorch's switches as they stand in this process, for the record."""
    return {
        "tf32": allows_tf32(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def effective_numerics(config: Config, device: torch.device) -> dict[str, object]:
    """What holds in fact on the run's device, for the record."""
    return {
        **numerics_now(),
        "memory_format": "channels_last" if is_channels_last(config, device) else "contiguous",
        "execution": config.execution,
    }
