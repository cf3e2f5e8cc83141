"""Where the time of a step goes: real steps of several trainings that take turns, and their ops by kind."""

import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ampcompare.analysis.statistics.median_interval import ratio_of
from ampcompare.data.batch import Batch
from ampcompare.system.device import is_cuda, wait_for
from ampcompare.training.trainer import Trainer

FEWEST = 3  # rounds
PROFILED = 5  # steps of each under the profiler
TURN = 50.0  # ms that a turn takes about
LONG = 0.1  # of the seconds: a training whose step takes longer is told from one
CASTS, OPTIMIZER, OTHER, IDLE = "casts", "optimizer", "other", "no op runs"
KINDS = {  # by the name of an op, or of one that it is a part of
    OPTIMIZER: re.compile(r"^Optimizer\.step"),
    CASTS: re.compile(r"^aten::_to_copy$|^aten::_foreach_copy_$"),
    "convolution": re.compile("conv"),
    "matrix products": re.compile("mm$|mm_|linear|matmul|attention|lstm|gru|rnn"),
    "normalisation": re.compile("norm"),
}


@dataclass(frozen=True)
class Times:
    """Milliseconds of a step: in each round, and of its ops by kind.

    The kinds are those of the median profiled step, IDLE is what they leave of the median round.
    """

    rounds: tuple[float, ...]
    kinds: dict[str, float]

    @property
    def median(self) -> float:
        """The middle one of the rounds."""
        return statistics.median(self.rounds)

    def share(self, kind: str) -> float:
        """Return the fraction of the median round that ops of this kind take."""
        return self.kinds.get(kind, 0.0) / self.median


def ratio(base: Sequence[float], other: Sequence[float]) -> tuple[float, str]:
    """How many times as fast the other is, by its milliseconds, and how well that is known."""
    value, low, high = ratio_of(base, other)
    rounds = min(len(base), len(other))
    span = "" if low is None else f"{low:.2f} to {high:.2f} in 95 %, "
    return value, f"{span}{rounds} rounds, taking turns" if rounds > 1 else "one step"


def is_shown(base: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the rounds show that one is faster: the interval of the ratio excludes 1."""
    _, low, high = ratio_of(base, other)
    return low is not None and high is not None and not low <= 1 <= high


def measure(
    trainers: Sequence[Trainer], batches: Sequence[Batch], device: torch.device, seconds: float
) -> list[Times]:
    """Rounds in which each training takes a step, in an order drawn anew, for about so many seconds; then a
    few steps of each under the profiler, whose own cost is so in none of the rounds. Waits for the device.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler reports each start on stderr
    rounds = in_turns(trainers, batches, device, seconds)
    turns = [[_by_kind(trainer, batches, device) for trainer in trainers] for _ in range(PROFILED)]
    found = []
    for own, profiled in zip(rounds, zip(*turns, strict=True), strict=True):
        kinds = sorted(profiled, key=lambda one: sum(one.values()))[len(profiled) // 2]
        idle = max(0.0, statistics.median(own) - sum(kinds.values()))
        found.append(Times(tuple(own), kinds | {IDLE: idle}))
    return found


def in_turns(
    trainers: Sequence[Trainer], batches: Sequence[Batch], device: torch.device, seconds: float
) -> list[list[float]]:
    """Milliseconds of a step of each training in each of the rounds, the mean of a few steps where they are
    short; of a training that is slow one step alone.
    """
    longest = 1e3 * LONG * seconds
    rounds = []
    for trainer in trainers:
        _timed(trainer, batches, device)  # makes the optimizer's states, chooses kernels
        first = _timed(trainer, batches, device)
        if first > longest:  # once more: other work may have held it up
            first = min(first, _timed(trainer, batches, device))
        rounds.append([first])
    steps = [max(1, round(TURN / first)) for (first,) in rounds]
    quick = [i for i, (first,) in enumerate(rounds) if first <= longest]
    ends = time.monotonic() + seconds
    while quick and (len(rounds[quick[0]]) < FEWEST or time.monotonic() < ends):
        random.Random(len(rounds[quick[0]])).shuffle(quick)  # noqa: S311
        for i in quick:
            rounds[i].append(_timed(trainers[i], batches, device, steps[i]))
    return rounds


def _timed(trainer: Trainer, batches: Sequence[Batch], device: torch.device, steps: int = 1) -> float:
    # In a session of its turn alone: what O1 puts in the place of PyTorch's functions costs the others, too.
    with trainer.precision.training_context():
        wait_for(device)  # sync: the clock starts on an idle device
        began = time.perf_counter()
        for _ in range(steps):
            trainer.compute(batches)
        wait_for(device)  # sync: the clock stops when the work is done
        return 1e3 * (time.perf_counter() - began) / steps


def _by_kind(trainer: Trainer, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Milliseconds of the ops of a step themselves: on a GPU of their kernels."""
    on_gpu = is_cuda(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with trainer.precision.training_context(), profile(activities=activities) as found:
        trainer.compute(batches)
        wait_for(device)  # sync: kernels that still run are the steps', too
    kinds: Counter[str] = Counter()
    for event in found.events() or ():
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if event.name.startswith("aten::") and own:
            kinds[_kind(event)] += own / 1e3
    return dict(kinds)


def _kind(event: Any) -> str:
    names = [one.name for one in _with_parents(event)]
    for kind in (OPTIMIZER, CASTS):  # whatever is a part of these
        if any(KINDS[kind].search(name) for name in names):
            return kind
    return next((kind for name in names for kind, pattern in KINDS.items() if pattern.search(name)), OTHER)


def _with_parents(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent
