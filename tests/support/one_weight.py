"""One weight under a backend, whose gradient is what a test says."""

from __future__ import annotations

import torch
from torch import nn

from ampcompare.precision import build_precision


class OneWeight:
    """The weight is [1, 2], its optimizer's rate 0.5."""

    def __init__(
        self,
        backend: str,
        optimizer: str = "SGD",
        fused: bool = False,
        momentum: float = 0.0,
        **options: object,
    ) -> None:
        self.precision = build_precision(backend, **options)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        extra = {"momentum": momentum} if momentum else {}
        self.optimizer = getattr(torch.optim, optimizer)([self.weight], lr=0.5, fused=fused, **extra)
        self.precision.prepare(nn.Module(), self.optimizer)

    def backward(self, slope: float, *, sync: bool = True) -> None:
        with self.precision.forward_context():
            loss = (self.weight * slope).sum()
        self.precision.backward(loss, sync=sync)

    def step(self) -> None:
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad()

    @property
    def scale(self) -> float:
        return self.precision.scale_factor().item()

    @property
    def skipped(self) -> int:
        return self.precision.skipped_steps().item()
