"""A row of the queue: one run of a sweep, or one look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RUN, LOOK = "run", "look"
RUNNING = "running"


@dataclass(frozen=True)
class Row:
    """A run by its place in the sweep. `plan` is what of the sweep's plan is its own: place, block, arm."""

    place: int
    run_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    kind: str = RUN
    state: str = RUNNING
    attempt: int = 1
    starts: int = 1
    owner: str = ""
    beat: int = 0
    value: float | None = None
    bands: Mapping[str, float] = field(default_factory=dict)

    @property
    def begins_again(self) -> bool:
        """Whether it may find what an earlier start of the run left."""
        return self.starts > 1
