"""Rows that go into a user's own open W&B run, without the user's rows being refused.

W&B's client drops a row whose `step=` is below the run's step, without an error, and each committed row
increments the run's step. So our rows are added to the row that the user has open, one of our steps to each.
If the user logs nothing, waiting rows are committed, but only while the run's step stays behind the
training's step, because the user may pass that as `step=`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ampcompare import metrics


class ExternalRunBuffer:
    """Passes rows to `log(row, commit=)` in the training thread, between two calls of the user.

    Args:
        run: The user's W&B run.
        log: Its method `log`, or a function around that.
    """

    def __init__(self, run: Any, log: Callable[..., object]) -> None:
        self._run = run
        self._log = log
        self._waiting: deque[dict[str, Any]] = deque()
        self._open: int | None = None  # our step whose values are in the run's open row
        self._opened_at = run.step  # the run's step when that row was begun
        self._base = run.step
        self._first: int | None = None  # the steps of the training at the first call

    def put(self, row: Mapping[str, Any]) -> None:
        """Log a row, now or later. Rows of one step are merged."""
        step = row[metrics.STEP]
        if self._waiting and self._waiting[-1][metrics.STEP] == step:
            self._waiting[-1].update(row)
        elif not self._waiting and self._open == step and not self._has_moved():
            self._log_open(row)
        else:
            self._waiting.append(dict(row))
        self.advance(step)

    def advance(self, step: int) -> None:
        """Log the rows that may be logged after so many steps of the training."""
        if self._first is None:
            self._first = step
        # The user may count from 0 and log more at this step. The user's number is then one less than ours.
        last = step - self._first - 1
        while self._waiting and (self._has_moved() or self._run.step - self._base < last):
            self._log_next()

    def close(self) -> None:
        """Log all waiting rows. The user's next row commits the last one, or the end of the run does."""
        while self._waiting:
            self._log_next()

    def _has_moved(self) -> bool:
        """Return whether our last row is committed, or there was none."""
        return self._open is None or self._run.step != self._opened_at

    def _log_next(self) -> None:
        if not self._has_moved():
            self._log({}, commit=True)
        self._log_open(self._waiting.popleft())

    def _log_open(self, row: Mapping[str, Any]) -> None:
        self._log(row, commit=False)
        self._open = row[metrics.STEP]
        self._opened_at = self._run.step
