"""Search and state of a sweep: an Optuna study in a database that any number of workers may share.

A trial is one attempt at one run. Its number is given out by the database, so two workers never get the same
point of a grid. Workers send signs of life; a trial whose worker has gone silent is failed by whoever notices
and its run is queued once more. Each step is one transaction, and whatever a killed worker left half done is
made good by the next that looks (`_repair`). Where the database does not answer, each step waits for it.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ampcompare.sweeps import attempts, definition
from ampcompare.sweeps.attempts import Attempt, SweepRow
from ampcompare.sweeps.contact import Contact
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.early import pruner_of
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.ledger import Ledger
from ampcompare.sweeps.methods import method_of
from ampcompare.sweeps.storage import as_user_error, open_storage

TAKEN = "taken:"  # by whom a queued trial was
OPEN = (TrialState.RUNNING, TrialState.WAITING)


class Search:
    """The state of one sweep. Safe to use from several threads, processes and machines at once.

    `storage` is an SQLAlchemy URL; `grace_seconds` is how long a worker may be silent before its run is taken
    over; `words` are the options behind every command, part of what the sweep is; `plan` is what of the plan
    every run is told beside the file, its own place with it; None: nothing of it. `sweep` is the sweep as the
    database has it: with all seeds so far.
    Raises UserError where the database cannot be used or holds another sweep under the same name.
    """

    def __init__(
        self,
        sweep: Sweep,
        storage: str,
        name: str,
        grace_seconds: float = 60.0,
        words: Sequence[str] = (),
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.sweep, self.name, self.url, self.plan = sweep, name, storage, plan
        self.added: list[Added] = []
        self.grace_seconds = grace_seconds
        self.heartbeat_seconds = min(2.0, grace_seconds / 3)
        self._seen: set[int] = set()
        sampler = method_of(sweep.method).sampler()
        self.contact = Contact(storage, grace_seconds)
        self.wait = self.contact.wait
        with as_user_error(self.url):
            self.storage = open_storage(storage, self.heartbeat_seconds, grace_seconds)
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                sampler=sampler,
                pruner=pruner_of(sweep.hyperband),
                direction="maximize" if sweep.metric and sweep.metric.maximize else "minimize",
                load_if_exists=True,
            )
        self.ledger = Ledger(self.study, self.storage, self.contact)
        found = self._trials()
        self.sweep, more = definition.agree(self.ledger, sweep, words, name, storage, is_new=not found)
        self._read_added()
        while more := self._unknown(more):
            self.add(Added(more))
        going_on = {trial._trial_id for trial in found if trial.state == TrialState.RUNNING}
        self.storage.spares = lambda number: not self.contact.may_judge(known=number not in going_on)

    def next(self) -> Attempt | None:
        """The next attempt, None when nothing is left to start (other workers' runs may still go on)."""
        self._read_added()
        self._repair()
        while True:
            trials = self._trials()
            if not any(t.state == TrialState.WAITING for t in trials) and self._has_all(trials):
                return None
            trial = self.wait(self.study.ask)
            # Else another has taken it for a dead worker's, while this one waited for the database.
            with suppress(UpdateFinishedTrialError):
                if attempt := self._taken(trial):
                    return attempt

    def _taken(self, trial: Trial) -> Attempt | None:
        """What a trial is to be for this worker, None if it is not for it."""
        if not self._is_ours(trial):
            return None
        self._live(trial)
        self._seen.add(trial.number)
        found = self._trials()
        if attempts.is_surplus(trial, found):
            self._put_back(trial, "surplus")
        elif attempts.is_beyond(trial, found, self.sweep.total()):
            self._put_back(trial, "beyond")
        else:
            return self._attempt(trial)
        return None

    def _live(self, trial: Trial | FrozenTrial) -> None:
        self.wait(lambda: self.storage.record_heartbeat(trial._trial_id))

    def _is_ours(self, trial: Trial) -> bool:
        """Whether a trial that was queued is this worker's alone, which is written down."""
        # SQLite locks no row that is read, so that two may take one trial off Optuna's queue. A new one is
        # safe: its number is given out once.
        queued = "repeats" in trial.user_attrs
        return not queued or self.ledger.put_once(f"{TAKEN}{trial.number}", secrets.token_hex(4))

    def _put_back(self, trial: Trial, why: str) -> None:
        # As interrupted before it knew what to run; what is surplus is never taken up again.
        for key, value in {why: True, "state": "interrupted"}.items():
            self._set(trial, key, value)
        self._close(trial, TrialState.FAIL)

    def _set(self, trial: Trial, key: str, value: Any, *, at_the_end: bool = False) -> None:
        self.wait(lambda: trial.set_user_attr(key, value), at_the_end=at_the_end)

    def _close(self, trial: Trial, state: TrialState, values: list[float] | None = None) -> None:
        write = self.storage.set_trial_state_values
        self.wait(lambda: write(trial._trial_id, state, values), at_the_end=True)

    def total(self) -> int | None:
        """How many runs it comes to by now; None where that is open."""
        return self.sweep.total()

    def add(self, group: Added) -> bool:
        """Add a group of seeds behind all those there are. False: another worker has added one since."""
        is_mine = definition.add(self.ledger, len(self.added) + 1, group)
        self._read_added()
        return is_mine

    def read_added(self) -> list[Added]:
        """The groups of seeds that were added, those of other workers too."""
        self._read_added()
        return self.added

    def _read_added(self) -> None:
        found = definition.groups(self.ledger)
        if len(found) > len(self.added):
            self.added = found
            seeds = tuple(group.seeds for group in found if group.seeds)
            self.sweep = dataclasses.replace(self.sweep, added=seeds)

    def _unknown(self, seeds: Sequence[Any]) -> tuple[Any, ...]:
        """Those of the seeds that no group has."""
        known = [seed for group in self.added for seed in group.seeds]
        return tuple(seed for seed in seeds if seed not in known)

    def alive(self, attempt: Attempt) -> bool:
        """A sign of life of the worker that has this attempt. False: another has taken it over.

        Raises Away at once where the database does not answer.
        """
        trial_id = attempt.trial._trial_id

        def live() -> bool:
            self.storage.record_heartbeat(trial_id)
            return self.storage.get_trial(trial_id).state == TrialState.RUNNING

        return self.contact.once(live)

    def should_stop(self, attempt: Attempt, band: int, value: float) -> bool:
        """Report the metric at a band of hyperband; whether the run is among those to stop.

        Raises Away at once where the database does not answer.
        """

        def compare() -> bool:
            try:
                attempt.trial.report(value, band)
            except UpdateFinishedTrialError:  # it was taken over; the next sign of life tells
                return False
            return attempt.trial.should_prune()

        return self.contact.once(compare)

    def finish(self, attempt: Attempt, state: str, value: float | None) -> bool:
        """Record an attempt's end: finished, stopped (by hyperband), failed. False if it was taken over."""
        if state == "stopped":
            return self._end(attempt, TrialState.PRUNED)
        if self.sweep.metric is None:  # Optuna wants a value of a complete trial; nothing reads it
            value = 0.0
        if state == "finished" and value is not None:
            return self._end(attempt, TrialState.COMPLETE, value)
        return self._end(attempt, TrialState.FAIL, word=state)

    def give_up(self, attempt: Attempt, word: str = "interrupted") -> bool:
        """End an interrupted or lost attempt and queue its run again. False if it was taken over."""
        if is_mine := self._end(attempt, TrialState.FAIL, word=word):
            self._queue_lost()
        return is_mine

    def rows(self) -> list[SweepRow]:
        """Every attempt so far, oldest first, without those that were queued again since."""
        has_metric = self.sweep.metric is not None
        return [attempts.row_of(trial, has_metric) for trial in attempts.newest(self._trials())]

    def progress(self) -> tuple[int, int]:
        """How many runs have ended for good and how many go on, with any worker; cheap, to be asked often.

        Raises Away at once where the database does not answer.
        """
        trials = self.contact.once(lambda: self.study.get_trials(deepcopy=False))
        return attempts.ended(trials), sum(t.state == TrialState.RUNNING for t in trials)

    def is_all_done(self) -> bool:
        """Whether every run has ended, of any worker, with the seeds that were added."""
        self._read_added()
        self._repair()  # what was asked for beyond the end before may be within it now
        trials = self._trials()
        return self._has_all(trials) and not any(t.state in OPEN for t in trials)

    def running(self) -> int:
        """How many attempts are going on or queued, with any worker."""
        return sum(t.state in OPEN for t in self._trials())

    def _attempt(self, trial: Trial) -> Attempt:
        """What the trial is an attempt at; decided now unless it repeats another."""
        run = attempts.run_of(trial)
        if "parameters" not in run:
            index = attempts.index_of(trial, self._trials())
            plan = {} if self.plan is None else {**self.plan, "place": index}
            if self.sweep.is_grid:
                point = self.sweep.points[index]
                parameters = point.parameters
                own = {"block": point.block, "arm": point.arm}
                plan |= {key: value for key, value in own.items() if value is not None and plan}
            else:
                drawn = self.wait(lambda: [p.suggest(trial) for p in self.sweep.parameters])
                parameters = nested(self.sweep.parameters, drawn)
            run = {"id": secrets.token_hex(4), "parameters": parameters, "attempt": 1, "plan": plan}
            self._set(trial, "run", json.dumps(run))
        return Attempt(trial, run["id"], run["parameters"], run["attempt"], run.get("plan", {}))

    def _has_all(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether every point was taken, or the target of the metric reached."""
        total, metric = self.sweep.total(), self.sweep.metric
        if total is not None and sum(map(attempts.is_first, trials)) >= total:
            return True
        if metric is None or metric.target is None:
            return False
        values = [t.value for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
        return any(v >= metric.target if metric.maximize else v <= metric.target for v in values)

    def _repair(self) -> None:
        """Make good what dead workers left: trials without sign of life, runs not queued again."""
        for trial in self._trials():
            if trial.state == TrialState.RUNNING and trial.number not in self._seen:
                # Optuna knows no trial as stale that never had a sign of life, as when its worker died right
                # after taking it. One from whoever sees it first starts its time.
                self._seen.add(trial.number)
                self._live(trial)
        self.wait(lambda: fail_stale_trials(self.study))
        self._queue_lost()

    def _queue_lost(self) -> None:
        """Queue again what was interrupted, and once what was lost. Two may do so at once: see `is_surplus`.

        Optuna's RetryHeartbeatStaleTrialCallback is called once, by the worker that has just failed a trial:
        if that one dies in between, the run is lost. It knows neither interrupted runs nor those that died
        before they knew their point of the grid.
        """
        trials = self._trials()
        begun = {key.removeprefix(TAKEN) for key in self.ledger.read() if key.startswith(TAKEN)}
        for trial, attributes in attempts.to_repeat(trials, self.sweep.total(), begun):
            drawn: dict[str, Any] = {"params": trial.params, "distributions": trial.distributions}
            again = create_trial(state=TrialState.WAITING, **drawn, user_attrs=attributes)
            self.wait(lambda again=again: self.study.add_trial(again))  # type: ignore[misc]

    def _trials(self) -> list[FrozenTrial]:
        return self.wait(lambda: self.study.get_trials(deepcopy=False))

    def _end(self, attempt: Attempt, state: TrialState, value: float | None = None, word: str = "") -> bool:
        trial, values = attempt.trial, None if value is None else [value]
        try:
            if word:  # how it failed; first, so that one who dies in between has said it
                self._set(trial, "state", word, at_the_end=True)
            self._close(trial, state, values)
        except UpdateFinishedTrialError:
            # By another, or by this one: the connection may have broken after it was written.
            return self.wait(lambda: self._is_so(attempt, state, word))
        return True

    def _is_so(self, attempt: Attempt, state: TrialState, word: str) -> bool:
        found = self.storage.get_trial(attempt.trial._trial_id)
        return found.state == state and found.user_attrs.get("state", "") == word
