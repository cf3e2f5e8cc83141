"""A sweep looked at: how every point of it stands, and which are holes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.report.words import plural
from ampcompare.sweeps import definition
from ampcompare.sweeps.file import Objective
from ampcompare.sweeps.holes.points import Points, typed
from ampcompare.sweeps.holes.runs import Attempt, Runs, State, runs_of
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.run import Request


@dataclass(frozen=True)
class Standing:
    """A point as it stands: by the first of its runs, if there are any. `row` is that of a worker for it."""

    row: Row
    values: Mapping[str, Any]
    attempts: tuple[Attempt, ...] = ()

    @property
    def state(self) -> State:
        return self.attempts[0].state if self.attempts else State.MISSING

    @property
    def why(self) -> str:
        return self.attempts[0].why if self.attempts else ""


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands; `not_begun` counts the runs of a search that are to be and have no values yet."""

    runs: Runs
    points: Points
    standings: Sequence[Standing]
    not_begun: int
    remarks: Sequence[str]

    @property
    def open(self) -> list[Standing]:
        """The points at which something is left to do, or going on."""
        return [standing for standing in self.standings if not standing.state.is_whole]

    @property
    def is_whole(self) -> bool:
        return not self.open and not self.not_begun

    @property
    def is_bound(self) -> bool:
        """Whether only what was begun can be run, as nobody here knows what else there is to be."""
        sweep = self.runs.sweep
        is_open = sweep.on_server or sweep.run_cap is None or not self.runs.is_known
        return self.points.rows is None and is_open

    @property
    def can_begin(self) -> bool:
        """Whether runs that have no values yet can be begun here."""
        return bool(self.not_begun) and not self.is_bound

    @property
    def counted(self) -> str:
        """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
        counts = Counter(standing.state for standing in self.standings)
        counts[State.MISSING] += self.not_begun
        said = ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state]) or "none"
        total = plural(len(self.standings) + self.not_begun, "point")
        return f"{self.runs.sweep.name}: {total}: {said}{'; whole' if self.is_whole else ''}"


def look(source: str, words: Sequence[str], request: Request) -> Seen:
    """Every point of a sweep as it stands; as `runs_of`."""
    runs = runs_of(source, words, request)
    sweep = runs.sweep
    began = definition.definition(sweep, runs.ready.words)
    points = Points(sweep, runs.ready.same, json.dumps([sweep.name, began]))
    standings, strays = _standings(points, runs.attempts)
    not_begun = max(0, (points.planned or 0) - len(standings))
    remarks = [f"left out, as they cannot run: {text}" for text in points.left_out]
    begun = [standing for standing in standings if standing.attempts]
    is_less = not_begun or len(begun) < len(standings)
    if is_less and sweep.metric and _is_reached(sweep.metric, runs.attempts):
        standings, not_begun = begun, 0
        remarks.append("metric.target is reached: what had not begun then is not needed")
    if points.rows is None and points.planned is None:
        remarks.append("a search without run_cap has no end, so that no point of it is missing")
    if strays:
        count = plural(len(strays), "run")
        remarks.append(f"{count} of this sweep at none of its points ({strays[0].run_id})")
    seen = Seen(runs, points, standings, not_begun, remarks)
    if runs.unasked and not seen.is_whole:
        remarks.append(f"{runs.unasked}: some of them may run")
    return seen


def _is_reached(metric: Objective, attempts: Sequence[Attempt]) -> bool:
    """Whether a finished run has come to the target of the metric, where there is one."""
    if metric.target is None:
        return False
    values = [a.value for a in attempts if a.state is State.FINISHED and a.value is not None]
    return any(v >= metric.target if metric.maximize else v <= metric.target for v in values)


def _standings(points: Points, attempts: Sequence[Attempt]) -> tuple[list[Standing], list[Attempt]]:
    """Every point by the runs that there are of it, and the runs at none: one that is done makes it whole,
    whatever failed before; else one that goes on; else the newest tells.
    """
    # What is done first, so that of points with the same values each gets one.
    tried = sorted(attempts, key=lambda a: (not a.state.is_whole, a.state is not State.RUNNING, -a.began))
    if points.rows is None:
        return _drawn(points, tried), []
    at: list[list[Attempt]] = [[] for _ in points.rows]
    strays = []
    for attempt in tried:
        if numbers := points.find(attempt.config):
            number = min(numbers, key=lambda number: len(at[number]))
            at[attempt.place if attempt.place in numbers else number].append(attempt)
        elif attempt.state is not State.REFUSED:
            strays.append(attempt)
    rows_and_runs = zip(points.rows, at, strict=True)
    return [Standing(row, points.named(row.parameters), tuple(runs)) for row, runs in rows_and_runs], strays


def _drawn(points: Points, tried: Sequence[Attempt]) -> list[Standing]:
    """A search has the points that it has drawn: each set of values is one, and more where it was drawn more
    than once. What is whole or goes on was drawn by itself, and so was what a database has; of the others
    nobody knows which repeats which.
    """
    by_values: dict[Any, list[Attempt]] = {}
    for attempt in tried:
        by_values.setdefault(tuple(map(typed, points.values(attempt.config))), []).append(attempt)
    found: list[Standing] = []
    for runs in sorted(by_values.values(), key=lambda some: min(a.began for a in some)):
        settled = sum(a.state.is_whole or a.state is State.RUNNING for a in runs)
        count = max(1, settled, sum(a.place is not None for a in runs))
        values = points.named(runs[0].config)
        for some in [*([run] for run in runs[: count - 1]), runs[count - 1 :]]:
            places = [a.place for a in some if a.place is not None]
            row = Row(places[0] if places else len(found), parameters=some[0].config)
            found.append(Standing(row, values, tuple(some)))
    return found
