"""Search and state of a sweep: an Optuna study in a database that any number of workers may share.

A trial is one attempt at one run. Its number is given out by the database, so two workers never get the same point
of a grid. Workers send signs of life; a trial whose worker has gone silent is failed by whoever notices and its run
is queued once more.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ampcompare.errors import UserError
from ampcompare.sweeps.definition import Sweep
from ampcompare.sweeps.parameters import nested

ATTEMPTS = 2  # of a run whose worker died
OPEN = (TrialState.RUNNING, TrialState.WAITING)

optuna.logging.set_verbosity(optuna.logging.ERROR)  # what there is to say is said by the sweep itself
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")  # ask-and-tell sends its own, below


@dataclass(frozen=True)
class Trying:
    """One attempt at a run: the handle of its trial, the run's id and parameters, and which attempt it is."""

    trial: Trial
    run_id: str
    parameters: dict[str, Any]
    attempt: int


@dataclass(frozen=True)
class Row:
    """What the database knows of one attempt."""

    number: int
    state: str
    run_id: str
    parameters: Mapping[str, Any]
    value: float | None
    began: datetime | None
    ended: datetime | None


class Search:
    """The state of one sweep. Safe to use from several threads, processes and machines at once.

    `storage` is an SQLAlchemy URL; `grace_seconds` is how long a worker may be silent before its run is taken over.
    Raises UserError where the database cannot be used or holds another sweep under the same name.
    """

    def __init__(self, sweep: Sweep, storage: str, name: str, grace_seconds: float = 60.0) -> None:
        self.sweep, self.name, self.url = sweep, name, storage
        self.heartbeat_seconds = max(1, round(grace_seconds / 6))
        try:
            self.storage = RDBStorage(
                storage,
                # SQLite: wait for other writers instead of failing at once.
                engine_kwargs={"connect_args": {"timeout": 60}} if storage.startswith("sqlite") else {},
                heartbeat_interval=self.heartbeat_seconds,
                grace_period=max(2, round(grace_seconds)),
                heartbeat_stale_trial_callback=lambda study, trial: self._queue_again(trial, ATTEMPTS),
            )
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                sampler=_sampler(sweep),
                pruner=_pruner(sweep),
                direction="maximize" if sweep.metric and sweep.metric.maximize else "minimize",
                load_if_exists=True,
            )
        except Exception as problem:  # SQLAlchemy, the driver and Optuna each have their own
            raise UserError(f"--storage {storage}: {_reason(problem)}") from None
        self._agree_on_definition()

    def next(self) -> Trying | None:
        """The next attempt, None when nothing is left to start (runs of other workers may still be going on)."""
        fail_stale_trials(self.study)
        trials = self._trials()
        if not any(t.state == TrialState.WAITING for t in trials):
            total = self.sweep.total()
            if total is not None and sum(_is_first(t) for t in trials) >= total:
                return None
            if self._target_reached(trials):
                return None
        trial = self.study.ask()
        self.storage.record_heartbeat(trial._trial_id)
        attrs = trial.user_attrs
        if "run_id" in attrs:
            return Trying(trial, attrs["run_id"], json.loads(attrs["parameters"]), attrs["attempt"])
        # The trial's place among the first attempts. Trials of lower number exist by now, and keep their kind.
        index = sum(_is_first(t) for t in self._trials() if t.number < trial.number)
        total = self.sweep.total()
        if total is not None and index >= total:  # another worker took the last one in between
            trial.set_user_attr("surplus", True)
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        if self.sweep.method == "grid":
            parameters = self.sweep.grid_point(index)
        else:
            parameters = nested(self.sweep.parameters, [p.suggest(trial) for p in self.sweep.parameters])
        run_id = _new_id()
        for key, value in (("parameters", json.dumps(parameters)), ("attempt", 1), ("run_id", run_id)):
            trial.set_user_attr(key, value)
        return Trying(trial, run_id, parameters, 1)

    def alive(self, trying: Trying) -> bool:
        """A sign of life of the worker that has this attempt. False: another has taken it over in the meantime."""
        trial_id = trying.trial._trial_id
        self.storage.record_heartbeat(trial_id)
        return self.storage.get_trial(trial_id).state == TrialState.RUNNING

    def should_stop(self, trying: Trying, band: int, value: float) -> bool:
        """Report the metric at a band of hyperband; whether the run is among those to stop."""
        try:
            trying.trial.report(value, band)
        except UpdateFinishedTrialError:  # it was taken over; the next sign of life tells
            return False
        return trying.trial.should_prune()

    def finish(self, trying: Trying, state: str, value: float | None) -> bool:
        """Record how an attempt ended: finished, stopped (by hyperband) or failed. False if it was taken over."""
        if state == "stopped":
            return self._end(trying, state, TrialState.PRUNED)
        if state == "finished" and self.sweep.metric is None:
            # Optuna wants a value of a complete trial. Without a metric there is none; nothing reads this 0.
            return self._end(trying, state, TrialState.COMPLETE, [0.0])
        if state == "finished" and value is not None:
            return self._end(trying, state, TrialState.COMPLETE, [value])
        return self._end(trying, state, TrialState.FAIL)

    def give_up(self, trying: Trying) -> None:
        """End an attempt that the user interrupted, and queue its run again."""
        if self._end(trying, "interrupted", TrialState.FAIL):
            self._queue_again(self._trials()[trying.trial.number], attempts=None)

    def rows(self) -> list[Row]:
        """Every attempt so far, oldest first, without those that were queued again since."""
        trials = [t for t in self._trials() if not t.user_attrs.get("surplus")]
        repeated = {t.user_attrs["repeats"] for t in trials if "repeats" in t.user_attrs}
        return [
            Row(
                number=t.number,
                state=_state(t),
                run_id=t.user_attrs.get("run_id", ""),
                parameters=json.loads(t.user_attrs.get("parameters", "{}")),
                value=t.value if t.state == TrialState.COMPLETE and self.sweep.metric else None,
                began=t.datetime_start,
                ended=t.datetime_complete,
            )
            for t in trials
            if t.number not in repeated
        ]

    def running(self) -> int:
        """How many attempts are going on or queued, with any worker."""
        return sum(t.state in OPEN for t in self._trials())

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _end(self, trying: Trying, word: str, state: TrialState, values: list[float] | None = None) -> bool:
        try:
            trying.trial.set_user_attr("state", word)
            self.storage.set_trial_state_values(trying.trial._trial_id, state, values)
        except UpdateFinishedTrialError:
            return False
        return True

    def _target_reached(self, trials: Iterable[FrozenTrial]) -> bool:
        metric = self.sweep.metric
        if metric is None or metric.target is None:
            return False
        values = [t.value for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
        return any(v >= metric.target if metric.maximize else v <= metric.target for v in values)

    def _queue_again(self, trial: FrozenTrial, attempts: int | None) -> None:
        attrs = trial.user_attrs
        if "run_id" not in attrs:  # it died before it knew what to run; its place is lost to nobody in a search
            if self.sweep.method != "grid":
                return
            index = sum(_is_first(t) for t in self._trials() if t.number < trial.number)
            attrs = {"parameters": json.dumps(self.sweep.grid_point(index)), "run_id": _new_id(), "attempt": 1}
        if attempts is not None and attrs["attempt"] >= attempts:
            return
        counted = attrs["attempt"] + (attempts is not None)
        kept = {key: attrs[key] for key in ("parameters", "run_id")}
        self.study.add_trial(
            create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={**kept, "attempt": counted, "repeats": trial.number},
            )
        )

    def _agree_on_definition(self) -> None:
        """Keep what the sweep varies with the study; refuse a study that varies something else."""
        ours = {key: self.sweep.raw.get(key) for key in ("method", "parameters", "metric", "early_terminate")}
        text = json.dumps(ours, sort_keys=True)
        theirs = self.study.user_attrs.get("sweep")
        if theirs is None:
            self.study.set_user_attr("sweep", text)
        elif theirs != text:
            before = json.loads(theirs)
            changed = ", ".join(key for key in ours if ours[key] != before.get(key))
            raise UserError(
                f"{self.sweep.path}: a sweep named {self.name!r} is in {self.url} already and differs in {changed}; "
                "set output_dir=... for a new one, or --name with a shared storage"
            )


def _is_first(trial: FrozenTrial) -> bool:
    return "repeats" not in trial.user_attrs and "surplus" not in trial.user_attrs


def _state(trial: FrozenTrial) -> str:
    if trial.state in OPEN:
        return trial.state.name.lower()
    # A trial without a word of its own was failed by another worker, for want of signs of life.
    return str(trial.user_attrs.get("state", "lost"))


def _sampler(sweep: Sweep) -> optuna.samplers.BaseSampler:
    if sweep.method == "bayes":
        # constant_liar: parallel workers do not try the same place at once.
        return optuna.samplers.TPESampler(multivariate=True, constant_liar=True)
    return optuna.samplers.RandomSampler()


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    early = sweep.hyperband
    if early is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=early.bands[0], reduction_factor=early.eta)


def _new_id() -> str:
    import secrets

    return secrets.token_hex(4)


def _reason(problem: Exception) -> str:
    lines = str(getattr(problem, "orig", None) or problem).strip().splitlines()
    return f"cannot be used ({lines[0] if lines else type(problem).__name__})"


def sqlite_url(folder: Path) -> str:
    """The sweep's own database in its output folder."""
    return f"sqlite:///{folder.resolve() / 'sweep.db'}"
