"""A typical training loop, and a tracker that stores its rows in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampcompare import Recorder
from ampcompare.tracking.tracker import Tracker


@dataclass
class InMemoryTracker(Tracker):
    """A tracker that stores everything in memory."""

    run_id: str = "in_memory"
    rows: list[dict[str, Any]] = field(default_factory=list)
    start: Any = None
    noted: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[Any] = field(default_factory=list)

    def update_summary(self, facts: Mapping[str, Any]) -> None:
        """Store facts of the run."""
        self.noted |= facts

    def log(self, row: Mapping[str, Any]) -> None:
        """Store a row."""
        self.rows.append(dict(row))

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """Store summary and exit code."""
        self.summary = dict(summary)
        self.exit_codes.append(exit_code)
        return None

    def values_of(self, key: str) -> list[Any]:
        """Return the values of a metric."""
        return [row[key] for row in self.rows if key in row]


@dataclass
class Loop:
    """A typical training loop.

    Attributes:
        factor: Multiplies the loss of a step, so that its gradients may overflow.
        skipped_steps: The number of steps that the scaler skipped.
    """

    scaler: Any = None
    fused: bool = False
    steps: int = 30
    zero_first: bool = True
    factor: Callable[[int], float] = lambda step: 1.0
    skipped_steps: int = 0
    gradients: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=self.fused)

    def __call__(self, record: Recorder) -> None:
        """Run the loop."""
        for step in range(1, self.steps + 1):
            if self.zero_first:
                self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).square().mean() * self.factor(step)
            if self.scaler is None:
                loss.backward()
                self.store_gradients(1.0)
                self.optimizer.step()
            else:
                before = self.scaler.get_scale()
                self.scaler.scale(loss).backward()
                self.store_gradients(before)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.skipped_steps += self.scaler.get_scale() < before
            if not self.zero_first:
                self.optimizer.zero_grad()
            record.step(loss=loss, samples=8)

    def store_gradients(self, scale: float) -> None:
        """Store the unscaled gradients of a step."""
        self.gradients.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]) / scale)
