"""The one place where tests replace code: of the machine, of Python or of a library, never of the package.

A test gets it as the fixture `outside`. All replacements end with the test.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch


class ManualClock:
    """The clocks of Python's `time`, which move only when the test says so.

    Attributes:
        now: Seconds.
    """

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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

    def stop_clock(self) -> ManualClock:
        """Return the clock that `time.perf_counter` and `time.monotonic` read from here on."""
        import time

        clock = ManualClock()
        self.replace(time, "perf_counter", clock)
        self.replace(time, "monotonic", clock)
        return clock

    def break_clock(self) -> BrokenClock:
        """Return the clock that `time.perf_counter` reads from here on."""
        import time

        clock = BrokenClock(time.perf_counter)
        self.replace(time, "perf_counter", clock)
        return clock

    def set_gpu(self, capability: tuple[int, int], name: str = "", *, hip: str | None = None) -> None:
        """Let PyTorch tell of one GPU.

        Args:
            capability: Its CUDA compute capability.
            name: Its name.
            hip: The version of HIP of a PyTorch for AMD's GPUs; None: it is one for NVIDIA's.
        """
        self.replace(torch.cuda, "is_available", lambda: True)
        self.replace(torch.cuda, "device_count", lambda: 1)
        self.replace(torch.cuda, "get_device_capability", lambda *_: capability)
        self.replace(torch.cuda, "get_device_name", lambda *_: name)
        self.replace(torch.version, "hip", hip)
        self.replace(torch.version, "cuda", "13.0" if hip is None else None)
