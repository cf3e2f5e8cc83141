"""`ampcompare doctor`: what this machine can do, and what to do about problems.

Each check is independent: an exception in a check becomes its line, because users run this command on broken
machines. Nothing here waits for the network.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
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
            finding = Finding(
                topic,
                f"could not be determined ({type(problem).__name__}: {one_line(reason(problem))})",
                "install AMP Compare again, with its dependencies" if is_missing else "",
                is_fatal=is_missing or topic in NEEDED,
            )
            findings = [finding]
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
    bfloat16 = ["native_bf16"] if computes_natively(device, "bfloat16") else []
    return ["none", *tf32, "native", "apex_o1", *bfloat16]


def backends_with_speed(backends: Sequence[str], device: torch.device) -> list[str]:
    """Return the backends whose speed can be compared: the device computes their dtype natively."""
    from ampcompare.precision.registry import REGISTRY

    return [name for name in backends if computes_natively(device, REGISTRY[name].dtype)]


def computes_natively(device: torch.device, dtype: str) -> bool:
    """Return whether the device computes in a dtype such as `bfloat16` itself, and not in fp32."""
    import torch

    from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32, EMULATED, UNKNOWN
    from ampcompare.system.device import is_cuda
    from ampcompare.system.environment import describe_arithmetic

    if dtype not in ("float16", "bfloat16"):
        return True
    if is_cuda(device):
        return dtype == "float16" or torch.cuda.get_device_capability(device) >= (8, 0)
    unit = describe_arithmetic(device).get(ARITHMETIC, {}).get(dtype, UNKNOWN)
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
    name = describe_environment(device)["device_name"]
    count = torch.cuda.device_count() if is_cuda(device) else 0
    if device.type == "cpu" and torch.version.cuda is None and shutil.which("nvidia-smi"):
        yield Finding(
            "device",
            f"{device}: {name}; PyTorch finds no GPU",
            "this PyTorch is built without CUDA; install a build with CUDA to train on the GPU",
        )
    elif device.type == "cpu":
        yield Finding("device", f"{device}: {name}; PyTorch finds no GPU")
    elif count > 1:
        command = shell_command("torchrun", f"--nproc-per-node={count}")
        yield Finding(
            "device", f"{device}: {name}; the first of {count} GPUs", f"to train on all of them: {command}"
        )
    else:
        yield Finding("device", f"{device}: {name}")


def _processor() -> Iterator[Finding]:
    from ampcompare.system.environment import REPORTED_FLAGS, cpu_name, isa_limit, processor_flags

    settings = {
        "ONEDNN_MAX_CPU_ISA": isa_limit(),
        "ATEN_CPU_CAPABILITY": os.environ.get("ATEN_CPU_CAPABILITY"),
    }
    limits = [f"{name}={value}" for name, value in settings.items() if value]
    todo = f"limited by {' and '.join(limits)}; unset it to use all instructions" if limits else ""
    flags = processor_flags()
    if flags is None:
        yield Finding("processor", f"{cpu_name()}; instructions: not reported on this system", todo)
        return
    units = ", ".join(unit for unit in REPORTED_FLAGS if unit in flags)
    none = f"none of {', '.join(REPORTED_FLAGS)}"
    yield Finding("processor", f"{cpu_name()}; instructions: {units or none}", todo)


def _threads() -> Iterator[Finding]:
    import torch

    from ampcompare.system.environment import count_cores

    cores = count_cores()
    threads = torch.get_num_threads()
    message = f"PyTorch uses {plural(threads, 'thread')} on {plural(cores, 'core')}"
    limit = os.environ.get("OMP_NUM_THREADS")
    if threads >= cores:
        yield Finding("threads", message)
    elif limit:
        yield Finding("threads", message, f"OMP_NUM_THREADS={limit} is set; unset it to train on all cores")
    else:
        yield Finding(
            "threads",
            message,
            f"OMP_NUM_THREADS={cores} uses all cores; it does not help if they are hyper-threads of fewer "
            "cores",
        )


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
    message = "try backend=native"
    if device.type == "cpu":
        message = "backend=native and apex_o1 show accuracy, memory and loss scale here, not a GPU's speed"
        if "native_bf16" in backends:
            message = f"backend=native_bf16 may be faster than fp32; {message}"
    yield Finding("mixed", message, f"to measure {listed(backends)}: {shell_command('ampcompare', 'bench')}")


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
    missing_parts = {
        f"no C++ compiler ({wanted})": path is None,
        "Python.h is missing": not header,
        "no Triton": is_cuda(resolve_device("auto")) and find_spec("triton") is None,
    }
    lacking = [text for text, is_missing in missing_parts.items() if is_missing]
    if not lacking:
        yield Finding("compiler", f"{path} and Python's headers")
    elif lacking == ["no Triton"]:
        yield Finding(
            "compiler",
            "no Triton",
            "install triton to use execution=compile; execution=eager works without it",
        )
    else:
        yield Finding(
            "compiler",
            ", ".join(lacking),
            "install g++ and python3-dev to use execution=compile; execution=eager works without them",
        )


def _wandb() -> Iterator[Finding]:
    import wandb

    from ampcompare.wandb_client.client import has_account

    version = f"W&B {wandb.__version__}"
    variables = [name for name in ("WANDB_MODE", "WANDB_DISABLED") if os.environ.get(name)]
    if variables:
        settings = " and ".join(f"{name}={os.environ[name]}" for name in variables)
        yield Finding(
            "account",
            f"{version}; {settings} is set, for all runs",
            f"unset {' and '.join(variables)} to choose with the option wandb.mode",
        )
    elif has_account():
        yield Finding("account", f"{version}; logged in, runs are streamed to W&B")
    else:
        yield Finding(
            "account",
            f"{version}; not logged in, runs are recorded offline",
            f"to stream runs to W&B, log in once: {shell_command('wandb', 'login')}",
        )


def _data() -> Iterator[Finding]:
    from ampcompare.data.sources.cifar10 import CIFAR10, CIFAR100, find_files

    places = {which: find_files(which) for which in (CIFAR10, CIFAR100)}
    here = "; ".join(
        f"{which.label} is in {place}" for which, (place, _) in places.items() if place is not None
    )
    place, folder = places[CIFAR10]
    if place is not None:
        yield Finding("data", here)
        return
    missing = f"CIFAR-10 is missing; the first run downloads it (170 MB) to {folder}"
    yield Finding(
        "data",
        f"{missing}; {here}" if here else missing,
        f"without internet: copy {CIFAR10.file} there, or use data.source=synthetic",
    )


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
