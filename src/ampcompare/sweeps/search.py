"""What a search tries next, and which runs fall behind.

A random search draws by a hash of sweep and place: the same points on every machine, and nobody needs to be
asked. Optuna's TPE proposes from what was tried so far; it keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.methods import method_of
from ampcompare.sweeps.row import Row

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial


class Draws:
    """The values of one point of a random search, in place of an Optuna trial.

    >>> Draws("mine", 3).suggest_int("x", 1, 6) == Draws("mine", 3).suggest_int("x", 1, 6)
    True
    """

    def __init__(self, seed: str, index: int) -> None:
        self._seed, self._index = seed, index

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return choices[min(int(self._uniform(name) * len(choices)), len(choices) - 1)]

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return min(low + int(self._uniform(name) * (high - low + 1)), high)

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        u = self._uniform(name)
        if log:
            u, low, high = u, math.log(low), math.log(high)
            return math.exp(low + u * (high - low))
        return low + u * (high - low)

    def _uniform(self, name: str) -> float:
        """From 0 to below 1: a hash of sweep, index and parameter, the same on every machine."""
        text = json.dumps([self._seed, self._index, name])
        return random.Random(int(hashlib.sha256(text.encode()).hexdigest(), 16)).random()  # noqa: S311


def draw(sweep: Sweep, seed: str, place: int, rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of a place of a search, as a tree, and what a sampler said of each. `seed` is what tells
    this sweep from others, `rows` are its runs so far.
    """
    sampler = method_of(sweep.method).sampler
    if sampler is None:
        trial = cast("Trial", Draws(seed, place))
        return nested(sweep.parameters, [p.suggest(trial) for p in sweep.parameters]), {}
    study = _study(sweep, sampler(), rows)
    trial = study.ask()
    return nested(sweep.parameters, [p.suggest(trial) for p in sweep.parameters]), trial.params


def row_at(
    sweep: Sweep, seed: str, told: Mapping[str, Any] | None, place: int, rows: Sequence[Row] = ()
) -> Row:
    """The run at a place of a sweep, still without an id. `told` is what of the plan every run is told beside
    the file, its own place with it; None: nothing of it. `seed` and `rows` are as for `draw`.
    """
    plan = {} if told is None else {**told, "place": place}
    if not sweep.is_grid:
        parameters, drawn = draw(sweep, seed, place, rows)
        return Row(place, parameters=parameters, plan=plan, drawn=drawn)
    point = sweep.points[place]
    own = {"block": point.block, "arm": point.arm}
    plan |= {key: value for key, value in own.items() if value is not None and plan}
    return Row(place, parameters=point.parameters, plan=plan)


def _study(sweep: Sweep, sampler: Any, rows: Sequence[Row]) -> Study:
    """What was tried, in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    is_rising = sweep.metric is not None and sweep.metric.maximize
    study = optuna.create_study(sampler=sampler, direction="maximize" if is_rising else "minimize")
    study.add_trials(_trial(sweep, row) for row in rows if row.drawn)
    return study


def _trial(sweep: Sweep, row: Row) -> FrozenTrial:
    from optuna.trial import FixedTrial, TrialState, create_trial

    states = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED}
    states |= dict.fromkeys(("running", "queued"), TrialState.RUNNING)
    state = states.get(row.state, TrialState.FAIL)
    if state == TrialState.COMPLETE and row.value is None:
        state = TrialState.FAIL
    fixed = FixedTrial(dict(row.drawn))
    for parameter in sweep.parameters:
        parameter.suggest(cast("Trial", fixed))
    return create_trial(
        state=state,
        params=fixed.params,
        distributions=fixed.distributions,
        value=row.value if state == TrialState.COMPLETE else None,
        intermediate_values={int(band): value for band, value in row.bands.items()},
    )


def falls_behind(value: float, reached: Iterable[float], eta: int, *, maximize: bool) -> bool:
    """Whether a run is not among the best 1/eta of those that came to a band, its own value among them;
    before there are eta the best goes on (asynchronous successive halving: Li et al. 2020).
    """
    ordered = sorted(reached, reverse=maximize)
    last = ordered[max(1, len(ordered) // eta) - 1]
    return value < last if maximize else value > last
