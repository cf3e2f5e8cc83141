"""The one protocol by which the speed of trainings is compared; does not import torch.

`ampcompare bench` follows it with a process for each training, `why explain` and `why guard` within one
process, `benchmarks/overhead.py` with two programs:

1. Warm-up. Each training takes steps until nothing is left to compile or capture and the caches are warm.
   The first step never counts: it creates the optimizer's states and chooses kernels.
2. Rounds. In a round every training takes a turn, in random order. Other work on the machine, clock speeds
   and heat change from minute to minute, for all turns of a round alike.
3. A turn. One step is not timed, because others have used caches and clocks in between. The steps that follow
   are timed together, and the clock starts and stops on an idle device.
4. A training whose step takes too long for rounds is measured by its warm-up.

Speeds are compared within rounds, by the functions of `analysis.statistics.median_interval`.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

# Warm-up ends when either is reached. Steps that compile or capture do not count.
WARM_UP_STEPS, WARM_UP_SECONDS = 12, 1.0
MAX_ROUNDS = 48
MIN_TURN_SECONDS = 0.1
SLOW_FRACTION = 0.1  # of the seconds for all rounds: a training with longer steps takes no turns


class StepTimer:
    """Times the steps of one training in this process.

    Args:
        step: Takes the next step; returns whether something was compiled or captured in it.
        wait: Waits until the device has done all queued work.
        cold_steps: The first steps that do not count as warm, at least one.
    """

    def __init__(self, step: Callable[[], bool], wait: Callable[[], None], cold_steps: int = 1) -> None:
        self._step = step
        self._wait = wait
        self._cold_steps = cold_steps

    def warm_up(self) -> float:
        """Take steps until nothing is left to compile or capture and the caches are warm.

        Returns:
            Median seconds of a warm step.
        """
        warm: list[float] = []
        for number in count(1):
            began = time.perf_counter()
            is_cold = self._step()
            self._wait()  # sync: the clock stops when the work is done
            seconds = time.perf_counter() - began
            if is_cold or number <= self._cold_steps:
                continue
            warm.append(seconds)
            if len(warm) >= WARM_UP_STEPS or sum(warm) >= WARM_UP_SECONDS:
                break
        return statistics.median(warm)  # other work may have delayed one of them

    def time_turn(self, steps: int) -> float:
        """Return the mean seconds of so many steps, after one step that is not timed."""
        self._step()
        self._wait()  # sync: the clock starts on an idle device
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._wait()  # sync: the clock stops when the work is done
        return (time.perf_counter() - began) / steps


def count_steps(turn_seconds: float, step_seconds: float) -> int:
    """Return the timed steps of a turn of about so many seconds."""
    return max(1, round(turn_seconds / step_seconds))


def seconds_per_turn(seconds: float, trainings: int, max_rounds: int = MAX_ROUNDS) -> float:
    """Return the seconds of a turn, so that all rounds together take about `seconds`."""
    return max(MIN_TURN_SECONDS, seconds / max_rounds / trainings)


class Contestant(Protocol):
    """A training that is measured."""

    @property
    def is_active(self) -> bool:
        """Whether the training can take a turn: it has not failed, and its steps are not too long."""

    def take_turn(self, seconds: float) -> None:
        """Take a turn of about so many seconds, and keep what was measured."""


def run_rounds(
    contestants: Sequence[Contestant],
    seconds: float,
    turn_seconds: float,
    *,
    max_rounds: int = MAX_ROUNDS,
    is_enough: Callable[[int, float], bool] = lambda number, seconds_left: False,
) -> None:
    """Let the trainings take turns in rounds, in random order.

    The rounds end when the seconds are over, after at least one round, and as soon as the first training or
    all others can take no turn, since there is nothing to compare then.

    Args:
        contestants: The trainings; the first one is the baseline.
        seconds: The limit of all rounds together.
        turn_seconds: About how long a turn takes.
        is_enough: Called after each round with its number, from 1, and the seconds that are left; returns
            whether the rounds may end.
    """
    order = random.Random()  # noqa: S311
    deadline = time.monotonic() + seconds
    for number in range(1, max_rounds + 1):
        active = [contestant for contestant in contestants if contestant.is_active]
        is_comparison = len(active) > 1 and active[0] is contestants[0]
        if not is_comparison or (number > 1 and time.monotonic() > deadline):
            return
        for contestant in order.sample(active, len(active)):
            contestant.take_turn(turn_seconds)
        if is_enough(number, max(0.0, deadline - time.monotonic())):
            return
