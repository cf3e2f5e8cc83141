"""The machine and software that a result belongs to.

Names of hosts and GPUs are recorded as salted hashes. The same machine has the same hash, and the record does
not contain its name. The salt is public, so a reader of the record who guesses a name can test it.

What the 16-bit dtypes run on is derived, not measured (`ampcompare doctor` measures): from the flags of the
processor, the limit in ONEDNN_MAX_CPU_ISA, and PyTorch's own query to oneDNN. Source: oneDNN 3.12, which has
the kernels of PyTorch's convolutions and matrix products on x86 (its verbose output names the kernel that
runs), and `use_mkldnn` in PyTorch's Convolution.cpp.
"""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ampcompare import __version__
from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32, UNKNOWN
from ampcompare.runtime.paths import CHECKOUT
from ampcompare.system.device import compute_capability, is_cuda, is_host, nvml_name
from ampcompare.system.distributed import DistributedContext

SALT = "ampcompare: which machine, not what it is called\n"
MAX_EARLIER_MACHINES = 16  # of a run's earlier parts
# For each dtype the instructions that compute a convolution's forward and both gradients, in order of
# preference, and the limits on instruction sets that allow them (AVX512_CORE_BF16 allows avx512_bf16 but not
# AMX). With only avx512_fp16, fp16's weight gradients are a plain loop (`ref:any`), a hundred times slower
# than fp32. Without avx512_bf16, bf16 is converted to fp32 before the products.
NATIVE_UNITS = {
    "bfloat16": {"amx_bf16": "AMX", "avx512_bf16": "AMX|^AVX512_CORE_BF16|^AVX512_CORE_FP16|^AVX10"},
    "float16": {"amx_fp16": "AMX_FP16|AMX_2"},
}
X86 = ("x86_64", "AMD64", "amd64", "i386", "i686")
REPORTED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
PACKAGES = ("torch", "torchvision", "wandb", "omegaconf", "numpy")


def describe_environment(device: torch.device, **settings: Any) -> dict[str, Any]:
    """Return device, driver, library versions and git commit, as they are recorded.

    A value is None if it does not apply or cannot be found. The name of the host is not included.

    Args:
        device: The device of the training.
        settings: Further entries, such as `tf32`.
    """
    cuda = is_cuda(device)
    capability = compute_capability(device)
    return {
        "device_type": device.type,
        "device_name": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "compute_capability": None if capability is None else "{}.{}".format(*capability),
        "cpu_count": count_cores(),
        "cpu_threads": torch.get_num_threads(),
        "driver": _driver() if cuda else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "git_commit": _git_commit(),
        "packages": {"ampcompare": __version__} | {name: _version(name) for name in PACKAGES},
        **settings,
    }


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    if affinity is None:
        return os.cpu_count() or 1
    return len(affinity(0))


def cpu_name() -> str:
    """Return the name of the processor."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def processor_flags() -> frozenset[str] | None:
    """Return the feature flags of the processor, or None where the system does not report them."""
    flags = _cpuinfo("flags", "Features")
    return None if flags is None else frozenset(flags.split())


def _cpuinfo(*names: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    pairs = (line.partition(":")[::2] for line in lines)
    return next((text.strip() for name, text in pairs if name.strip() in names), None)


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the checkout that runs, with `-dirty` if tracked files differ."""
    if CHECKOUT is None:  # git would find the checkout that contains the environment
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


def name_machine(device: torch.device, world: DistributedContext) -> dict[str, Any]:
    """Return hashes of the host's name and of the GPU's UUID (None: no NVIDIA GPU).

    Call it in all processes. The machines of the other processes are under `others`.
    """
    gpu = nvml_name(device)
    own = {"host": hash_name(platform.node()), "gpu": None if gpu is None else hash_name(gpu)}
    others = world.gather(own)[1:]
    return {**own, "others": others} if others else own


def hash_name(name: str) -> str:
    """Return twelve hex digits that stand for a name."""
    return hashlib.sha256((SALT + name).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def add_earlier_machines(machine: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine of a resumed run, with the machines of its earlier parts under `earlier`."""
    last = {key: value for key, value in before.items() if key != "earlier"}
    earlier: list[Any] = []
    for one in (*before.get("earlier", ()), last):
        if one != machine and one not in earlier:
            earlier.append(one)
    if not earlier:
        return dict(machine)
    return {**machine, "earlier": earlier[-MAX_EARLIER_MACHINES:]}


def isa_limit() -> str | None:
    """Return the limit that the environment sets on oneDNN's instruction sets, or None."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        limit = os.environ.get(name, "").upper()
        if limit:
            is_known = limit.startswith(("SSE41", "AVX"))  # oneDNN ignores others
            return limit if is_known else None
    return None


def describe_arithmetic(device: torch.device, *, without_units: str = COMPUTED_IN_FP32) -> dict[str, Any]:
    """Return what each 16-bit dtype's convolutions and matrix products run on, for the record.

    Args:
        device: The device of the training.
        without_units: What is recorded for a dtype for which a known CPU has no units of its own. Our own
            training computes it in fp32 (`precision.cpu_arithmetic`); a training that leaves it to PyTorch's
            kernels is EMULATED.

    Returns:
        `{"arithmetic": {dtype: value}}`. A value is the flag of a unit (`amx_bf16`), `without_units`, or
        UNKNOWN where oneDNN supports the dtype on a processor that this module does not know. The dict is
        empty for a device that is not a CPU.
    """
    if not is_host(device):
        return {}

    def runs_on(dtype: str) -> str:
        if onednn_supports(dtype) and (processor_flags() is None or platform.machine() not in X86):
            return UNKNOWN
        return native_unit(dtype) or without_units

    return {ARITHMETIC: {dtype: runs_on(dtype) for dtype in NATIVE_UNITS}}


def native_unit(dtype: str) -> str:
    """Return the flag of the instructions that compute a 16-bit dtype, or "" if there are none."""
    if not onednn_supports(dtype) or platform.machine() not in X86:
        return ""
    flags = processor_flags() or ()
    limit = isa_limit()
    for unit, allowing_limits in NATIVE_UNITS[dtype].items():
        is_allowed = limit is None or re.search(allowing_limits, limit)
        if unit in flags and is_allowed:
            return unit
    return ""


def onednn_supports(dtype: str) -> bool:
    """Return whether PyTorch computes convolutions of the dtype with oneDNN.

    The answer is PyTorch's own query, which respects limits.
    """
    query = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}[dtype]
    mkldnn = torch.backends.mkldnn
    return bool(mkldnn.is_available() and mkldnn.enabled and getattr(torch.ops.mkldnn, query)())
