"""Step times on the device: events on a GPU, the clock on a CPU; warm-up, logging and evaluation left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ampcompare.machine.device import Mark, marker, wait_until


class StepTimer:
    """Times optimizer steps between `resume` and `pause`.

    Call `resume()` before the first step of a window, `lap(images)` after each step, `pause()` to end the
    window. The first `warmup_steps` laps of the whole run are not counted.
    """

    def __init__(self, device: torch.device, warmup_steps: int) -> None:
        self._mark = marker(device)
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
        self._last = self._mark()
        self._window = Window()

    def restart(self) -> None:
        """The next lap begins here, in the same window: what came since the last one is no step's time."""
        self._last = self._mark()

    def fetched(self) -> None:
        """The step's batch is there: what came before was making it."""
        self._fetched = self._mark()

    def lap(self, images: int, *, cold: bool = False) -> None:
        """End a step that trained on so many images. A `cold` one, which compiled something, is left out."""
        self._laps += 1
        now = self._mark()
        if self._laps > self._warmup and not cold:
            window = self._window
            window.laps.append((self._last, self._fetched, now))
            window.images += images
        self._last, self._fetched = now, None

    def pause(self) -> Window:
        """End the window. Does not wait for the device: `Window.times_ms` does, when it is asked."""
        window, self._window = self._window, Window()
        return window


@dataclass
class Window:
    """The steps between a `resume` and a `pause`, with their images: where each began, had its batch (None if
    nobody said so) and ended.
    """

    laps: list[tuple[Mark, Mark | None, Mark]] = field(default_factory=list)
    images: int = 0

    def times_ms(self) -> list[float]:
        """The time of each step. Waits until the device has done the last of them."""
        return self._between_ms([(began, ended) for began, _, ended in self.laps])

    def data_times_ms(self) -> list[float]:
        """The part of each step that went into making its batch. As `times_ms`."""
        return self._between_ms([(began, there) for began, there, _ in self.laps if there is not None])

    def _between_ms(self, spans: list[tuple[Mark, Mark]]) -> list[float]:
        if not self.laps:
            return []
        last = self.laps[-1][-1]
        if isinstance(last, float):
            return [(end - start) * 1e3 for start, end in spans]  # type: ignore[operator]
        wait_until(last)  # sync: the window ends when its last step has
        return [start.elapsed_time(end) for start, end in spans]  # type: ignore[union-attr,arg-type]
