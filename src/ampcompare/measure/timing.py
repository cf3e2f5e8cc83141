"""Step times on the device: events on a GPU, the clock on a CPU; warm-up, logging and evaluation left out."""

from __future__ import annotations

import time

import torch

Mark = torch.cuda.Event | float


class StepTimer:
    """Times optimizer steps between `resume` and `read`.

    Call `resume()` before the first step of a window, `lap(images)` after each step, `read()` to end the window.
    The first `warmup_steps` laps of the whole run are not counted.
    """

    def __init__(self, device: torch.device, warmup_steps: int) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._warmup = warmup_steps
        self._laps = 0
        self._last: Mark = 0.0
        self._spans: list[tuple[Mark, Mark]] = []
        self._images = 0

    @property
    def warm(self) -> bool:
        """Whether warm-up is over."""
        return self._laps >= self._warmup

    def resume(self) -> None:
        """Start a window here: what happened since the last `read` is not timed."""
        self._last = self._mark()
        self._spans, self._images = [], 0

    def lap(self, images: int, *, cold: bool = False) -> None:
        """End one step that trained on so many images. A `cold` one, in which something was compiled, is left out."""
        self._laps += 1
        now = self._mark()
        if self._laps > self._warmup and not cold:
            self._spans.append((self._last, now))
            self._images += images
        self._last = now

    def read(self) -> tuple[list[float], int]:
        """Step times of the window in ms and the images trained on in it. Waits for the device."""
        if self._cuda and self._spans:
            self._spans[-1][1].synchronize()  # type: ignore[union-attr]  # sync: the window ends with its last step
        times = [self._between(*span) for span in self._spans]
        images = self._images
        self._spans, self._images = [], 0
        return times, images

    def _mark(self) -> Mark:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            return event
        if self._device.type == "mps":
            torch.mps.synchronize()  # sync: MPS steps are asynchronous and its events give no pairwise times
        return time.perf_counter()

    def _between(self, start: Mark, end: Mark) -> float:
        if isinstance(start, float):
            return (end - start) * 1e3  # type: ignore[operator]
        return start.elapsed_time(end)  # type: ignore[arg-type]
