"""Search and state of a sweep: an Optuna study in a database that any number of workers may share.

A trial is one attempt at one run. Its number is given out by the database, so two workers never get the same
point of a grid. Workers send signs of life; a trial whose worker has gone silent is failed by whoever notices
and its run is queued once more. Each step is one transaction, and whatever a killed worker left half done is
made good by the next that looks (`_repair`).
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ampcompare.errors import UserError
from ampcompare.sweeps import attempts, definition
from ampcompare.sweeps.attempts import Attempt, SweepRow
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.file.parameters import nested
from ampcompare.sweeps.file.sweep import Hyperband, Sweep
from ampcompare.sweeps.ledger import Ledger
from ampcompare.sweeps.methods import method_of
from ampcompare.sweeps.storage import as_user_error, open_storage, shown

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
        with as_user_error(self.url):
            self.storage = open_storage(storage, self.heartbeat_seconds, grace_seconds)
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                sampler=sampler,
                pruner=_pruner(sweep.hyperband),
                direction="maximize" if sweep.metric and sweep.metric.maximize else "minimize",
                load_if_exists=True,
            )
            self.ledger = Ledger(self.study, self.storage, self.url)
            self._agree_on_definition(words)

    def next(self) -> Attempt | None:
        """The next attempt, None when nothing is left to start (other workers' runs may still go on)."""
        with as_user_error(self.url):
            self._read_added()
            self._repair()
            while True:
                trials = self._trials()
                if not any(t.state == TrialState.WAITING for t in trials) and self._has_all(trials):
                    return None
                trial = self.study.ask()
                if not self._is_ours(trial):
                    continue
                self.storage.record_heartbeat(trial._trial_id)
                self._seen.add(trial.number)
                found = self._trials()
                if attempts.is_surplus(trial, found):
                    self._put_back(trial, "surplus")
                elif attempts.is_beyond(trial, found, self.sweep.total()):
                    self._put_back(trial, "beyond")
                else:
                    return self._attempt(trial)

    def _is_ours(self, trial: Trial) -> bool:
        """Whether a trial that was queued is this worker's alone.

        SQLite locks no row that is read, so that two may take one trial off Optuna's queue. A new one is
        safe: its number is given out once.
        """
        queued = "repeats" in trial.user_attrs
        return not queued or self.ledger.put_once(f"taken:{trial.number}", secrets.token_hex(4))

    def _put_back(self, trial: Trial, why: str) -> None:
        # As interrupted before it knew what to run; what is surplus is never taken up again.
        trial.set_user_attr(why, True)
        trial.set_user_attr("state", "interrupted")
        self.study.tell(trial, state=TrialState.FAIL)

    def total(self) -> int | None:
        """How many runs it comes to by now; None where that is open."""
        return self.sweep.total()

    def add(self, group: Added) -> bool:
        """Add a group of seeds behind all those there are. False: another worker has added one since."""
        with as_user_error(self.url):
            is_mine = definition.add(self.ledger, len(self.added) + 1, group)
            self._read_added()
            return is_mine

    def read_added(self) -> list[Added]:
        """The groups of seeds that were added, those of other workers too."""
        with as_user_error(self.url):
            self._read_added()
        return self.added

    def _read_added(self) -> None:
        found = definition.groups(self.ledger)
        if len(found) > len(self.added):
            self.added = found
            seeds = tuple(group.seeds for group in found if group.seeds)
            self.sweep = dataclasses.replace(self.sweep, added=seeds)

    def alive(self, attempt: Attempt) -> bool:
        """A sign of life of the worker that has this attempt. False: another has taken it over."""
        trial_id = attempt.trial._trial_id
        with as_user_error(self.url):
            self.storage.record_heartbeat(trial_id)
            return self.storage.get_trial(trial_id).state == TrialState.RUNNING

    def should_stop(self, attempt: Attempt, band: int, value: float) -> bool:
        """Report the metric at a band of hyperband; whether the run is among those to stop."""
        with as_user_error(self.url):
            try:
                attempt.trial.report(value, band)
            except UpdateFinishedTrialError:  # it was taken over; the next sign of life tells
                return False
            return attempt.trial.should_prune()

    def finish(self, attempt: Attempt, state: str, value: float | None) -> bool:
        """Record an attempt's end: finished, stopped (by hyperband), failed. False if it was taken over."""
        if state == "stopped":
            return self._end(attempt, TrialState.PRUNED)
        if self.sweep.metric is None:
            value = 0.0  # Optuna wants one of a complete trial; nothing reads it
        if state == "finished" and value is not None:
            return self._end(attempt, TrialState.COMPLETE, value)
        return self._end(attempt, TrialState.FAIL, word=state)

    def give_up(self, attempt: Attempt, word: str = "interrupted") -> bool:
        """End an interrupted or lost attempt and queue its run again. False if it was taken over."""
        if not self._end(attempt, TrialState.FAIL, word=word):
            return False
        with as_user_error(self.url):
            self._queue_lost()
        return True

    def rows(self) -> list[SweepRow]:
        """Every attempt so far, oldest first, without those that were queued again since."""
        with as_user_error(self.url):
            trials = self._trials()
        again = attempts.repeated(trials)
        dropped = {"surplus", "beyond"}
        counted = [t for t in trials if t.number not in again and not dropped & t.user_attrs.keys()]
        return [self._row(trial) for trial in counted]

    def _row(self, trial: FrozenTrial) -> SweepRow:
        run, state = attempts.run_of(trial), attempts.state_of(trial)
        value = trial.value if trial.state == TrialState.COMPLETE and self.sweep.metric else None
        return SweepRow(
            trial.number, state, run.get("id", ""), run.get("parameters", {}), value, run.get("plan", {})
        )

    def is_all_done(self) -> bool:
        """Whether every run has ended, of any worker, with the seeds that were added."""
        with as_user_error(self.url):
            self._read_added()
            trials = self._trials()
            return self._has_all(trials) and not any(t.state in OPEN for t in trials)

    def running(self) -> int:
        """How many attempts are going on or queued, with any worker."""
        with as_user_error(self.url):
            return sum(t.state in OPEN for t in self._trials())

    def _attempt(self, trial: Trial) -> Attempt:
        """What the trial is an attempt at; decided now unless it repeats another."""
        run = attempts.run_of(trial)
        if "parameters" not in run:
            index = attempts.index_of(trial, self._trials())
            plan = {} if self.plan is None else {**self.plan, "place": index}
            if self.sweep.is_grid:
                point = self.sweep.points.point(index)
                parameters = point.parameters
                own = {"block": point.block, "arm": point.arm}
                plan |= {key: value for key, value in own.items() if value is not None and plan}
            else:
                parameters = nested(self.sweep.parameters, [p.suggest(trial) for p in self.sweep.parameters])
            run = {"id": secrets.token_hex(4), "parameters": parameters, "attempt": 1, "plan": plan}
            trial.set_user_attr("run", json.dumps(run))
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
                self.storage.record_heartbeat(trial._trial_id)
        fail_stale_trials(self.study)
        self._queue_lost()

    def _queue_lost(self) -> None:
        """Queue again what was interrupted, and once what was lost. Two may do so at once: see `is_surplus`.

        Optuna's RetryHeartbeatStaleTrialCallback is called once, by the worker that has just failed a trial:
        if that one dies in between, the run is lost. It knows neither interrupted runs nor those that died
        before they knew their point of the grid.
        """
        for trial, attributes in attempts.to_repeat(self._trials(), self.sweep.total()):
            drawn: dict[str, Any] = {"params": trial.params, "distributions": trial.distributions}
            self.study.add_trial(create_trial(state=TrialState.WAITING, **drawn, user_attrs=attributes))

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _end(self, attempt: Attempt, state: TrialState, value: float | None = None, word: str = "") -> bool:
        values = None if value is None else [value]
        with as_user_error(self.url):
            try:
                if word:  # how it failed; first, so that one who dies in between has said it
                    attempt.trial.set_user_attr("state", word)
                self.storage.set_trial_state_values(attempt.trial._trial_id, state, values)
            except UpdateFinishedTrialError:
                return False
        return True

    def _agree_on_definition(self, words: Sequence[str]) -> None:
        """Keep what the sweep runs with the study; refuse a study that runs something else."""
        ours = definition.definition(self.sweep, words)
        written = self.ledger.read()
        if definition.KEY not in written and self.study.trials:
            what = f"it has a study {self.name!r} of another program"
            raise UserError(f"--storage {shown(self.url)}: {what}; set --name")
        if definition.KEY not in written and self.ledger.put_once(definition.KEY, json.dumps(ours)):
            return
        theirs = json.loads(self.ledger.read()[definition.KEY])
        try:
            self.sweep, more = definition.agreed(self.sweep, theirs, ours)
        except definition.Changed as changed:
            why = f"a sweep named {self.name!r} is in {shown(self.url)} already and differs in {changed}"
            todo = "set output_dir=... for a new one, or --name with a shared storage"
            raise UserError(f"{self.sweep.path}: {why}; {todo}") from None
        self._read_added()
        while more := self._unknown(more):
            self.add(Added(more))

    def _unknown(self, seeds: Sequence[Any]) -> tuple[Any, ...]:
        """Those of the seeds that no group has."""
        known = [seed for group in self.added for seed in group.seeds]
        return tuple(seed for seed in seeds if seed not in known)


def _pruner(early: Hyperband | None) -> optuna.pruners.BasePruner:
    if early is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=early.bands[0], reduction_factor=early.eta)
