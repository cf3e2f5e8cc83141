"""Measure where the time of a step goes: interleaved steps of several trainings, and their ops by kind."""

import os
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ampcompare.analysis.statistics.median_interval import MIN_DIFFERENCE, ratio_of, side_of
from ampcompare.data.batch import Batch
from ampcompare.system.device import is_cuda, wait_for
from ampcompare.system.interleaved_timing import (
    SLOW_FRACTION,
    StepTimer,
    count_steps,
    run_rounds,
    seconds_per_turn,
)
from ampcompare.training.trainer import Trainer

PROFILED_STEPS = 5  # of each training
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
    """Return whether the rounds show that one is faster, by more than `bench` counts as a difference."""
    _, low, high = ratio_of(base, other)
    return low is not None and high is not None and side_of(low, high, MIN_DIFFERENCE) != 0


def measure_steps(
    trainers: Sequence[Trainer], batches: Sequence[Batch], device: torch.device, seconds: float
) -> list[StepTimes]:
    """Time the steps of several trainings in interleaved rounds, then profile a few steps of each.

    The profiler runs after all rounds, so its own cost is in none of them. Waits for the device.

    Args:
        batches: The micro-batches of a step.
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
    """Return milliseconds of a step of each training in each round, by the protocol of `ampcompare bench`.

    If the steps of one training are too long for rounds, each has one value, that of its warm-up.
    """
    timed = [_TimedTrainer(trainer, batches, device, seconds) for trainer in trainers]
    run_rounds(timed, seconds, seconds_per_turn(seconds, len(timed)))
    return [[1e3 * value for value in each.seconds or [each.warm_seconds]] for each in timed]


class _TimedTrainer:
    """A trainer that takes turns with others in this process.

    Args:
        trainer: The trainer. It takes the warm-up here.
        batches: The micro-batches of a step.
        device: Where it trains.
        seconds: The limit of all rounds together.

    Attributes:
        warm_seconds: Seconds of a step in the warm-up.
        seconds: Seconds of a step in each round.
        is_active: Whether its steps are short enough for rounds.
    """

    def __init__(
        self, trainer: Trainer, batches: Sequence[Batch], device: torch.device, seconds: float
    ) -> None:
        self._context = trainer.precision.training_context
        self._timer = StepTimer(lambda: trainer.compute(batches).compiled, partial(wait_for, device))
        with self._context():
            self.warm_seconds = self._timer.warm_up()
        self.seconds: list[float] = []
        self.is_active = self.warm_seconds <= SLOW_FRACTION * seconds

    def take_turn(self, seconds: float) -> None:
        """Take a turn of about so many seconds."""
        # A context for this turn alone: the functions that O1 patches would slow down the others, too.
        with self._context():
            self.seconds.append(self._timer.time_turn(count_steps(seconds, self.warm_seconds)))


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
