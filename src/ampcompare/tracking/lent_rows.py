"""Rows that go into somebody else's open W&B run, without its own rows being refused.

W&B's client drops a row whose `step=` is below the run's, without an error, and each row that is committed
moves the run's on by one. So ours are put into the row that the run's owner has open, one of our steps into
each, and wait for the next one. What would wait for long, as the owner logs nothing, is committed, but only
while the run's step stays behind the count of the training's: that is what the owner may give as `step=`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ampcompare import metrics

Row = Mapping[str, Any]
CLOCK = {
    metrics.STEP,
    metrics.EPOCH,
    metrics.ELAPSED,
    metrics.TRAIN_SECONDS,
}  # what several rows of a step share


class LentRows:
    """Hands rows on by `log(row, commit=)`, in the thread that trains: between two calls of the owner's."""

    def __init__(self, run: Any, log: Callable[..., object]) -> None:
        self._run, self._log = run, log
        self._waiting: deque[dict[str, Any]] = deque()
        self._open: dict[str, Any] | None = None  # what of ours is in the run's open row
        self._opened_at = self._base = run.step
        self._first: int | None = None  # the training's steps when the first was told of
        self._steps = 0

    def put(self, row: Row) -> None:
        """Hand on a row, now or later."""
        last = self._waiting[-1] if self._waiting else None if self._has_moved() else self._open
        if last is None or last[metrics.STEP] != row[metrics.STEP] or (last.keys() & row.keys()) - CLOCK:
            self._waiting.append(dict(row))
        elif self._waiting:
            last.update(row)
        else:
            self._hand({**last, **row})
        self.go_on(row[metrics.STEP])

    def go_on(self, step: int) -> None:
        """So many steps of the training are over: hand on what can be."""
        if self._first is None:
            self._first = step
        self._steps = max(self._steps, step)
        while self._waiting and self._makes_room():
            self._hand(self._waiting.popleft())

    def close(self) -> None:
        """Hand on all that waits. The last one is committed with the owner's next row, or the run's end."""
        while self._waiting:
            if not self._has_moved():
                self._commit()
            self._hand(self._waiting.popleft())

    def _makes_room(self) -> bool:
        if self._has_moved():
            return True
        # The owner may count from 0, and log more at this step: its number is one less than ours then.
        if self._run.step - self._base >= self._steps - (self._first or 0) - 1:
            return False
        self._commit()
        return True

    def _has_moved(self) -> bool:
        return self._open is None or self._run.step != self._opened_at

    def _commit(self) -> None:
        self._log({}, commit=True)

    def _hand(self, row: dict[str, Any]) -> None:
        self._log(row, commit=False)
        self._open, self._opened_at = row, self._run.step
