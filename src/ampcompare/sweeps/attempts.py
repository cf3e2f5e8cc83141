"""What Optuna's trials are to a sweep: attempts at runs, first ones and repetitions.

Everything is read off the trials themselves and nothing is kept beside them, so that whoever looks next can
go on from whatever a killed worker left half done.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, Trial, TrialState

ATTEMPTS = 2  # of a run whose worker died


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run: the handle of its trial, the run's id and parameters, and which attempt it is.

    `plan` is what of the sweep's plan is this run's own: its place, its block, its arm.
    """

    trial: Trial
    run_id: str
    parameters: dict[str, Any]
    attempt: int
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepRow:
    """What the database knows of one attempt."""

    number: int
    state: str
    run_id: str
    parameters: Mapping[str, Any]
    value: float | None
    plan: Mapping[str, Any] = field(default_factory=dict)


def run_of(trial: Trial | FrozenTrial) -> dict[str, Any]:
    """Id, parameters and number of the attempt; empty before they are decided."""
    return dict(json.loads(trial.user_attrs.get("run", "{}")))


def state_of(trial: FrozenTrial) -> str:
    """How the attempt stands, in the words of `Search.finish` and `Search.give_up`."""
    if trial.state == TrialState.FAIL:
        # One without a word of its own was failed by another worker, for want of signs of life.
        return str(trial.user_attrs.get("state", "lost"))
    ended = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped"}
    return ended.get(trial.state, trial.state.name.lower())


def is_first(trial: FrozenTrial) -> bool:
    """Whether it is the first attempt at its run."""
    return "repeats" not in trial.user_attrs and "surplus" not in trial.user_attrs


def index_of(trial: Trial | FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """Its place among the first attempts. Trials of lower number exist by now, and keep their kind."""
    if "index" in trial.user_attrs:
        return int(trial.user_attrs["index"])
    return sum(is_first(t) for t in trials if t.number < trial.number)


def is_surplus(trial: Trial, trials: Sequence[FrozenTrial]) -> bool:
    """Whether another worker was faster with the same repetition."""
    repeats = trial.user_attrs.get("repeats")
    return repeats is not None and any(
        t.user_attrs.get("repeats") == repeats for t in trials if t.number < trial.number
    )


def is_beyond(trial: Trial | FrozenTrial, trials: Sequence[FrozenTrial], total: int | None) -> bool:
    """Whether another worker was faster with the last point. Should the sweep get longer, its turn comes."""
    return total is not None and "repeats" not in trial.user_attrs and index_of(trial, trials) >= total


def repeated(trials: Sequence[FrozenTrial]) -> set[int]:
    """The numbers of the trials that were queued again since."""
    return {t.user_attrs["repeats"] for t in trials if "repeats" in t.user_attrs}


def newest(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The last attempt at each run."""
    again, dropped = repeated(trials), {"surplus", "beyond"}
    return [t for t in trials if t.number not in again and not dropped & t.user_attrs.keys()]


def row_of(trial: FrozenTrial, has_metric: bool) -> SweepRow:
    """What is known of an attempt."""
    run = run_of(trial)
    value = trial.value if trial.state == TrialState.COMPLETE and has_metric else None
    given = (run.get("id", ""), run.get("parameters", {}))
    return SweepRow(trial.number, state_of(trial), *given, value, run.get("plan", {}))


def ended(trials: Sequence[FrozenTrial]) -> int:
    """How many runs have ended for good."""
    return sum(map(_has_ended, newest(trials)))


def _has_ended(trial: FrozenTrial) -> bool:
    state = state_of(trial)
    return state in ("finished", "failed", "stopped") or (state == "lost" and _is_last(trial))


def _is_last(trial: FrozenTrial) -> bool:
    return run_of(trial).get("attempt", 0) >= ATTEMPTS


def to_repeat(
    trials: Sequence[FrozenTrial], total: int | None, taken: Collection[str] = ()
) -> Iterator[tuple[FrozenTrial, dict]]:
    """What was interrupted, and once what was lost, with the attributes of the trial that repeats it.

    `taken` are the numbers of those queued trials that some worker began with: one that was lost before, as
    its worker died or the database went away at that moment, has been no attempt.
    """
    done = repeated(trials)
    for trial in trials:
        attrs, state = trial.user_attrs, state_of(trial)
        if state not in ("interrupted", "lost") or trial.number in done or "surplus" in attrs:
            continue
        run, again = run_of(trial), {"repeats": trial.number}
        if "parameters" not in run:  # it died before it knew what to run
            index = index_of(trial, trials)
            if total is None or index < total:
                yield trial, again | {"index": index}
        elif state == "interrupted" or ("repeats" in attrs and str(trial.number) not in taken):
            yield trial, again | {"run": json.dumps(run)}
        elif not _is_last(trial):
            yield trial, again | {"run": json.dumps({**run, "attempt": run["attempt"] + 1})}
