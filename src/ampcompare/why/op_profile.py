"""Measure where the time of a step goes: interleaved steps of several trainings, and their ops by kind."""

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

MIN_ROUNDS = 3
PROFILED_STEPS = 5  # of each training
TURN_MS = 50.0  # about the length of a training's turn in a round
SLOW_FRACTION = 0.1  # of the seconds: of a training with longer steps, one step is measured
CASTS, OPTIMIZER, OTHER, IDLE = "casts", "optimizer", "other", "no op runs"
KINDS = {  # patterns for the name of an op, or of an op that called it
    OPTIMIZER: re.compile(r"^Optimizer\.step"),
    CASTS: re.compile(r"^aten::_to_copy$|^aten::_foreach_copy_$"),
    "convolution": re.compile("conv"),
    "matrix products": re.compile("mm$|mm_|linear|matmul|attention|lstm|gru|rnn"),
    "normalisation": re.compile("norm"),
}


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a step.

    Attributes:
        rounds: A step's time in each round.
        kinds: The ops of the median profiled step, by kind. IDLE is the rest of the median round.
    """

    rounds: tuple[float, ...]
    kinds: dict[str, float]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def fraction(self, kind: str) -> float:
        """Return the fraction of the median round that ops of this kind take."""
        return self.kinds.get(kind, 0.0) / self.median


def speed_ratio(base: Sequence[float], other: Sequence[float]) -> tuple[float, str]:
    """Return how many times as fast the other training is.

    Args:
        base: Milliseconds of a step in each round.
        other: The same of the other training.

    Returns:
        The ratio, and its 95% interval and number of rounds as text.
    """
    value, low, high = ratio_of(base, other)
    rounds = min(len(base), len(other))
    interval = "" if low is None else f"95% CI {low:.2f} to {high:.2f}, "
    return value, f"{interval}{rounds} rounds" if rounds > 1 else "one step each"


def is_difference_shown(base: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the rounds show that one is faster: the interval of the ratio excludes 1."""
    _, low, high = ratio_of(base, other)
    return low is not None and high is not None and not low <= 1 <= high


def measure_steps(
    trainers: Sequence[Trainer], batches: Sequence[Batch], device: torch.device, seconds: float
) -> list[StepTimes]:
    """Time the steps of several trainings in interleaved rounds, then profile a few steps of each.

    The profiler runs after all rounds, so its own cost is in none of them. Waits for the device.

    Args:
        trainers: The trainings.
        batches: The micro-batches of a step.
        device: Where the trainings run.
        seconds: About how long the rounds take together.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler reports each start on stderr
    rounds = measure_interleaved(trainers, batches, device, seconds)
    profiles = [[_profile(trainer, batches, device) for trainer in trainers] for _ in range(PROFILED_STEPS)]
    times = []
    for own_rounds, own_profiles in zip(rounds, zip(*profiles, strict=True), strict=True):
        kinds = sorted(own_profiles, key=lambda kinds: sum(kinds.values()))[len(own_profiles) // 2]
        idle = max(0.0, statistics.median(own_rounds) - sum(kinds.values()))
        times.append(StepTimes(tuple(own_rounds), kinds | {IDLE: idle}))
    return times


def measure_interleaved(
    trainers: Sequence[Trainer], batches: Sequence[Batch], device: torch.device, seconds: float
) -> list[list[float]]:
    """Return milliseconds of a step of each training in each round.

    In a round every training takes a turn, in random order. A turn of short steps has several, and counts
    with their mean. Of a slow training only one step is measured.
    """
    max_ms = 1e3 * SLOW_FRACTION * seconds
    rounds = []
    for trainer in trainers:
        _time_step(trainer, batches, device)  # creates the optimizer's states, chooses kernels
        first = _time_step(trainer, batches, device)
        if first > max_ms:  # other work may have delayed it
            first = min(first, _time_step(trainer, batches, device))
        rounds.append([first])
    steps = [max(1, round(TURN_MS / first)) for (first,) in rounds]
    quick = [i for i, (first,) in enumerate(rounds) if first <= max_ms]
    deadline = time.monotonic() + seconds
    while quick and (len(rounds[quick[0]]) < MIN_ROUNDS or time.monotonic() < deadline):
        random.Random(len(rounds[quick[0]])).shuffle(quick)  # noqa: S311
        for i in quick:
            rounds[i].append(_time_step(trainers[i], batches, device, steps[i]))
    return rounds


def _time_step(trainer: Trainer, batches: Sequence[Batch], device: torch.device, steps: int = 1) -> float:
    # A context for this turn alone: the functions that O1 patches would slow down the other trainings, too.
    with trainer.precision.training_context():
        wait_for(device)  # sync: the clock starts on an idle device
        start = time.perf_counter()
        for _ in range(steps):
            trainer.compute(batches)
        wait_for(device)  # sync: the clock stops when the work is done
        return 1e3 * (time.perf_counter() - start) / steps


def _profile(trainer: Trainer, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Return milliseconds of the ops of a step by kind: on a GPU of their kernels."""
    on_gpu = is_cuda(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    # Without acc_events, torch 2.11 warns that a next cycle would clear the events. There is one cycle.
    profiling = profile(activities=activities, acc_events=True)
    with trainer.precision.training_context(), profiling as profiler:
        trainer.compute(batches)
        wait_for(device)  # sync: kernels that still run belong to the step
    kinds: Counter[str] = Counter()
    for event in profiler.events() or ():
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if event.name.startswith("aten::") and own:
            kinds[_kind(event)] += own / 1e3
    return dict(kinds)


def _kind(event: Any) -> str:
    names = [event.name for event in _with_parents(event)]
    for kind in (OPTIMIZER, CASTS):  # whatever they call counts as theirs
        if any(KINDS[kind].search(name) for name in names):
            return kind
    return next((kind for name in names for kind, pattern in KINDS.items() if pattern.search(name)), OTHER)


def _with_parents(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent
