"""Rows that go into somebody else's open W&B run, without its own rows being refused.

W&B's client drops a row whose `step=` is below the run's, without an error, and each row that is committed
moves the run's on by one. So ours are put into the row that the run's owner has open, one of our steps into
each. What would wait for long, as the owner logs nothing, is committed, but only while the run's step stays
behind the count of the training's: that is what the owner may give as `step=`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ampcompare import metrics


class ExternalRunBuffer:
    """Hands rows on by `log(row, commit=)`, in the thread that trains: between two calls of the owner's."""

    def __init__(self, run: Any, log: Callable[..., object]) -> None:
        self._run, self._log = run, log
        self._waiting: deque[dict[str, Any]] = deque()
        self._open: int | None = None  # the step of ours that is in the run's open row
        self._opened_at = self._base = run.step
        self._first: int | None = None  # the training's steps when the first was told of

    def put(self, row: Mapping[str, Any]) -> None:
        """Hand on a row, now or later. Those of one step become one."""
        step = row[metrics.STEP]
        if self._waiting and self._waiting[-1][metrics.STEP] == step:
            self._waiting[-1].update(row)
        elif not self._waiting and self._open == step and not self._has_moved():
            self._hand(row)
        else:
            self._waiting.append(dict(row))
        self.go_on(step)

    def go_on(self, step: int) -> None:
        """So many steps of the training are over: hand on what can be."""
        self._first = step if self._first is None else self._first
        # The owner may count from 0, and log more at this step: its number is one less than ours then.
        while self._waiting and (self._has_moved() or self._run.step - self._base < step - self._first - 1):
            self._hand_next()

    def close(self) -> None:
        """Hand on all that waits. The last one is committed with the owner's next row, or the run's end."""
        while self._waiting:
            self._hand_next()

    def _has_moved(self) -> bool:
        return self._open is None or self._run.step != self._opened_at

    def _hand_next(self) -> None:
        if not self._has_moved():
            self._log({}, commit=True)
        self._hand(self._waiting.popleft())

    def _hand(self, row: Mapping[str, Any]) -> None:
        self._log(row, commit=False)
        self._open, self._opened_at = row[metrics.STEP], self._run.step
