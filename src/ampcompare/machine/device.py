"""The device of a run and the switches that decide its speed and numerics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ampcompare.config.load import Config
from ampcompare.errors import UserError


def resolve_device(name: str) -> torch.device:
    """The device that `name` means here, made the current one. Raises UserError where it is not there."""
    cuda, mps = (
        torch.cuda.device_count() if torch.cuda.is_available() else 0,
        torch.backends.mps.is_available(),
    )
    present = [*(f"cuda:{i}" for i in range(cuda)), *(["mps"] if mps else []), "cpu"]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise UserError(
            f"device={name!r}: not there; PyTorch sees {', '.join(present)}; use one of them or device=auto"
        )
    device = torch.device(wanted)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # streams, events and graphs are those of the current device
    return device


def is_cuda(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU."""
    return device.type == "cuda"


def random_state(device: torch.device) -> torch.Tensor | None:
    """The state of the device's own random numbers; None where they are those of the CPU."""
    return torch.cuda.get_rng_state(device) if is_cuda(device) else None


def set_random_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Put the device's random numbers where they were, if it is of the kind that the state is of."""
    if state is not None and is_cuda(device):
        torch.cuda.set_rng_state(state, device)


def set_numerics(config: Config) -> None:
    """Set TF32, cuDNN and determinism as the config says, each time all of them.

    PyTorch leaves TF32 on for cuDNN convolutions by default, so that "fp32" is not fp32 until it is switched
    off.
    """
    allow_tf32(config.tf32)
    # Trying algorithms may pick another one each time, so determinism rules it out.
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    torch.backends.cudnn.deterministic = config.deterministic
    if config.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # cuBLAS asks for it, before its first use
    torch.use_deterministic_algorithms(config.deterministic)


def allow_tf32(on: bool) -> None:
    """Let fp32 products and convolutions round to TF32, or not.

    PyTorch (2.11 and 2.14) has two sets of switches. Asked for the old ones, as Inductor does, it raises
    where the new ones say something else. The old ones come first here: setting them writes into the new
    ones.
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


@contextmanager
def tf32_as(on: bool | None) -> Iterator[None]:
    """TF32 as said while inside, then as `allow_tf32` had it; None touches nothing."""
    if on is None:
        yield
        return
    before = allows_tf32()
    allow_tf32(on)
    try:
        yield
    finally:
        allow_tf32(before)


def is_channels_last(config: Config, device: torch.device) -> bool:
    """Whether images and weights lie in channels_last: as the config says, or else on a GPU."""
    if config.memory_format == "auto":
        return device.type == "cuda"
    return config.memory_format == "channels_last"


def effective_numerics(config: Config, device: torch.device) -> dict[str, object]:
    """What holds in fact on the run's device, for the record."""
    return {
        "tf32": allows_tf32(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "memory_format": "channels_last" if is_channels_last(config, device) else "contiguous",
        "execution": config.execution,
        "fuse": config.fuse,
    }
