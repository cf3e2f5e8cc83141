"""The clock of a run: what every row begins with."""

from __future__ import annotations

import time
from typing import Any

from ampcompare import metrics

Row = dict[str, Any]


class Clock:
    """The time of a run and the part of it that went into training: what every row begins with."""

    def __init__(self) -> None:
        self._began = self._resumed = time.perf_counter()
        self._train_seconds = 0.0

    def resume(self) -> None:
        """From here on it is training."""
        self._resumed = time.perf_counter()

    def pause(self) -> None:
        """Up to here it was."""
        now = time.perf_counter()
        self._train_seconds += now - self._resumed
        self._resumed = now

    def row_at(self, step: int, position: float | None) -> Row:
        """The row of a step and a position in epochs (None: not known), with the clocks as they stand."""
        return {
            metrics.STEP: step,
            **({} if position is None else {metrics.EPOCH: position}),
            metrics.ELAPSED: time.perf_counter() - self._began,
            metrics.TRAIN_SECONDS: self._train_seconds,
        }

    def state_dict(self) -> Row:
        return {"elapsed_seconds": time.perf_counter() - self._began, "train_seconds": self._train_seconds}

    def load_state_dict(self, state: Row) -> None:
        self._began = time.perf_counter() - state["elapsed_seconds"]
        self._train_seconds = state["train_seconds"]
