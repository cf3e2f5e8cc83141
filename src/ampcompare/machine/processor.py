"""What a CPU computes with: which units for half types it has, and which of them a training may use.

Source: oneDNN 3.12, whose kernels PyTorch's convolutions and matrix products on x86 are (its verbose output
names the one that runs), and `use_mkldnn` in PyTorch's Convolution.cpp. Told from the processor's flags as
the operating system shows them, from the limit that ONEDNN_MAX_CPU_ISA sets, and from PyTorch's own question
to oneDNN; nothing is measured here (`probe.py` does).
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from ampcompare.metrics import ARITHMETIC, EMULATED, UNKNOWN

# Beside what is shown to people, what a convolution in the type needs for forward and both gradients. The
# first that is there is used. On avx512_fp16 alone fp16's weight gradients are a plain loop (`ref:any`), a
# hundred times slower than fp32; without avx512_bf16 bf16 is widened to fp32 on its way into the products.
UNITS = {"bfloat16": ("amx_bf16", "avx512_bf16"), "float16": ("amx_fp16",)}
SHOWN = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
X86 = ("x86_64", "AMD64", "amd64", "i386", "i686")


def processor_flags() -> frozenset[str] | None:
    """What the processor can, as the operating system says; None where it does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(words.split())
    except OSError:
        pass  # not Linux
    return None


def isa_limit() -> str | None:
    """The limit on oneDNN's instruction sets that the environment sets, or None. It takes any case."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        if limit := os.environ.get(name, "").upper():
            known = limit.startswith(("SSE41", "AVX"))  # it passes over others
            return limit if known else None
    return None


def allows(limit: str | None, unit: str) -> bool:
    """Whether a limit such as AVX512_CORE_BF16 leaves a unit in use.

    >>> [allows("AVX512_CORE_BF16", unit) for unit in ("avx512_bf16", "amx_bf16", "amx_fp16")]
    [True, False, False]
    """
    if limit is None:
        return True
    if unit == "amx_fp16":
        return "AMX_FP16" in limit or "AMX_2" in limit
    if unit == "amx_bf16":
        return "AMX" in limit
    return "AMX" in limit or limit.startswith(("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10"))


def arithmetic_of(device: torch.device) -> dict[str, Any]:
    """What each half type's products run on, for the record; nothing of a device that is no CPU.

    A unit's flag (`amx_bf16`), `emulated` where the type is widened to fp32 or computed by a plain loop, or
    `unknown` where this module does not know the processor: not x86, or flags that nobody shows.
    """
    if device.type != "cpu":
        return {}
    flags = processor_flags()
    return {ARITHMETIC: {dtype: _runs_on(dtype, flags) for dtype in UNITS}}


def _runs_on(dtype: str, flags: frozenset[str] | None) -> str:
    if not _onednn_takes(dtype):
        return EMULATED if _is_x86() else UNKNOWN
    if flags is None or not _is_x86():
        return UNKNOWN
    limit = isa_limit()
    return next((unit for unit in UNITS[dtype] if unit in flags and allows(limit, unit)), EMULATED)


def _onednn_takes(dtype: str) -> bool:
    """Whether PyTorch gives convolutions of the type to oneDNN: its own question, which heeds the limit."""
    mkldnn = torch.backends.mkldnn
    if not mkldnn.is_available() or not getattr(mkldnn, "enabled", True):
        return False
    ask = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}[dtype]
    try:
        return bool(getattr(torch.ops.mkldnn, ask)())
    except (AttributeError, RuntimeError):  # a PyTorch without the question
        return True


def _is_x86() -> bool:
    return platform.machine() in X86
