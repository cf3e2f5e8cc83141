"""A request to stop a sweep: Ctrl-C, a batch system's signal, or the end of the terminal.

The first signal lets the runs end in order. A further Ctrl-C kills them. A batch system warns with one signal
and ends with another, so its further signals change nothing: the runs need the time in between.
"""

import signal
import time
from types import FrameType
from typing import Any, Self

from ampcompare.program.stopping import WORDS, heard

SAME_REQUEST_SECONDS = 0.3  # a terminal and a wrapper may both send a signal for one Ctrl-C


class StopRequest:
    """While entered, signals become a request that the driver looks at.

    Attributes:
        signal: Number of the first signal; 0 where none came.
        is_requested: Whether the runs are to end in order.
        is_at_once: Whether the runs are to be killed.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.is_requested = self.is_at_once = False
        self._last = float("-inf")
        self._before: dict[int, Any] = {}

    def request(self) -> None:
        """Ask for the stop, for a reason other than a signal."""
        self.is_requested = True

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in heard(tuple(WORDS))}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < SAME_REQUEST_SECONDS:
            return
        self._last = now
        if not self.signal:
            self.signal, self.is_requested = number, True
        elif number == signal.SIGINT:
            self.is_at_once = True
