"""Figures by backend, and how they compare with the baseline. Plain arithmetic, so that it can be checked by hand.

What is compared: the ratio of median throughputs, the relative change of median peak memory, the difference of mean
accuracies in percentage points. Ranges are from the lowest to the highest run; they are no confidence intervals,
and from one run there is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampcompare.report.figures import RunFigures
from ampcompare.report.palette import styles


@dataclass(frozen=True)
class Spread:
    """Centre and range of one figure over `n` runs."""

    n: int
    mean: float
    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are there, None without any."""
    numbers = [v for v in values if v is not None]
    if not numbers:
        return None
    return Spread(len(numbers), statistics.fmean(numbers), statistics.median(numbers), min(numbers), max(numbers))


@dataclass(frozen=True)
class Group:
    """The runs of one backend. `counted` are those whose figures count: the finished ones, or all if none finished."""

    label: str
    runs: tuple[RunFigures, ...]
    counted: tuple[RunFigures, ...]

    @property
    def is_unfinished(self) -> bool:
        """Whether the figures come from runs that did not finish."""
        return bool(self.counted) and all(r.run.state != "finished" for r in self.counted)

    @property
    def seeds(self) -> int:
        """How many different seeds the counted runs had."""
        return len({str(r.seed) for r in self.counted})

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices of the counted runs; an empty name where none was recorded."""
        return frozenset(r.device for r in self.counted)

    def figure(self, name: str) -> Spread | None:
        """The spread of one attribute of RunFigures over the counted runs."""
        return spread(getattr(r, name) for r in self.counted)


def group_runs(figures: Sequence[RunFigures]) -> list[Group]:
    """One group per label, known backends first in their fixed order."""
    groups = []
    for style in styles(f.label for f in figures):
        runs = tuple(f for f in figures if f.label == style.label)
        finished = tuple(f for f in runs if f.run.state == "finished")
        groups.append(Group(style.label, runs, finished or tuple(f for f in runs if f.rows)))
    return groups


@dataclass(frozen=True)
class Comparison:
    """One group against the baseline. None is what cannot be said: a figure is missing, or the devices differ.

    `speedup` is a ratio of median images per second (above 1: faster), `speedup_range` the lowest and highest run
    over the baseline's median, None from a single run. `memory_change` is relative (-0.4: 40 % less), and
    `accuracy_points` the difference of mean best accuracies in percentage points (above 0: better), not given for runs
    that did not finish: they are not as far.
    """

    group: Group
    same_device: bool
    speedup: float | None
    speedup_range: tuple[float, float] | None
    memory_change: float | None
    accuracy_points: float | None
    last_accuracy_points: float | None


def compare(group: Group, baseline: Group) -> Comparison:
    """Compare a group with the baseline. Speed and memory are compared on one and the same device only."""
    same_device = len(group.devices | baseline.devices) == 1
    speedup = memory = None
    span = None
    ours, theirs = group.figure("images_per_second"), baseline.figure("images_per_second")
    if same_device and ours and theirs and theirs.median > 0:
        speedup = ours.median / theirs.median
        if ours.n > 1:
            span = (ours.low / theirs.median, ours.high / theirs.median)
    ours, theirs = group.figure("peak_mib"), baseline.figure("peak_mib")
    if same_device and ours and theirs and theirs.median > 0:
        memory = ours.median / theirs.median - 1
    return Comparison(
        group,
        same_device,
        speedup,
        span,
        memory,
        _points(group, baseline, "best_accuracy"),
        _points(group, baseline, "last_accuracy"),
    )


def _points(group: Group, baseline: Group, name: str) -> float | None:
    if group.is_unfinished or baseline.is_unfinished:
        return None
    ours, theirs = group.figure(name), baseline.figure(name)
    return (ours.mean - theirs.mean) * 100 if ours and theirs else None
