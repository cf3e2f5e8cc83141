"""Step times on the device: events on a GPU, the clock on a CPU; warm-up, logging and evaluation left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ampcompare.machine.device import Mark, mark, wait_until


class StepTimer:
    """Times optimizer steps between `resume` and `pause`.

    Call `resume()` before the first step of a window, `lap(images)` after each step, `pause()` to end the
    window. The first `warmup_steps` laps of the whole run are not counted.
    """

    def __init__(self, device: torch.device, warmup_steps: int) -> None:
        self._device = device
        self._warmup = warmup_steps
        self._laps = 0
        self._last: Mark = 0.0
        self._fetched: Mark | None = None
        self._window = Window()

    @property
    def warm(self) -> bool:
        """Whether warm-up is over."""
        return self._laps >= self._warmup

    def resume(self) -> None:
        """Start a window here: what happened since the last `pause` is not timed."""
        self._last = mark(self._device)
        self._window = Window()

    def restart(self) -> None:
        """The next lap begins here, in the same window: what came since the last one is no step's time."""
        self._last = mark(self._device)

    def fetched(self) -> None:
        """The step's batch is there: what came before was making it."""
        self._fetched = mark(self._device)

    def lap(self, images: int, *, cold: bool = False) -> None:
        """End a step that trained on so many images. A `cold` one, which compiled something, is left out."""
        self._laps += 1
        now = mark(self._device)
        if self._laps > self._warmup and not cold:
            self._window.spans.append((self._last, now))
            if self._fetched is not None:
                self._window.data_spans.append((self._last, self._fetched))
            self._window.images += images
        self._last, self._fetched = now, None

    def pause(self) -> Window:
        """End the window. Does not wait for the device: `Window.times_ms` does, when it is asked."""
        window, self._window = self._window, Window()
        return window


@dataclass
class Window:
    """The steps between a `resume` and a `pause`: where each began and ended, and the images of them all."""

    spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    images: int = 0
    data_spans: list[tuple[Mark, Mark]] = field(default_factory=list)

    def times_ms(self) -> list[float]:
        """The time of each step. Waits until the device has done the last of them."""
        return self._between_ms(self.spans)

    def data_times_ms(self) -> list[float]:
        """The part of each step that went into making its batch. As `times_ms`."""
        return self._between_ms(self.data_spans)

    def _between_ms(self, spans: list[tuple[Mark, Mark]]) -> list[float]:
        if not self.spans:
            return []
        last = self.spans[-1][1]
        if isinstance(last, float):
            return [(end - start) * 1e3 for start, end in spans]  # type: ignore[operator]
        wait_until(last)  # sync: the window ends when its last step has
        return [start.elapsed_time(end) for start, end in spans]  # type: ignore[union-attr,arg-type]
