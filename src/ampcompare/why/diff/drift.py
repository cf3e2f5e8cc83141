"""How far the weights of two trainings part over a number of steps, beside what mere chance does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampcompare.data.batch import Batch
from ampcompare.train.step import Trainer
from ampcompare.why.diff.arithmetic import arithmetic
from ampcompare.why.diff.look import in_double, wide


@dataclass(frozen=True)
class Course:
    """A training of some steps: what moved of all weights, float64, after each step, and the losses."""

    moved: list[Tensor]
    losses: list[float]
    skipped: int


@dataclass(frozen=True)
class Drift:
    """How two courses part, after each step: the norm of the difference of the weights over that of how far
    the second has moved by then (None before it has moved), and the difference of the losses.
    """

    weights: list[float | None]
    losses: list[float | None]

    @property
    def last(self) -> float | None:
        return self.weights[-1] if self.weights else None


def course(trainer: Trainer, steps: Sequence[Sequence[Batch]], seed: int, *, double: bool = False) -> Course:
    """Train on the steps given, from the first weights on."""
    if double:
        in_double(trainer)
    first, moved, losses = _weights(trainer), [], []
    before = int(trainer.precision.skipped_steps())  # sync: a look waits wherever it looks
    with arithmetic(double=double), trainer.precision.session():
        for number, batches in enumerate(steps):
            torch.manual_seed(seed + number)
            result = trainer.step([wide(batch) for batch in batches] if double else list(batches))
            losses.append(float(result.loss))  # sync: as above
            moved.append(_weights(trainer) - first)
    return Course(moved, losses, int(trainer.precision.skipped_steps()) - before)


def drift(one: Course, other: Course) -> Drift:
    weights = []
    for mine, theirs in zip(one.moved, other.moved, strict=True):
        size = float(theirs.norm())
        value = float((mine - theirs).norm()) / size if size else math.nan
        weights.append(value if math.isfinite(value) else None)
    pairs = zip(one.losses, other.losses, strict=True)
    return Drift(weights, [d if math.isfinite(d := a - b) else None for a, b in pairs])


def _weights(trainer: Trainer) -> Tensor:
    """All that the optimizer updates, as one tensor on the host."""
    every = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    return torch.cat([p.detach().cpu().double().flatten() for p in every])
