"""Notices a loss scale that collapses: gradients overflow whatever it is, and nothing is learnt any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SKIPS_IN_A_ROW = 20
FLOOR = 1.0
ADVICE = "a smaller optimizer.lr, training.clip_norm, or backend=native_bf16"


class ScaleWatch:
    """Says once that the scale fell below FLOOR or that `SKIPS_IN_A_ROW` steps in a row were skipped."""

    def __init__(self, advice: str = ADVICE) -> None:
        self._advice = advice
        self._skipped = 0
        self._in_a_row = 0
        self.collapsed_at: int | None = None

    def check(
        self, step: int, steps: int, scale: float, skipped: int, advice: str | None = None
    ) -> str | None:
        """Check the scale and the skipped steps so far, `steps` after the last time. `advice` instead of its
        own is that of a loss that was never finite, whose gradients no learning rate has spoiled.
        """
        new = skipped - self._skipped
        self._in_a_row = self._in_a_row + new if new >= steps else 0
        self._skipped = skipped
        if self.collapsed_at is not None or (scale >= FLOOR and self._in_a_row < SKIPS_IN_A_ROW):
            return None
        self.collapsed_at = step
        what = f"fell to {scale:g}" if scale < FLOOR else f"overflowed {self._in_a_row} steps in a row"
        said = f"step {step}: the loss scale {what} ({skipped} steps skipped so far)"
        if advice is not None:
            return f"{said}, and the loss was never finite: {advice}"
        return f"{said}; gradients overflow whatever the scale. Try {self._advice}"

    def state_dict(self) -> dict[str, int | None]:
        return {"skipped": self._skipped, "in_a_row": self._in_a_row, "collapsed_at": self.collapsed_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._skipped, self._in_a_row = state["skipped"], state["in_a_row"]
        self.collapsed_at = state["collapsed_at"]
