"""A typical training loop, and a W&B run that stores its rows in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
import wandb
from torch import Tensor

from ampcompare import Recorder, metrics
from support.outside import Outside


class InMemoryRun:
    """A run of W&B's client that stores everything in memory. `init` stands for `wandb.init`.

    Attributes:
        config: The config that the run was started with; None before.
        rows: What was logged.
        summary: The summary of the run.
        exit_codes: The exit code of each end.
    """

    disabled = offline = resumed = False
    url = ""

    def __init__(self, folder: Path) -> None:
        self.dir = str(folder / "files")
        self.settings = SimpleNamespace(sync_file=str(folder / "run.wandb"))
        self.config: Any = None
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_codes: list[int] = []

    def init(self, *, config: Mapping[str, Any], **options: Any) -> Self:
        """Start the run."""
        self.config = dict(config)
        return self

    def define_metric(self, name: str, **options: Any) -> None:
        """Do nothing."""

    def mark_preempting(self) -> None:
        """Do nothing."""

    def log(self, row: Mapping[str, Any], commit: bool | None = None) -> None:
        """Store a row. The file grows, as that of a run whose rows reach the disk."""
        self.rows.append(dict(row))
        with Path(self.settings.sync_file).open("a") as file:
            file.write("row")

    def finish(self, exit_code: int) -> None:
        """Store the exit code."""
        self.exit_codes.append(exit_code)

    def values_of(self, key: str) -> list[Any]:
        """Return the values of a metric."""
        return [row[key] for row in self.rows if key in row]

    def by_step(self, key: str) -> dict[int, Any]:
        """Return the values of a metric by step."""
        return {row[metrics.STEP]: row[key] for row in self.rows if key in row}


def record_in_memory(outside: Outside, monkeypatch: pytest.MonkeyPatch, folder: Path) -> InMemoryRun:
    """Return the run of every Recorder in the test, in place of one of W&B's client."""
    run = InMemoryRun(folder)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(folder))
    outside.replace(wandb, "init", run.init)
    outside.replace(wandb, "teardown", lambda: None)
    return run


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
