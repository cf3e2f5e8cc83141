"""What the driver of a sweep decides: from the journal's state to the next step, without any effect.

These functions start nothing, write nothing and keep nothing. The driver (driver.py) carries the steps out.
So a test can play any order of events, and a new driver decides as the killed one would have done.

Seeds are added in groups until the report has decided every claim (`--until-decided`). Looking often and
stopping at the first answer that one likes finds differences where there are none. So the looks are planned
(`plan.looks`), every run carries the plan, and the report tests at a level that keeps 5% over all looks
together.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count, islice

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.distributions import is_whole
from ampcompare.sweeps.journal import SeedGroup, SweepRun, SweepState
from ampcompare.sweeps.samplers import falls_behind
from ampcompare.sweeps.sweep import Sweep


@dataclass(frozen=True)
class Situation:
    """What the next step depends on.

    Attributes:
        state: The sweep as its journal tells it.
        sweep: The sweep, with the seeds that were added so far.
        slots: How many processes the executor takes at a time.
        looks: Numbers of seeds for interim looks, with `--until-decided`.
        is_stopping: Whether no further run may start.
        assigned: For each process that lives, the runs that wait in it.
    """

    state: SweepState
    sweep: Sweep
    slots: int
    looks: Sequence[int] = ()
    is_stopping: bool = False
    assigned: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Train:
    """Give the runs of these points to the executor.

    Attributes:
        groups: The points of each process, in their order. The process trains them one after the other. A
            point that was not begun yet gets a run first.
    """

    groups: tuple[tuple[int, ...], ...]


class Step(Enum):
    """A next step other than to train."""

    WAIT = auto()
    LOOK_AT_RUNS = auto()  # whether the report has decided every claim
    OVER = auto()


@dataclass(frozen=True)
class Look:
    """The result of an interim look at the runs.

    Attributes:
        is_over: Whether more seeds would decide nothing more.
        messages: What to tell the user.
    """

    is_over: bool
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Band:
    """A band of hyperband that a run has reached.

    Attributes:
        band: After how many values of the metric runs are compared.
        value: The run's metric there.
        is_behind: Whether the run is not among the best ones.
    """

    band: int
    value: float
    is_behind: bool


def next_step(situation: Situation) -> Train | Step:
    """Return what the driver does next."""
    state, looks = situation.state, situation.looks
    if groups := _groups_to_start(situation):
        return Train(groups)
    if state.own_running or situation.assigned:
        return Step.WAIT
    looked = [group.look for group in state.seed_groups]
    if looks and not situation.is_stopping and situation.sweep.seeds not in looked:
        return Step.LOOK_AT_RUNS
    return Step.OVER


def _groups_to_start(situation: Situation) -> tuple[tuple[int, ...], ...]:
    """Return the points to start: interrupted ones, then new ones; those of a series are for one process.

    This is the only place that starts a run again. `run_end.state_of_end` says which runs are PREEMPTED.
    """
    state, sweep = situation.state, situation.sweep
    # A process lives also between two of its runs, when none of them runs.
    free = situation.slots - max(len(state.own_running), len(situation.assigned))
    if situation.is_stopping or free <= 0:
        return ()
    assigned = {index for indices in situation.assigned for index in indices}
    waiting = [run.index for run in state.startable if run.index not in assigned]
    begin = 1 + max(state.runs, default=-1)
    new = range(begin, _end_of_new_points(situation, begin, begin + free * sweep.seeds_per_process))
    series: dict[int, list[int]] = {}
    for index in (*waiting, *new):
        number = sweep.points[index].series if sweep.seeds_per_process > 1 else index
        series.setdefault(number, []).append(index)
    return tuple(tuple(indices) for indices in [*series.values()][:free])


def _end_of_new_points(situation: Situation, begin: int, end: int) -> int:
    """Return the end of the new points that may begin: `end` at most, none once the target is reached."""
    state, metric, total = situation.state, situation.sweep.metric, situation.sweep.total()
    if metric is not None and metric.target is not None:
        finished = state.with_state(RunState.FINISHED)
        if any(run.value is not None and metric.is_reached(run.value) for run in finished):
            return begin
    return end if total is None else min(end, total)


def reached_bands(state: SweepState, sweep: Sweep, run: SweepRun, values: Sequence[float]) -> Iterator[Band]:
    """Yield the bands of hyperband that a run has reached and the journal does not have.

    Args:
        values: Every value of the metric that the run has logged, in order.
    """
    early, metric = sweep.hyperband, sweep.metric
    if early is None or metric is None or run.is_stopped_early:
        return
    # What is not finite counts as the worst number that JSON has.
    worst = -sys.float_info.max if metric.maximize else sys.float_info.max
    best_of = max if metric.maximize else min
    for band in early.bands:
        if band > len(values):
            break
        if band in run.bands:
            continue
        reached = [value if math.isfinite(value) else worst for value in values[:band]]
        value = reached[-1] if early.strict else best_of(reached)
        others = [other.bands[band] for other in state.runs.values() if band in other.bands]
        yield Band(band, value, falls_behind(value, [value, *others], early.eta, maximize=metric.maximize))


def seeds_after_look(sweep: Sweep, looks: Sequence[int], look: Look) -> SeedGroup:
    """Return the seeds up to the next look of the plan; none if the look has decided every claim."""
    ahead = next((number for number in looks if number > sweep.seeds), sweep.seeds)
    seeds = () if look.is_over else next_seeds(sweep, ahead - sweep.seeds)
    messages = list(look.messages)
    if seeds:
        messages.append(f"adding {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    elif not look.is_over:
        messages.append("this was the last look of the plan, so open claims stay undecided")
    return SeedGroup(seeds, sweep.seeds, tuple(messages))


def seeds_for_first_look(sweep: Sweep, looks: Sequence[int]) -> SeedGroup | None:
    """Return the seeds that are missing for the first look that the sweep has not passed."""
    if sweep.seeds in looks:
        return None
    ahead = next(look for look in looks if look > sweep.seeds)
    return SeedGroup(next_seeds(sweep, ahead - sweep.seeds))


def next_seeds(sweep: Sweep, amount: int) -> tuple[int, ...]:
    """Return the seeds that continue those of the sweep: counted on from the last one, none twice."""
    own = sweep.seed
    assert own is not None
    have = own.values() + [seed for group in sweep.added for seed in group]
    return tuple(islice((seed for seed in count(have[-1] + 1) if seed not in have), amount))


def check_can_be_decided(sweep: Sweep, looks: Sequence[int]) -> None:
    """Check that seeds can be added to a sweep until every claim is decided.

    Raises:
        UserError: If they cannot.
    """
    option, seed, problem = "--until-decided", sweep.seed, ""
    target = sweep.metric.target if sweep.metric else None
    ending = {"run_cap": sweep.run_cap, "early_terminate": sweep.hyperband, "metric.target": target}
    cutting = next((key for key, value in ending.items() if value is not None), None)
    if not sweep.is_grid:
        problem = f"method={sweep.method!r}: {option} needs a grid; use method: grid"
    elif seed is None:
        problem = (
            f"parameters: {option} adds seeds, but the file varies no seed; add seed: {{values: [1, 2, 3]}}"
        )
    elif sweep.compared is None:
        problem = (
            f"parameters: {option} needs a parameter to compare; "
            "add for example backend: {values: [none, native]}"
        )
    elif wrong := [value for value in seed.examples() if not is_whole(value, 0)]:
        problem = (
            f"parameters.seed={wrong[0]!r}: {option} adds the next whole numbers; use whole numbers as seeds"
        )
    elif sweep.seeds > looks[-1]:
        problem = (
            f"parameters.seed: {sweep.seeds} seeds: more than the {looks[-1]} seeds of the last look; "
            "set plan.looks"
        )
    elif cutting:
        problem = (
            f"{cutting}: {option} needs all runs of each seed, but this can end runs or the sweep early; "
            "leave it out"
        )
    if problem:
        raise UserError(f"{sweep.path}: {problem}")
