"""`--fill`: the holes of a sweep run here, as new runs of the same group.

The queue is the sweep's own database; where it had none (a job array, W&B's server) one is made under
output_dir, and hands out every point: what others have run, or are running, is written down as theirs when
its turn comes. So whatever holds for a sweep holds for its holes: two who fill at once share the work, and
what is interrupted or killed goes on.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial
from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.place import as_typed
from ampcompare.records.tree import lookup
from ampcompare.report.words import plural
from ampcompare.sweeps import attempts
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.attempts import run_of, state_of
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.devices import visible_gpus
from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.database import ELSEWHERE
from ampcompare.sweeps.holes.look import Seen, look
from ampcompare.sweeps.holes.note import note
from ampcompare.sweeps.holes.show import EXIT_HOLES, counted, in_words
from ampcompare.sweeps.holes.standing import Attempt, Standing, State
from ampcompare.sweeps.holes.target import Target, target_of
from ampcompare.sweeps.run import (
    EXIT_FAILED_RUNS,
    Request,
    Rounds,
    make_output,
    tell_how_to_go_on,
)
from ampcompare.sweeps.search import Attempt as Turn
from ampcompare.sweeps.search import Search
from ampcompare.sweeps.worker import planned

ENDED = ("failed", "lost", "finished", "stopped", ELSEWHERE)  # of a database's runs, those that can be a hole


def fill_holes(target: Target, request: Request, name: str, words: Sequence[str], console: Console) -> int:
    """Run what is missing or failed; returns the exit code as `run_sweep` does, and 3 where nothing failed
    and something is left that cannot be run here, or not now. Raises UserError.
    """
    seen = look(target, request.grace_seconds)
    print_line(console, one_line(counted(seen.sweep.name, seen.holes)))
    for remark in seen.remarks:
        print_line(console, one_line(remark))
    if seen.unasked:
        todo = "run it where squeue answers"
        gone = f"or, if none of its jobs is left, remove {Book(target.folder).place}/submitted-*.json"
        raise UserError(f"--fill: {seen.unasked}, and what runs would be run again; {todo}, {gone}")
    going_on = [s for s in seen.holes.standings if s.state is State.RUNNING]
    if going_on:
        are = "is" if len(going_on) == 1 else "are"
        print_line(console, f"{plural(len(going_on), 'point')} {are} running: left alone")
    # One of a worker of this sweep is taken over should that die: until it ends there may be something to do.
    watched = [s for s in going_on if s.attempt and s.attempt.run_id in seen.in_database]
    not_begun = 0 if _is_bound(seen) else seen.holes.not_begun
    if len(seen.holes.open) == len(going_on) and not watched and not not_begun:
        if seen.holes.not_begun:
            print_line(console, "what has not begun can be handed out only by what runs the sweep")
        return 0 if seen.holes.is_whole else EXIT_HOLES
    folder = make_output(target.folder)
    search = FillSearch(seen, request.grace_seconds)
    note(search.sweep, target.words, folder)
    search.queue_holes()
    gpus = [] if str(target.given.get("device", "")).startswith("cpu") else visible_gpus()
    behind = (*target.words, f"output_dir={folder}") if target.here else target.words
    rounds = Rounds(search, folder, console, request, gpus, behind, target.here)
    if received := rounds.run((), ""):
        tell_how_to_go_on(name, request, target.given, search.url, console, "--fill")
        return 128 + received[0]
    after = look(target_of(name, words, request), request.grace_seconds)
    print_line(console, one_line(counted(after.sweep.name, after.holes)))
    bad = [s for s in after.holes.open if s.state is not State.RUNNING]
    for standing in bad[:5]:
        reason = f": {standing.attempt.why}" if standing.attempt and standing.attempt.why else ""
        print_line(console, one_line(f"{standing.state.value}: {in_words(standing)}{reason}"))
    if target.on_server is not None:  # this disk has those runs only that filled holes
        print_line(console, one_line(f"compare them with: {as_typed('ampcompare', 'report', name)}"))
        status = 0
    else:
        status = report(console, search.sweep, folder) if request.report else 0
    if bad:
        return EXIT_FAILED_RUNS
    return status if status or after.holes.is_whole else EXIT_HOLES


class FillSearch(Search):
    """The search of a sweep that has run before: what is done elsewhere is not done again."""

    def __init__(self, seen: Seen, grace_seconds: float) -> None:
        target = seen.target
        self.seen = seen
        super().__init__(
            _to_run(target), target.url, target.sweep.name, grace_seconds, target.words, _plan(target)
        )
        self._taken_places: set[int] = set()

    def next(self) -> Turn | None:
        """The next attempt at a hole, None when there is none; points of others are noted as theirs."""
        while (turn := super().next()) is not None:
            standing = self._standing(turn)
            others = standing.attempt if standing else None
            if others is None or others.run_id == turn.run_id or _is_hole(others):
                return turn
            self._hand_over(turn, others)
        return None

    def _standing(self, turn: Turn) -> Standing | None:
        """The point of an attempt as it stood when the filling began."""
        holes = self.seen.holes
        if holes.grid.points is None:
            return None
        numbers, _ = holes.grid.candidates(planned(turn.parameters, turn.plan))
        at = {standing.point.place: standing for standing in holes.standings}
        places = [holes.grid.points[number].place for number in numbers]
        free = [place for place in places if place not in self._taken_places] or places
        if not free:
            return None
        self._taken_places.add(free[0])
        return at.get(free[0])

    def _hand_over(self, turn: Turn, others: Attempt) -> None:
        run = run_of(turn.trial)
        words = {State.FINISHED: "finished", State.EARLY: "stopped"}
        with suppress(UpdateFinishedTrialError):  # it was taken over while the database was away
            self._set(turn.trial, "run", json.dumps({**run, "id": others.run_id}))
            self.finish(turn, words.get(others.state, ELSEWHERE), others.value)

    def queue_holes(self) -> None:
        """Queue every hole that the database takes for settled once more, as a new run.

        Two may do so at once: of repetitions of one trial the first counts (`attempts.is_surplus`).
        """
        handed_over = any(state_of(t) == ELSEWHERE for t in self._trials())
        for standing in self.seen.holes.open:
            if standing.state is State.RUNNING or not (standing.attempts or handed_over):
                continue
            if (trial := self._settled(standing)) is not None:
                run = run_of(trial)
                again = {**run, "id": secrets.token_hex(4), "attempt": 1}
                attributes = {"repeats": trial.number, "run": json.dumps(again)}
                drawn: dict[str, Any] = {"params": trial.params, "distributions": trial.distributions}
                self._add(create_trial(state=TrialState.WAITING, **drawn, user_attrs=attributes))
        if _is_bound(self.seen):
            firsts = sum(map(attempts.is_first, self._trials()))
            self.sweep = dataclasses.replace(self.sweep, run_cap=firsts)

    def _add(self, trial: FrozenTrial) -> None:
        self.wait(lambda: self.study.add_trial(trial))

    def _settled(self, standing: Standing) -> FrozenTrial | None:
        """The trial of this hole that nothing would repeat by itself; one is made where points are not listed
        and the run was another's.
        """
        ids = {attempt.run_id for attempt in standing.attempts}
        trials = self._trials()
        again = attempts.repeated(trials)
        mine = [t for t in trials if run_of(t).get("id") in ids and "surplus" not in t.user_attrs]
        if not mine:  # another's that is gone without a trace, as a job that was cancelled in its queue
            mine = [t for t in trials if state_of(t) == ELSEWHERE and self._is_at(t, standing)]
        newest = [t for t in mine if t.number not in again]
        if newest:
            is_open = any(t.state in (TrialState.RUNNING, TrialState.WAITING) for t in newest)
            repeated = {t.number for t, _ in attempts.to_repeat(trials, self.sweep.total())}
            settled = [t for t in newest if state_of(t) in ENDED and t.number not in repeated]
            return settled[0] if settled and not is_open else None
        if mine or not ids or not _is_bound(self.seen):
            return None  # queued by another by now; or its turn comes with its number
        return self._adopted(standing)

    def _is_at(self, trial: FrozenTrial, standing: Standing) -> bool:
        """Whether the trial is one of this point."""
        run, grid = run_of(trial), self.seen.holes.grid
        numbers, _ = grid.candidates(planned(run.get("parameters", {}), run.get("plan", {})))
        return standing.point in [grid.points[number] for number in numbers if grid.points]

    def _adopted(self, standing: Standing) -> FrozenTrial:
        """A trial for a run of others."""
        attempt, keys = standing.attempt, self.sweep.parameters
        assert attempt
        values = [_value(p, standing) for p in keys]
        run = {
            "id": attempt.run_id,
            "parameters": nested(keys, values),
            "attempt": attempts.ATTEMPTS,
            "plan": {},
        }
        told = {"run": json.dumps(run), "state": "failed"}
        self._add(create_trial(state=TrialState.FAIL, user_attrs=told))
        mine = [
            t
            for t in self._trials()
            if run_of(t).get("id") == attempt.run_id and "repeats" not in t.user_attrs
        ]
        return mine[0]  # where two fill at once, both have the first one queued, which counts once


def _is_bound(seen: Seen) -> bool:
    """Whether only what was begun is run, as what else there is to be is not known here."""
    is_open = not seen.sweep.is_grid and (seen.sweep.run_cap is None or not seen.is_known)
    return is_open or seen.target.is_capped_by_server


def _is_hole(attempt: Attempt) -> bool:
    return not (attempt.state.is_whole or attempt.state is State.RUNNING)


def _value(parameter: Any, standing: Standing) -> Any:
    if parameter.key in standing.point.values:
        return standing.point.values[parameter.key]
    recorded = lookup(standing.attempt.config, parameter.key) if standing.attempt else None
    return parameter.grid_value(0) if parameter.is_listed else recorded


def _to_run(target: Target) -> Sweep:
    """The sweep as it is run here: what only W&B's agent can do, stopping runs early, is left out."""
    return dataclasses.replace(target.sweep, hyperband=None) if target.on_server is not None else target.sweep


def _plan(target: Target) -> dict[str, Any] | None:
    return None if target.told is None else dict(target.told)
