"""The machine and software that a figure belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ampcompare.machine.device import is_cuda
from ampcompare.program.place import CHECKOUT

PACKAGES = ("ampcompare", "torch", "torchvision", "wandb", "omegaconf", "numpy")


def describe_environment(device: torch.device, **settings: Any) -> dict[str, Any]:
    """Device, driver, library versions and git commit, beside `settings` (tf32, memory format, ...).

    What does not apply or cannot be found is None. The host's name is not recorded (a hash is: `card.py`).
    """
    cuda = is_cuda(device)
    return {
        "device_type": device.type,
        "device_name": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
        "driver": _driver() if cuda else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "git_commit": _git_commit(),
        "packages": {name: _version(name) for name in PACKAGES},
        **settings,
    }


def cpu_name() -> str:
    """What the processor is called."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout this package runs from, if any, `-dirty` added if tracked files differ."""
    if CHECKOUT is None:  # another project's commit, where the environment lies in its checkout
        return None
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
