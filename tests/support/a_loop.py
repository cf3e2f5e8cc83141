"""A loop as people write it, and a record kept in a list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampcompare import Recorder
from ampcompare.tracking.tracker import Tracker


@dataclass
class Kept(Tracker):
    """What a record was given."""

    run_id: str = "kept"
    rows: list[dict[str, Any]] = field(default_factory=list)
    told: Any = None
    noted: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    ended: list[Any] = field(default_factory=list)

    def update_summary(self, facts: Mapping[str, Any]) -> None:
        self.noted |= facts

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        self.summary = dict(summary)
        self.ended.append(exit_code)
        return None

    def of(self, key: str) -> list[Any]:
        return [row[key] for row in self.rows if key in row]


@dataclass
class Loop:
    """A training loop as a user would write it.

    A step's `factor` multiplies its loss, so that its gradients may overflow.
    """

    scaler: Any = None
    fused: bool = False
    steps: int = 30
    zero_first: bool = True
    factor: Callable[[int], float] = lambda step: 1.0
    drops: int = 0
    gradients: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=self.fused)

    def __call__(self, record: Recorder) -> None:
        for step in range(1, self.steps + 1):
            if self.zero_first:
                self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).square().mean() * self.factor(step)
            if self.scaler is None:
                loss.backward()
                self.keep(1.0)
                self.optimizer.step()
            else:
                before = self.scaler.get_scale()
                self.scaler.scale(loss).backward()
                self.keep(before)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.drops += self.scaler.get_scale() < before
            if not self.zero_first:
                self.optimizer.zero_grad()
            record.step(loss=loss, samples=8)

    def keep(self, scale: float) -> None:
        self.gradients.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]) / scale)
