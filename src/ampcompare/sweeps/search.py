"""Search and state of a sweep: an Optuna study in a database that any number of workers may share.

A trial is one attempt at one run. Its number is given out by the database, so two workers never get the same
point of a grid. Workers send signs of life; a trial whose worker has gone silent is failed by whoever notices
and its run is queued once more. Each step is one transaction, and whatever a killed worker left half done is
made good by the next that looks (`_repair`).
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ampcompare.errors import UserError, reason
from ampcompare.sweeps.file.parameters import nested
from ampcompare.sweeps.file.sweep import Sweep

ATTEMPTS = 2  # of a run whose worker died
DEFINING = ("method", "parameters", "metric", "early_terminate", "program", "command")
OPEN = (TrialState.RUNNING, TrialState.WAITING)

optuna.logging.set_verbosity(optuna.logging.ERROR)  # what there is to say is said by the sweep itself
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings(
    "ignore", message="Heartbeat of storage is supposed"
)  # ask-and-tell sends its own, below


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


class Search:
    """The state of one sweep. Safe to use from several threads, processes and machines at once.

    `storage` is an SQLAlchemy URL; `grace_seconds` is how long a worker may be silent before its run is taken
    over; `words` are the options behind every command, part of what the sweep is.
    Raises UserError where the database cannot be used or holds another sweep under the same name.
    """

    def __init__(
        self, sweep: Sweep, storage: str, name: str, grace_seconds: float = 60.0, words: Sequence[str] = ()
    ) -> None:
        self.sweep, self.name = sweep, name
        self.shown_url = shown(storage)
        self.heartbeat_seconds = min(2.0, grace_seconds / 3)
        self._seen: set[int] = set()
        with self._as_user_error():
            self.storage = RDBStorage(
                storage,
                # SQLite: wait for other writers instead of failing at once.
                engine_kwargs={"connect_args": {"timeout": 30}} if storage.startswith("sqlite") else {},
                heartbeat_interval=max(1, round(self.heartbeat_seconds)),
                grace_period=max(2, round(grace_seconds)),
            )
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                sampler=_sampler(sweep),
                pruner=_pruner(sweep),
                direction="maximize" if sweep.metric and sweep.metric.maximize else "minimize",
                load_if_exists=True,
            )
            self._agree_on_definition(words)

    def next(self) -> Trying | None:
        """The next attempt, None when nothing is left to start (other workers' runs may still go on)."""
        with self._as_user_error():
            self._repair()
            while True:
                trials = self._trials()
                if not any(t.state == TrialState.WAITING for t in trials) and self._has_all(trials):
                    return None
                trial = self.study.ask()
                self.storage.record_heartbeat(trial._trial_id)
                self._seen.add(trial.number)
                if self._is_surplus(trial):
                    trial.set_user_attr("surplus", True)
                    self.study.tell(trial, state=TrialState.FAIL)
                    continue
                return self._tried(trial)

    def alive(self, trying: Trying) -> bool:
        """A sign of life of the worker that has this attempt. False: another has taken it over in the
        meantime.
        """
        trial_id = trying.trial._trial_id
        with self._as_user_error():
            self.storage.record_heartbeat(trial_id)
            return self.storage.get_trial(trial_id).state == TrialState.RUNNING

    def should_stop(self, trying: Trying, band: int, value: float) -> bool:
        """Report the metric at a band of hyperband; whether the run is among those to stop."""
        with self._as_user_error():
            try:
                trying.trial.report(value, band)
            except UpdateFinishedTrialError:  # it was taken over; the next sign of life tells
                return False
            return trying.trial.should_prune()

    def finish(self, trying: Trying, state: str, value: float | None) -> bool:
        """Record how an attempt ended: finished, stopped (by hyperband) or failed. False if it was taken
        over.
        """
        if state == "stopped":
            return self._end(trying, TrialState.PRUNED)
        if state == "finished" and self.sweep.metric is None:
            # Optuna wants a value of a complete trial. Without a metric there is none; nothing reads this 0.
            return self._end(trying, TrialState.COMPLETE, [0.0])
        if state == "finished" and value is not None:
            return self._end(trying, TrialState.COMPLETE, [value])
        return self._end(trying, TrialState.FAIL, word=state)

    def give_up(self, trying: Trying, word: str = "interrupted") -> bool:
        """End an attempt that the user interrupted, or that was lost, and queue its run again. False if taken
        over.
        """
        if not self._end(trying, TrialState.FAIL, word=word):
            return False
        with self._as_user_error():
            self._queue_lost()
        return True

    def rows(self) -> list[Row]:
        """Every attempt so far, oldest first, without those that were queued again since."""
        with self._as_user_error():
            trials = self._trials()
        repeated = {t.user_attrs["repeats"] for t in trials if "repeats" in t.user_attrs}
        rows = []
        for trial in trials:
            if trial.number in repeated or "surplus" in trial.user_attrs:
                continue
            run = _run_of(trial)
            rows.append(
                Row(
                    number=trial.number,
                    state=_state(trial),
                    run_id=run.get("id", ""),
                    parameters=run.get("parameters", {}),
                    value=trial.value if trial.state == TrialState.COMPLETE and self.sweep.metric else None,
                )
            )
        return rows

    def running(self) -> int:
        """How many attempts are going on or queued, with any worker."""
        with self._as_user_error():
            return sum(t.state in OPEN for t in self._trials())

    def _tried(self, trial: Trial) -> Trying:
        """What the trial is an attempt at; decided now unless it repeats another."""
        run = _run_of(trial)
        if "parameters" not in run:
            if self.sweep.method == "grid":
                parameters = self.sweep.grid_point(self._index(trial))
            else:
                parameters = nested(self.sweep.parameters, [p.suggest(trial) for p in self.sweep.parameters])
            run = {"id": secrets.token_hex(4), "parameters": parameters, "attempt": 1}
            trial.set_user_attr("run", json.dumps(run))
        return Trying(trial, run["id"], run["parameters"], run["attempt"])

    def _index(self, trial: Trial | FrozenTrial) -> int:
        """The trial's place among the first attempts. Trials of lower number exist by now, and keep their
        kind.
        """
        if "index" in trial.user_attrs:
            return int(trial.user_attrs["index"])
        return sum(_is_first(t) for t in self._trials() if t.number < trial.number)

    def _is_surplus(self, trial: Trial) -> bool:
        """Whether another worker was faster: with the last point, or with the same repetition."""
        repeats = trial.user_attrs.get("repeats")
        if repeats is not None:
            return any(
                t.user_attrs.get("repeats") == repeats for t in self._trials() if t.number < trial.number
            )
        total = self.sweep.total()
        return total is not None and self._index(trial) >= total

    def _has_all(self, trials: Sequence[FrozenTrial]) -> bool:
        total = self.sweep.total()
        return (total is not None and sum(map(_is_first, trials)) >= total) or self._target_reached(trials)

    def _repair(self) -> None:
        """Make good what workers that died have left: trials without sign of life, runs that nobody queued
        again.
        """
        for trial in self._trials():
            if trial.state == TrialState.RUNNING and trial.number not in self._seen:
                # Optuna knows no trial as stale that never had a sign of life, as when its worker died right
                # after taking it. One from whoever sees it first starts its time.
                self._seen.add(trial.number)
                self.storage.record_heartbeat(trial._trial_id)
        fail_stale_trials(self.study)
        self._queue_lost()

    def _queue_lost(self) -> None:
        """Queue again what was interrupted, and once what was lost. Two workers may do so at once: see
        _is_surplus.
        """
        trials = self._trials()
        repeated = {t.user_attrs["repeats"] for t in trials if "repeats" in t.user_attrs}
        for trial in trials:
            attrs, state = trial.user_attrs, _state(trial)
            if state not in ("interrupted", "lost") or trial.number in repeated or "surplus" in attrs:
                continue
            again: dict[str, Any] = {"repeats": trial.number}
            run = _run_of(trial)
            if "parameters" not in run:  # it died before it knew what to run
                index, total = self._index(trial), self.sweep.total()
                if total is not None and index >= total:
                    continue
                again["index"] = index
            elif state == "interrupted":
                again["run"] = json.dumps(run)
            elif run["attempt"] < ATTEMPTS:
                again["run"] = json.dumps({**run, "attempt": run["attempt"] + 1})
            else:
                continue
            self.study.add_trial(
                create_trial(
                    state=TrialState.WAITING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs=again,
                )
            )

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _end(
        self, trying: Trying, state: TrialState, values: list[float] | None = None, word: str | None = None
    ) -> bool:
        with self._as_user_error():
            try:
                if word:  # how it failed; first, so that one who dies in between has said it
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

    def _agree_on_definition(self, words: Sequence[str]) -> None:
        """Keep what the sweep runs with the study; refuse a study that runs something else."""
        raw = self.sweep.raw
        ours: dict[str, Any] = {key: raw.get(key) for key in DEFINING}
        ours["parameters"] = [
            *(raw.get("parameters") or {}).items()
        ]  # in their order, which is that of the grid
        ours["words of the command line"] = sorted(words)
        text = json.dumps(ours)
        theirs = self.study.user_attrs.get("sweep")
        if theirs is None and self.study.trials:
            raise UserError(
                f"--storage {self.shown_url}: it has a study {self.name!r} of another program; set --name"
            )
        if theirs is None:
            self.study.set_user_attr("sweep", text)
        elif theirs != text:
            before, now = json.loads(theirs), json.loads(text)
            changed = ", ".join(key for key in now if now[key] != before.get(key))
            raise UserError(
                f"{self.sweep.path}: a sweep named {self.name!r} is in {self.shown_url} already and differs "
                f"in {changed}; set output_dir=... for a new one, or --name with a shared storage"
            )

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        """Trouble with the database as one line."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (UserError, UpdateFinishedTrialError):
            raise
        # What RDBStorage raises for a URL that it cannot open: a missing driver, a wrong name.
        except (StorageInternalError, SQLAlchemyError, ImportError, ValueError, KeyError, OSError) as problem:
            why = reason(problem.__cause__ or getattr(problem, "orig", None) or problem)
            raise UserError(f"--storage {self.shown_url}: cannot be used ({why})") from problem


def _run_of(trial: Trial | FrozenTrial) -> dict[str, Any]:
    """Id, parameters and number of the attempt; empty before they are decided."""
    run: dict[str, Any] = json.loads(trial.user_attrs.get("run", "{}"))
    return run


def _is_first(trial: FrozenTrial) -> bool:
    return "repeats" not in trial.user_attrs and "surplus" not in trial.user_attrs


def _state(trial: FrozenTrial) -> str:
    if trial.state == TrialState.FAIL:
        # One without a word of its own was failed by another worker, for want of signs of life.
        return str(trial.user_attrs.get("state", "lost"))
    return {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped"}.get(
        trial.state, trial.state.name.lower()
    )


def shown(url: str) -> str:
    """The URL as it may be shown: without password, our own database by its path."""
    import re
    from urllib.parse import unquote

    own = re.fullmatch(r"sqlite:///file:(.*)\?uri=true", url)
    return unquote(unquote(own[1])) if own else re.sub(r"(//[^/@:]*):[^/]*@", r"\1:***@", url)


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


def sqlite_url(folder: Path) -> str:
    """The sweep's own database in its output folder, whatever characters its name has."""
    from urllib.parse import quote

    # Quoted twice: SQLAlchemy takes one layer off, SQLite the other.
    return f"sqlite:///file:{quote(quote(str(folder.resolve() / 'sweep.db')))}?uri=true"
