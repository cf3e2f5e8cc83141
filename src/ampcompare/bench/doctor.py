"""`ampcompare doctor`: what this machine can do, and what to do about problems.

Each check is independent: an exception in a check becomes its line, because users run this command on broken
machines. Nothing here waits for the network.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from ampcompare.errors import UserError, one_line, reason
from ampcompare.runtime.formatting import listed, plural
from ampcompare.runtime.paths import shell_command

if TYPE_CHECKING:
    import torch

PAD = 12  # columns of the topic


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        topic: What was checked.
        message: What was found.
        todo: What to do about it; empty: nothing.
        is_fatal: Whether no run can start.
    """

    topic: str
    message: str
    todo: str = ""
    is_fatal: bool = False


def examine() -> Iterator[Finding]:
    """Yield the findings of every check; measuring the dtypes takes about a second."""
    for topic, check in CHECKS.items():
        try:
            with redirect_stderr(StringIO()):  # a library's warning would repeat the finding
                findings = list(check())
        except UserError as problem:  # its message says what to do
            findings = [Finding(topic, one_line(problem))]
        except Exception as problem:
            is_missing = isinstance(problem, ImportError)
            why = f"could not be determined ({type(problem).__name__}: {one_line(reason(problem))})"
            todo = "install AMP Compare again, with its dependencies" if is_missing else ""
            findings = [Finding(topic, why, todo, is_fatal=is_missing or topic in NEEDED)]
        yield from findings


def run_doctor(say: Callable[[str], None]) -> int:
    """Print every finding. Return 1 if no run can start, else 0."""
    is_fatal = False
    for finding in examine():
        say(f"{finding.topic:<{PAD}} {one_line(finding.message)}")
        if finding.todo:
            say(f"{'':<{PAD}} -> {one_line(finding.todo)}")
        is_fatal |= finding.is_fatal
    return int(is_fatal)


def default_backends(device: torch.device) -> list[str]:
    """Return the backends that `bench` and the demo compare by default, the baseline first."""
    from ampcompare.system.device import has_tf32

    tf32 = ["tf32"] if has_tf32(device) else []
    bfloat16 = ["native_bf16"] if has_fast_bfloat16(device) else []
    return ["none", *tf32, "native", "apex_o1", *bfloat16]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device has native bf16 instructions."""
    import torch

    from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32, EMULATED, UNKNOWN
    from ampcompare.system.device import is_cuda
    from ampcompare.system.environment import describe_arithmetic

    if is_cuda(device):
        return torch.cuda.get_device_capability(device) >= (8, 0)
    unit = describe_arithmetic(device).get(ARITHMETIC, {}).get("bfloat16", UNKNOWN)
    return unit not in (COMPUTED_IN_FP32, EMULATED, UNKNOWN)


def _software() -> Iterator[Finding]:
    import platform

    import torch

    from ampcompare import __version__

    versions = f"python {platform.python_version()}, torch {torch.__version__}, ampcompare {__version__}"
    yield Finding("software", versions)


def _device() -> Iterator[Finding]:
    import torch

    from ampcompare.system.device import is_cuda, resolve_device
    from ampcompare.system.environment import describe_environment

    device = resolve_device("auto")
    message, todo = f"{device}: {describe_environment(device)['device_name']}", ""
    if device.type == "cpu":
        message += "; PyTorch finds no GPU"
        if torch.version.cuda is None and shutil.which("nvidia-smi"):
            todo = "this PyTorch is built without CUDA; install a build with CUDA to train on the GPU"
    elif is_cuda(device) and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        message += f"; the first of {count} GPUs"
        todo = f"to train on all of them: {shell_command('torchrun', f'--nproc-per-node={count}')}"
    yield Finding("device", message, todo)


def _processor() -> Iterator[Finding]:
    from ampcompare.system.environment import REPORTED_FLAGS, cpu_name, isa_limit, processor_flags

    flags, limit = processor_flags(), isa_limit()
    limits = [f"ONEDNN_MAX_CPU_ISA={limit}"] if limit else []
    if own := os.environ.get("ATEN_CPU_CAPABILITY"):
        limits.append(f"ATEN_CPU_CAPABILITY={own}")
    units = [unit for unit in REPORTED_FLAGS if unit in (flags or ())]
    known = ", ".join(units) or "none of " + ", ".join(REPORTED_FLAGS)
    message = f"{cpu_name()}; instructions: {'not reported on this system' if flags is None else known}"
    todo = f"limited by {' and '.join(limits)}; unset it to use all instructions" if limits else ""
    yield Finding("processor", message, todo)


def _threads() -> Iterator[Finding]:
    import torch

    from ampcompare.system.environment import count_cores

    cores, threads = count_cores(), torch.get_num_threads()
    todo = (
        f"OMP_NUM_THREADS={cores} uses all cores; it does not help if they are hyper-threads of fewer cores"
    )
    if limit := os.environ.get("OMP_NUM_THREADS"):
        todo = f"OMP_NUM_THREADS={limit} is set; unset it to train on all cores"
    message = f"PyTorch uses {plural(threads, 'thread')} on {plural(cores, 'core')}"
    yield Finding("threads", message, todo if threads < cores else "")


def _types() -> Iterator[Finding]:
    from ampcompare.metrics import ARITHMETIC
    from ampcompare.precision.cpu_arithmetic import compute_in_fp32
    from ampcompare.system.device import has_tf32, resolve_device
    from ampcompare.system.dtype_throughput import DTYPES, measure_throughput, relative_rate
    from ampcompare.system.environment import describe_arithmetic

    device = resolve_device("auto")
    with compute_in_fp32(device, "float16"), compute_in_fp32(device, "bfloat16"):  # as in a training
        rates = measure_throughput(device)
    arithmetic = describe_arithmetic(device).get(ARITHMETIC, {})
    unit = "GFLOP/s on one core" if device.type == "cpu" else "GFLOP/s"
    for dtype in DTYPES:
        if dtype not in rates:
            yield Finding(dtype, "does not run on this device")
            continue
        message = f"{rates[dtype]:,.3g} {unit} in a training convolution"
        if dtype != "float32":
            support = _describe_arithmetic(arithmetic.get(dtype, "native"))
            message = f"{support}; {message}, {relative_rate(rates, dtype):.2g}x the rate of fp32"
        yield Finding(dtype, message)
    if has_tf32(device):
        yield Finding("tf32", "native; PyTorch's default for convolutions on this GPU (backend=tf32)")
    backends = default_backends(device)
    todo = f"to measure {listed(backends)}: {shell_command('ampcompare', 'bench')}"
    if device.type == "cpu":
        message = "backend=native_bf16 may be faster than fp32; " if "native_bf16" in backends else ""
        message += "backend=native and apex_o1 show accuracy, memory and loss scale here, not a GPU's speed"
    else:
        message = "try backend=native"
    yield Finding("mixed", message, todo)


def _describe_arithmetic(value: str) -> str:
    """Return how the device computes in a dtype: native, in fp32, or unknown."""
    from ampcompare.metrics import COMPUTED_IN_FP32, UNKNOWN

    descriptions = {"native": "native", COMPUTED_IN_FP32: "computed in fp32", UNKNOWN: "support unknown"}
    return descriptions.get(value, f"native ({value})")


def _compiler() -> Iterator[Finding]:
    """Look for a compiler without running it: a compilation takes many seconds."""
    from ampcompare.system.device import is_cuda, resolve_device

    wanted = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(wanted)
    header = Path(sysconfig.get_path("include"), "Python.h").is_file()
    lacking = [] if path else [f"no C++ compiler ({wanted})"]
    lacking += [] if header else ["Python.h is missing"]
    if is_cuda(resolve_device("auto")) and find_spec("triton") is None:
        lacking.append("no Triton")
    message = ", ".join(lacking) or f"{path} and Python's headers"
    todo = "install g++ and python3-dev to use execution=compile; execution=eager works without them"
    if lacking == ["no Triton"]:
        todo = "install triton to use execution=compile; execution=eager works without it"
    yield Finding("compiler", message, todo if lacking else "")


def _wandb() -> Iterator[Finding]:
    import wandb

    from ampcompare.wandb_client.client import has_account

    version, login = f"W&B {wandb.__version__}", shell_command("wandb", "login")
    variables = [name for name in ("WANDB_MODE", "WANDB_DISABLED") if os.environ.get(name)]
    if variables:
        settings = " and ".join(f"{name}={os.environ[name]}" for name in variables)
        todo = f"unset {' and '.join(variables)} to choose with the option wandb.mode"
        yield Finding("account", f"{version}; {settings} is set, for all runs", todo)
    elif has_account():
        yield Finding("account", f"{version}; logged in, runs are streamed to W&B")
    else:
        todo = f"to stream runs to W&B, log in once: {login}"
        yield Finding("account", f"{version}; not logged in, runs are recorded offline", todo)


def _data() -> Iterator[Finding]:
    from ampcompare.data.sources.cifar10 import CIFAR10, CIFAR100, find_files

    places = {which: find_files(which) for which in (CIFAR10, CIFAR100)}
    folder = places[CIFAR10][1]
    here = [f"{which.label} is in {place}" for which, (place, _) in places.items() if place is not None]
    todo = ""
    if places[CIFAR10][0] is None:
        here.insert(0, f"CIFAR-10 is missing; the first run downloads it (170 MB) to {folder}")
        todo = f"without internet: copy {CIFAR10.file} there, or use data.source=synthetic"
    yield Finding("data", "; ".join(here), todo)


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "software": _software,
    "device": _device,
    "processor": _processor,
    "threads": _threads,
    "types": _types,
    "compiler": _compiler,
    "account": _wandb,
    "data": _data,
}
NEEDED = ("software", "device")  # without these no run can start
