"""A sweep looked at: how every point of it stands, and which are holes.

Which point a run is, its config tells. A program may have recorded the words that it was given, or what it
made of them (`1e-3`, which YAML reads as a text), so that values are compared by what they read as.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ampcompare.records.tree import lookup
from ampcompare.report.words import plural
from ampcompare.sweeps.definition import definition
from ampcompare.sweeps.holes.runs import Attempt, Runs, State, runs_of
from ampcompare.sweeps.points import SEED
from ampcompare.sweeps.run import Request
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.table import Row

DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones
WORDS: dict[str, Any] = {"none": None, "null": None, "true": True, "false": False}
_ABSENT = object()


@dataclass(frozen=True)
class Standing:
    """A point as it stands: by the first of its runs, if there are any. `row` is that of a worker for it."""

    row: Row
    values: Mapping[str, Any]  # of what is varied
    attempts: tuple[Attempt, ...] = ()

    @property
    def state(self) -> State:
        return self.attempts[0].state if self.attempts else State.MISSING

    @property
    def why(self) -> str:
        return self.attempts[0].why if self.attempts else ""


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands. Of `is_drawn` nobody knows the points before they are run; `not_begun` counts
    those that are to be and have no values yet.
    """

    runs: Runs
    standings: Sequence[Standing]
    is_drawn: bool
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
        return self.is_drawn and (sweep.on_server or sweep.run_cap is None or not self.runs.is_known)

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
    sweep, metric, same = runs.sweep, runs.sweep.metric, runs.ready.same
    points = Points(runs)
    standings, strays = points.standings(runs.attempts)
    not_begun = max(0, (sweep.run_cap or 0) - len(standings)) if points.rows is None else 0
    remarks = [f"left out, as they cannot run: {text}" for text in (same.refusals if sweep.cells else ())]
    begun = [standing for standing in standings if standing.attempts]
    values = [a.value for a in runs.attempts if a.state is State.FINISHED and a.value is not None]
    is_less = not_begun or len(begun) < len(standings)
    if is_less and metric and any(map(metric.is_reached, values)):
        standings, not_begun = begun, 0
        remarks.append("metric.target is reached: what had not begun then is not needed")
    if points.rows is None and sweep.run_cap is None:
        remarks.append("a search without run_cap has no end, so that no point of it is missing")
    if strays:
        count = plural(len(strays), "run")
        remarks.append(f"{count} of this sweep at none of its points ({strays[0].run_id})")
    seen = Seen(runs, standings, points.rows is None, not_begun, remarks)
    if runs.unasked and not seen.is_whole:
        remarks.append(f"{runs.unasked}: some of them may run")
    return seen


class Points:
    """The points of a sweep, and the row of each, as a worker takes it. `rows` is None where nobody knows
    them before they are run: of `bayes`, of a search without end, of what W&B's server draws.
    """

    def __init__(self, runs: Runs) -> None:
        sweep = runs.sweep
        repeats = (SEED,) if sweep.added else ()
        varied = [p for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or p.path == repeats]
        self.keys = tuple(p.key for p in varied)
        is_known = sweep.is_grid or (sweep.method == "random" and sweep.run_cap and not sweep.on_server)
        if sweep.on_server and sweep.is_grid and sweep.run_cap is not None:  # it takes some of them
            is_known = sweep.run_cap >= len(dataclasses.replace(sweep, run_cap=None).points)
        began = json.dumps([sweep.name, definition(sweep, runs.ready.words)])
        self.rows: list[Row] | None = None
        self._by: dict[Any, list[int]] = {}  # their numbers, by their values
        if is_known:
            self.rows = [row_at(sweep, began, {}, place) for place in range(sweep.total() or 0)]
        alike = runs.ready.same.alike if sweep.cells else ()
        for number, row in enumerate(self.rows or ()):
            own = self.named(row.parameters)
            self._by.setdefault(self._read(own), []).append(number)
            for first, *others in alike:  # which are one run with it
                if first.items() <= own.items():
                    for other in others:
                        self._by.setdefault(self._read({**own, **other}), []).append(number)

    def named(self, tree: Mapping[str, Any], absent: Any = None) -> dict[str, Any]:
        """What a config or a row's parameters have of the varied keys."""
        return {key: lookup(tree, key, absent) for key in self.keys}

    def _read(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(read(values[key]) for key in self.keys)

    def find(self, config: Mapping[str, Any]) -> list[int]:
        """The points that a run with this config may be: more than one where these have the same values."""
        assert self.rows is not None
        told = self.named(config, _ABSENT)
        place, arm = lookup(config, "plan.place"), lookup(config, "plan.arm")
        if found := self._by.get(self._read(told)):
            of_arm = [number for number in found if self.rows[number].plan.get("arm") == arm] or found
            return [place] if place in of_arm else of_arm
        # What a run decides itself (null, auto) it may have recorded as something else.
        if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(self.rows):
            own = self.named(self.rows[place].parameters)
            if all(
                own[k] in (None, "auto") or v is _ABSENT or read(own[k]) == read(v) for k, v in told.items()
            ):
                return [place]
        return []

    def standings(self, attempts: Sequence[Attempt]) -> tuple[list[Standing], list[Attempt]]:
        """Every point by the runs that there are of it, and the runs at none: one that is done makes it
        whole, whatever failed before; else one that goes on; else the newest tells.
        """
        # What is done first, so that of points with the same values each gets one.
        tried = sorted(attempts, key=lambda a: (not a.state.is_whole, a.state is not State.RUNNING, -a.began))
        if self.rows is None:
            return self._drawn(tried), []
        at: list[list[Attempt]] = [[] for _ in self.rows]
        strays = []
        for attempt in tried:
            if numbers := self.find(attempt.config):
                number = min(numbers, key=lambda number: len(at[number]))
                at[attempt.place if attempt.place in numbers else number].append(attempt)
            elif attempt.state is not State.REFUSED:
                strays.append(attempt)
        pairs = zip(self.rows, at, strict=True)
        return [Standing(row, self.named(row.parameters), tuple(some)) for row, some in pairs], strays

    def _drawn(self, tried: Sequence[Attempt]) -> list[Standing]:
        """A search has the points that it has drawn: what is whole, goes on or is in a database was drawn by
        itself; any other run repeats one of the same values, or is the newest at a point of its own.
        """
        by_values: dict[Any, list[Attempt]] = {}
        for attempt in tried:
            by_values.setdefault(self._read(self.named(attempt.config, _ABSENT)), []).append(attempt)
        found: list[Standing] = []
        for runs in sorted(by_values.values(), key=lambda some: min(a.began for a in some)):
            own = [a for a in runs if a.state.is_whole or a.state is State.RUNNING or a.place is not None]
            for attempt in own or runs[:1]:
                place = len(found) if attempt.place is None else attempt.place
                row = Row(place, parameters=attempt.config)
                found.append(Standing(row, self.named(attempt.config), (attempt,)))
        return found


def read(value: Any) -> Any:
    """A value to be compared by, which can be hashed: a text that says a number, a truth value, none or a
    list is that; numbers by their size, all else by type and content.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            value = ast.literal_eval(value.strip()) if word[:1] in ("[", "{", "(") else float(word)
        value = WORDS.get(word, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return f"{float(value):.{DIGITS}g}"
        return value
    if isinstance(value, list | tuple):
        return ("list", *map(read, value))
    if isinstance(value, Mapping):
        return ("tree", *sorted(((str(k), read(v)) for k, v in value.items()), key=repr))
    return value if value is None or value is _ABSENT else (type(value).__name__, str(value))
