"""Step times on the device: events on a GPU, the clock on a CPU; warm-up, logging and evaluation left out."""

from __future__ import annotations

import time

import torch


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
        self._marks: list[torch.cuda.Event | float] = []
        self._images: list[int] = []

    @property
    def warm(self) -> bool:
        """Whether warm-up is over."""
        return self._laps >= self._warmup

    def resume(self) -> None:
        """Start a window here: what happened since the last `read` is not timed."""
        self._marks = [self._mark()]
        self._images = []

    def lap(self, images: int) -> None:
        """End one step that trained on so many images."""
        self._laps += 1
        if self._laps <= self._warmup:
            self._marks = [self._mark()]
            return
        self._marks.append(self._mark())
        self._images.append(images)

    def read(self) -> tuple[list[float], int]:
        """Step times of the window in ms and the images trained on in it. Waits for the device."""
        if self._cuda and self._marks:
            self._marks[-1].synchronize()  # type: ignore[union-attr]  # sync: the window ends when its last step has
        pairs = zip(self._marks, self._marks[1:], strict=False)
        times = [self._between(a, b) for a, b in pairs]
        images = sum(self._images)
        self._marks, self._images = [], []
        return times, images

    def _mark(self) -> torch.cuda.Event | float:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            return event
        if self._device.type == "mps":
            torch.mps.synchronize()  # sync: MPS steps are asynchronous and its events give no pairwise times
        return time.perf_counter()

    def _between(self, start: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
        if isinstance(start, float):
            return (end - start) * 1e3  # type: ignore[operator]
        return start.elapsed_time(end)  # type: ignore[arg-type]
