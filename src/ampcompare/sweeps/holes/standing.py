"""The points of a sweep by how they stand: which are done, and which are holes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.records.tree import lookup
from ampcompare.report.runs.ending import NO_EXIT, Outcome, outcome_of
from ampcompare.sweeps.holes.grid import Grid, GridPoint, typed

INTERRUPTED_CODES = (129, 130, 143)  # of a run that somebody stopped; hyperband's, under W&B's agent, is 255


class State(Enum):
    """The word for how a point of a sweep stands. What is finished or stopped early is whole."""

    FINISHED = "finished"
    EARLY = "stopped early"
    RUNNING = "running"
    FAILED = "failed"
    CRASHED = "crashed"
    STOPPED = "stopped"
    REFUSED = "refused"
    MISSING = "missing"

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do at the point."""
        return self in (State.FINISHED, State.EARLY)


@dataclass(frozen=True)
class Attempt:
    """One run of a sweep: what its record says, and what the sweep's own database does. `config` tells which
    point it is. `is_draw`: of a search it is known to be a draw of its own, and to repeat no other.
    """

    run_id: str
    state: State
    why: str = ""
    config: Any = field(default_factory=dict, repr=False)
    began: float = 0.0  # seconds since 1970
    value: float | None = None  # the last of the sweep's metric
    is_draw: bool = False


@dataclass(frozen=True)
class Standing:
    """A point, and the run that tells how it stands (None: there is none), with all there are."""

    point: GridPoint
    state: State
    attempt: Attempt | None = None
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class Holes:
    """Every point of a sweep as it stands; `strays` are runs of the sweep that are at none of its points.

    `not_begun` counts the runs of a search that are to be and have no values yet; None: nobody knows.
    """

    grid: Grid
    standings: tuple[Standing, ...]
    strays: tuple[Attempt, ...] = ()
    not_begun: int | None = 0

    @property
    def counts(self) -> dict[State, int]:
        """How many points stand how, by state in its order; those of a search that have not begun, too."""
        found = Counter(standing.state for standing in self.standings)
        found[State.MISSING] += self.not_begun or 0
        return {state: found[state] for state in State if found[state]}

    @property
    def open(self) -> tuple[Standing, ...]:
        """The points at which something is left to do, or going on."""
        return tuple(standing for standing in self.standings if not standing.state.is_whole)

    @property
    def sentence(self) -> str:
        """`7 of the 9 points of sweep compare are done: 1 failed, 1 missing.`"""
        total = len(self.standings) + (self.not_begun or 0)
        if self.is_whole:
            return f"All {total} points of sweep {self.grid.name} are done." if total > 1 else ""
        done = total - len(self.open) - (self.not_begun or 0)
        left = ", ".join(f"{n} {state.value}" for state, n in self.counts.items() if not state.is_whole)
        return f"{done} of the {total} points of sweep {self.grid.name} are done: {left}."

    @property
    def is_whole(self) -> bool:
        """Whether every point has been run."""
        return not self.open and not self.not_begun


def is_of(run: RunRecord, name: str) -> bool:
    """Whether a run says that it is of the sweep of this name, or of this id."""
    return name in (run.sweep_id, run.group)


def attempt_of(run: RunRecord, *, prunes: bool = False, metric: str | None = None) -> Attempt:
    """A run as an attempt at a point, its outcome in the words of the report."""
    outcome, why = outcome_of(run, metric or metrics.EVAL_ACCURACY)
    began = run.started_at.timestamp() if run.started_at else 0.0
    value = _last_value(run, metric) if metric else None
    state = _state(run, outcome, why, prunes)
    why = NO_EXIT if state is State.CRASHED and not why else "" if state is State.RUNNING else why
    return Attempt(run.id, state, why, run.config, began, value)


def _last_value(run: RunRecord, metric: str) -> float | None:
    values = run.values(metric)
    return float(values[-1]) if len(values) else run.summary_number(metric)


def _state(run: RunRecord, outcome: Outcome, why: str, prunes: bool) -> State:
    if outcome is Outcome.RUNNING or why == NO_EXIT:
        return State.RUNNING if outcome is Outcome.RUNNING else State.CRASHED
    if outcome is Outcome.STOPPED:
        by_hand = run.exit_code in INTERRUPTED_CODES or run.ended_as == "preempted"
        return State.EARLY if prunes and not by_hand else State.STOPPED
    return State(outcome.value)


def holes_of(grid: Grid, attempts: Iterable[Attempt]) -> Holes:
    """Every point by the runs that there are of it: one that is done makes it whole, whatever failed before;
    else one that goes on; else the newest tells.
    """
    # What is done first, so that of points with the same values each gets one.
    tried = sorted(attempts, key=lambda a: (not a.state.is_whole, a.state is not State.RUNNING, -a.began))
    if grid.points is None:
        return _of_search(grid, tried)
    at: list[list[tuple[Attempt, bool]]] = [[] for _ in grid.points]
    strays = []
    for attempt in tried:
        numbers, is_own = grid.candidates(attempt.config)
        if numbers:
            at[min(numbers, key=lambda number: len(at[number]))].append((attempt, is_own))
        else:
            strays.append(attempt)
    return Holes(grid, tuple(map(_standing, grid.points, at)), tuple(strays))


def _standing(point: GridPoint, found: Sequence[tuple[Attempt, bool]]) -> Standing:
    all_of_it = tuple(attempt for attempt, _ in found)
    # One that was refused because it is the same run as this point says nothing of the point.
    telling = next((a for a, is_own in found if is_own or a.state is not State.REFUSED), None)
    return Standing(point, telling.state if telling else State.MISSING, telling, all_of_it)


def _of_search(grid: Grid, tried: Sequence[Attempt]) -> Holes:
    """A search has the points that it has drawn: each set of values is one, and more where it was drawn more
    than once.
    """
    by_values: dict[Any, list[Attempt]] = {}
    for attempt in tried:
        drawn = tuple(typed(lookup(attempt.config, key)) for key in grid.keys)
        by_values.setdefault(drawn, []).append(attempt)
    standings: list[Standing] = []
    for of_values in sorted(by_values.values(), key=lambda some: min(a.began for a in some)):
        values = {key: lookup(of_values[0].config, key) for key in grid.keys}
        for some in _by_draw(of_values):
            standings.append(_standing(GridPoint(len(standings), values), [(a, True) for a in some]))
    left = None if grid.planned is None else max(0, grid.planned - len(standings))
    return Holes(grid, tuple(standings), (), left)


def _by_draw(tried: Sequence[Attempt]) -> list[Sequence[Attempt]]:
    """The attempts at one set of values, those that are done first, by the draws that they are attempts at.

    What is whole or goes on is not run again, so that each such run was drawn by itself. Of the others only
    the sweep's own notes tell which repeats which.
    """
    settled = sum(attempt.state.is_whole or attempt.state is State.RUNNING for attempt in tried)
    count = max(1, settled, sum(attempt.is_draw for attempt in tried))
    return [*([attempt] for attempt in tried[: count - 1]), tried[count - 1 :]]
