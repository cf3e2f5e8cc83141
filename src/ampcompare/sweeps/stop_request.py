"""A request to stop a sweep: Ctrl-C, a batch system's signal, or the end of the terminal.

The first signal lets the runs end in order. A further Ctrl-C kills them. A batch system warns with one signal
and ends with another, so its further signals change nothing: the runs need the time in between.
"""

import time
from types import FrameType

from ampcompare.runtime.signals import StopRequest

SAME_REQUEST_SECONDS = 0.3  # a terminal and a wrapper may both send a signal for one Ctrl-C


class SweepStopRequest(StopRequest):
    """A stop request that the driver of a sweep, or a task of it, polls.

    Attributes:
        is_at_once: Whether the runs are to be killed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_at_once = False
        self._last = float("-inf")

    def on_second_interrupt(self) -> None:
        """Ask for the runs to be killed. Nothing is raised: the driver has to wait for their end."""
        self.is_at_once = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= SAME_REQUEST_SECONDS:
            self._last = now
            super()._on_signal(number, frame)
