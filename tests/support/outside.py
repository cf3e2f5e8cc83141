"""The one place where tests replace code: of the machine, of Python or of a library, never of the package.

A test gets it as the fixture `outside`. All replacements end with the test. The command of a `SweepProject`
has it too. So this module imports no library before it replaces something of it.
"""

import inspect
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest


class ManualClock:
    """The clocks of Python's `time`, which move only when the test says so.

    Attributes:
        now: Seconds.
    """

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


C = TypeVar("C", bound=ManualClock)


class BrokenClock:
    """A clock that raises ValueError while it is broken: a fault within whatever times something.

    Attributes:
        is_broken: Whether it is broken now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_broken = False

    def __call__(self) -> float:
        if self.is_broken:
            raise ValueError("the clock is broken")
        return self._clock()


class Outside:
    """Replaces parts of the outside world for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a library's module or class.

        Raises:
            AssertionError: It belongs to the package. Use the package's public API, or give it an argument.
        """
        module = owner.__name__ if inspect.ismodule(owner) else owner.__module__
        assert module.partition(".")[0] != "ampcompare", f"{module}.{name} is the package's own"
        self._monkeypatch.setattr(owner, name, value)

    def call_before(self, owner: Any, name: str, act: Callable[..., object]) -> None:
        """Call `act` with the same arguments before each call of a library's function; it may raise."""
        function = getattr(owner, name)

        def both(*args: Any, **kwargs: Any) -> Any:
            act(*args, **kwargs)
            return function(*args, **kwargs)

        self.replace(owner, name, both)

    def uninstall(self, *packages: str) -> None:
        """Let imports of these packages fail as if they were not installed."""
        for package in packages:
            loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
            for name in (package, *loaded):
                self._monkeypatch.setitem(sys.modules, name, None)

    def stop_clock(self, clock: C | None = None) -> C:
        """Return the clock that `time.perf_counter` and `time.monotonic` read from here on.

        Args:
            clock: The clock; None: a new one.
        """
        clock = ManualClock() if clock is None else clock  # type: ignore[assignment]
        self.replace(time, "perf_counter", clock)
        self.replace(time, "monotonic", clock)
        return clock

    def break_clock(self) -> BrokenClock:
        """Return the clock that `time.perf_counter` reads from here on."""
        clock = BrokenClock(time.perf_counter)
        self.replace(time, "perf_counter", clock)
        return clock

    def scale_time(self, factor: float) -> None:
        """Let the clocks run so many times as fast, and sleeps end after as small a part of their time."""
        real = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "sleep")}
        self.replace(time, "perf_counter", lambda: real["perf_counter"]() * factor)
        self.replace(time, "monotonic", lambda: real["monotonic"]() * factor)
        self.replace(time, "sleep", lambda seconds: real["sleep"](seconds / factor))

    def shorten_sleeps(self, seconds: float) -> None:
        """Let each `time.sleep` end after at most so many seconds."""
        sleep = time.sleep
        self.replace(time, "sleep", lambda wanted: sleep(min(wanted, seconds)))

    def limit_program(self, program: str, seconds: float) -> None:
        """Let `subprocess.run` wait at most so many seconds for a program."""
        run = subprocess.run

        def limited(command: Sequence[str], *args: Any, **kwargs: Any) -> Any:
            if Path(command[0]).name == program:
                kwargs["timeout"] = min(seconds, kwargs.get("timeout") or seconds)
            return run(command, *args, **kwargs)

        self.replace(subprocess, "run", limited)

    def set_nvidia_gpus(self, count: int) -> None:
        """Let NVML tell of so many GPUs."""
        import pynvml

        self.replace(pynvml, "nvmlInit", lambda: None)
        self.replace(pynvml, "nvmlDeviceGetCount", lambda: count)

    def set_processor(
        self, flags: Collection[str] | None, supported: Collection[str], machine: str = "x86_64"
    ) -> None:
        """Let the system and PyTorch tell of this processor.

        Args:
            flags: Its feature flags; None: the system does not report them.
            supported: The 16-bit dtypes for which oneDNN has kernels on it.
            machine: Its architecture, as `platform.machine` names it.
        """
        import torch

        read = Path.read_text

        def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
            if path != Path("/proc/cpuinfo"):
                return read(path, *args, **kwargs)
            if flags is None:
                raise FileNotFoundError
            return f"model name : a processor\nflags : {' '.join(flags)}\n"

        self.replace(Path, "read_text", read_text)
        self.replace(platform, "machine", lambda: machine)
        self.replace(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: "bfloat16" in supported)
        self.replace(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: "float16" in supported)

    def set_convolution_rates(self, rates: Mapping[str, float], call: float = 1e-4) -> list[tuple[str, int]]:
        """Let 3x3 convolutions take a time on the stopped clock, by the rate of their dtype.

        Args:
            rates: GFLOP/s of forward and backward by dtype. Other dtypes have no kernel.
            call: Seconds of each call, in addition.

        Returns:
            The dtype and the number of output values of each convolution; the list grows.
        """
        import torch

        clock, calls = self.stop_clock(), list[tuple[str, int]]()

        def convolve(x: torch.Tensor, weight: torch.Tensor, **_: Any) -> torch.Tensor:
            dtype = str(x.dtype).removeprefix("torch.")
            calls.append((dtype, x.numel()))
            if dtype not in rates:
                raise RuntimeError("no kernel")
            clock.now += call + 3 * 2 * x.numel() * weight.shape[0] * 9 / 1e9 / rates[dtype]
            return x.mean() * weight.mean()

        self.replace(torch.nn.functional, "conv2d", convolve)
        return calls

    def set_gpu(self, capability: tuple[int, int], name: str = "", *, hip: str | None = None) -> None:
        """Let PyTorch tell of one GPU.

        Args:
            capability: Its CUDA compute capability.
            name: Its name.
            hip: The version of HIP of a PyTorch for AMD's GPUs; None: it is one for NVIDIA's.
        """
        import torch

        self.replace(torch.cuda, "is_available", lambda: True)
        self.replace(torch.cuda, "device_count", lambda: 1)
        self.replace(torch.cuda, "get_device_capability", lambda *_: capability)
        self.replace(torch.cuda, "get_device_name", lambda *_: name)
        self.replace(torch.version, "hip", hip)
        self.replace(torch.version, "cuda", "13.0" if hip is None else None)
