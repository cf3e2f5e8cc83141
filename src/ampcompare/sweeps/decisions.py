"""What the driver of a sweep decides: from the journal's state and an event to actions, without any effect.

`decide` starts nothing, writes nothing and keeps nothing. The driver (driver.py) carries the actions out. So
a test can play any order of events, and a new driver decides as the killed one would have done.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.interim_looks import Look, next_seeds
from ampcompare.sweeps.journal import SweepRun, SweepState
from ampcompare.sweeps.run_end import RunChange
from ampcompare.sweeps.samplers import falls_behind
from ampcompare.sweeps.sweep import Sweep


@dataclass(frozen=True)
class Situation:
    """What a decision depends on, beside the event.

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


# Events


@dataclass(frozen=True)
class RunChanged:
    """A run was started, or has ended.

    Attributes:
        change: What became of it.
        values: Every value of the metric that the run has logged, in order; empty while it runs.
    """

    change: RunChange
    values: Sequence[float] = ()


@dataclass(frozen=True)
class RunLogged:
    """A running run has logged its metric.

    Attributes:
        index: Number of the run's point.
        values: Every value so far, in order.
    """

    index: int
    values: Sequence[float]


@dataclass(frozen=True)
class StopRequested:
    """A user or a batch system asks the sweep to stop.

    Attributes:
        at_once: Whether the runs are to be killed.
    """

    at_once: bool = False


@dataclass(frozen=True)
class SlotsFree:
    """The executor may take more runs."""


@dataclass(frozen=True)
class AllEnded:
    """No run is running, and none is left to start."""


@dataclass(frozen=True)
class Looked:
    """The runs have been compared at an interim look.

    Attributes:
        look: What came of it.
    """

    look: Look


Event = RunChanged | RunLogged | StopRequested | SlotsFree | AllEnded | Looked

# Actions


@dataclass(frozen=True)
class Append:
    """Write an event to the journal.

    Attributes:
        event: Its kind.
    """

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Propose:
    """Choose the parameters of the point with this number, and write the run to the journal."""

    index: int


@dataclass(frozen=True)
class Start:
    """Give the runs of these points to the executor.

    Attributes:
        groups: The runs of each process, in their order. The process trains them one after the other.
    """

    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Cancel:
    """Ask the runs of these points to end, with a checkpoint; or kill them."""

    indices: tuple[int, ...]
    at_once: bool = False


@dataclass(frozen=True)
class LookAtRuns:
    """Look whether the report has decided every claim."""


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    line: str


Action = Append | Propose | Start | Cancel | LookAtRuns | Say


def decide(situation: Situation, event: Event) -> list[Action]:
    """Return what to do about an event. The actions are to be carried out in their order."""
    match event:
        case RunChanged():
            return _note_change(situation, event)
        case RunLogged():
            run = situation.state.runs[event.index]
            return _compare_at_bands(situation, run, event.values, has_ended=False)
        case StopRequested():
            return _stop(situation, event)
        case SlotsFree():
            return _fill_slots(situation)
        case AllEnded():
            looked = [group.look for group in situation.state.seed_groups]
            is_due = situation.looks and not situation.is_stopping and situation.sweep.seeds not in looked
            return [LookAtRuns()] if is_due else []
        case Looked():
            return _add_seeds(situation, event.look)


def _note_change(situation: Situation, event: RunChanged) -> list[Action]:
    """Write down that a run was started, or how it ended."""
    change, run = event.change, situation.state.runs[event.change.index]
    known = {"index": run.index, "run_id": run.run_id}
    if change.state is RunState.RUNNING:
        if run.state is RunState.RUNNING:
            return []
        return [Append("started", {**known, "process": dict(change.process)})]
    if run.state.is_final:
        return []
    actions = _compare_at_bands(situation, run, event.values, has_ended=True)
    value = None
    if change.state in (RunState.FINISHED, RunState.STOPPED) and event.values:
        value = event.values[-1] if math.isfinite(event.values[-1]) else None
    end = {"value": value, "exit_code": change.exit_code, "by_signal": change.by_signal}
    return [*actions, Append("ended", {**known, "state": change.state, **end})]


def _compare_at_bands(
    situation: Situation, run: SweepRun, values: Sequence[float], *, has_ended: bool
) -> list[Action]:
    """Compare a run at the bands of hyperband that it has reached, and stop it if it falls behind.

    A run may reach its last bands and end before the driver reads them. They count for the other runs.
    """
    early, metric = situation.sweep.hyperband, situation.sweep.metric
    if early is None or metric is None or run.is_stopped_early:
        return []
    # What is not finite counts as the worst number that JSON has.
    worst = -sys.float_info.max if metric.maximize else sys.float_info.max
    best_of = max if metric.maximize else min
    actions: list[Action] = []
    for band in early.bands:
        if band > len(values):
            break
        if band in run.bands:
            continue
        reached = [value if math.isfinite(value) else worst for value in values[:band]]
        value = reached[-1] if early.strict else best_of(reached)
        others = situation.state.runs.values()
        everyone = [value, *(other.bands[band] for other in others if band in other.bands)]
        is_behind = falls_behind(value, everyone, early.eta, maximize=metric.maximize)
        is_stopped = is_behind and not has_ended
        band_fields = {"index": run.index, "band": band, "value": value, "stopped": is_stopped}
        if is_stopped:
            # In this order: a driver that is killed in between compares the run again when it goes on.
            return [*actions, Cancel((run.index,)), Append("band", band_fields)]
        actions.append(Append("band", band_fields))
    return actions


def _stop(situation: Situation, event: StopRequested) -> list[Action]:
    """Ask all running runs to end, and those that wait in a process, which may begin meanwhile."""
    waiting = [index for indices in situation.assigned for index in indices]
    running = (*(run.index for run in situation.state.own_running), *waiting)
    if not running:
        return []
    if event.at_once:
        return [Cancel(running, at_once=True)]
    return [Say("stopping: waiting for the runs to end; Ctrl-C again kills them"), Cancel(running)]


def _fill_slots(situation: Situation) -> list[Action]:
    """Start interrupted runs again, then begin new points; the runs of a series are given to one process.

    This is the only place that starts a run again. `run_end.state_of_end` says which runs are PREEMPTED.
    """
    state, sweep = situation.state, situation.sweep
    # A process lives also between two of its runs, when none of them runs.
    free = situation.slots - max(len(state.own_running), len(situation.assigned))
    if situation.is_stopping or free <= 0:
        return []
    assigned = {index for indices in situation.assigned for index in indices}
    waiting = [run.index for run in state.startable if run.index not in assigned]
    begin = 1 + max(state.runs, default=-1)
    new = range(begin, _end_of_new_points(situation, begin, begin + free * sweep.seeds_per_process))
    series: dict[int, list[int]] = {}
    for index in (*waiting, *new):
        number = sweep.points[index].series if sweep.seeds_per_process > 1 else index
        series.setdefault(number, []).append(index)
    groups = tuple(tuple(indices) for indices in [*series.values()][:free])
    proposals = [Propose(index) for indices in groups for index in indices if index in new]
    return [*proposals, Start(groups)] if groups else []


def _end_of_new_points(situation: Situation, begin: int, end: int) -> int:
    """Return the end of the new points that may begin: `end` at most, none once the target is reached."""
    state, metric, total = situation.state, situation.sweep.metric, situation.sweep.total()
    if metric is not None and metric.target is not None:
        finished = state.with_state(RunState.FINISHED)
        if any(run.value is not None and metric.is_reached(run.value) for run in finished):
            return begin
    return end if total is None else min(end, total)


def _add_seeds(situation: Situation, look: Look) -> list[Action]:
    """Add the seeds up to the next look of the plan, unless the look has decided every claim."""
    sweep = situation.sweep
    ahead = next((number for number in situation.looks if number > sweep.seeds), sweep.seeds)
    seeds = () if look.is_over else next_seeds(sweep, ahead - sweep.seeds)
    messages = list(look.messages)
    if seeds:
        messages.append(f"adding {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    elif not look.is_over:
        messages.append("this was the last look of the plan, so open claims stay undecided")
    fields = {"seeds": [*seeds], "look": sweep.seeds, "messages": messages}
    return [Append("seeds", fields), *map(Say, messages)]
