"""The device of a run and the switches that decide its speed and numerics."""

from __future__ import annotations

import os

import torch

from ampcompare.config import Config
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


def set_numerics(config: Config) -> None:
    """Set TF32, cuDNN and determinism as the config says, each time all of them.

    PyTorch leaves TF32 on for cuDNN convolutions by default, so that "fp32" is not fp32 until it is switched off.
    """
    precision = "tf32" if config.tf32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]
    # Trying algorithms may pick another one each time, so determinism rules it out.
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic
    torch.backends.cudnn.deterministic = config.deterministic
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first use
    torch.use_deterministic_algorithms(config.deterministic)


def effective_numerics(config: Config) -> dict[str, object]:
    """What holds in fact, for the record."""
    return {
        "tf32": torch.backends.cuda.matmul.fp32_precision == "tf32",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "memory_format": config.memory_format,
        "execution": config.execution,
        "fuse": config.fuse,
    }
