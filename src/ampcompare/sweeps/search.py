"""What a search tries next, and which runs fall behind.

A random search draws by a hash of sweep and place: the same points on every machine, and nobody needs to be
asked. Optuna's TPE proposes from what was tried so far; it keeps nothing.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.table import Row

BY_KEY = ("categorical", "int_uniform", "uniform", "log_uniform_values")  # hashed by that alone


def row_at(
    sweep: Sweep, seed: str, told: Mapping[str, Any] | None, place: int, rows: Sequence[Row] = ()
) -> Row:
    """The run at a place of a sweep, still without an id. `told` is what of the plan every run is told beside
    the file, its own place with it; None: nothing of it. `seed` is what tells this sweep from others, `rows`
    are its runs so far, by which a sampler goes.
    """
    plan = {} if told is None else {**told, "place": place}
    if sweep.is_grid:
        point = sweep.points[place]
        own = {"block": point.block, "arm": point.arm}
        plan |= {key: value for key, value in own.items() if value is not None and plan}
        return Row(place, parameters=point.parameters, plan=plan)
    if sweep.learns:
        values, drawn = _proposed(sweep, rows)
    else:
        values, drawn = [p.at(_hashed(seed, place, p)) for p in sweep.parameters], {}
    return Row(place, parameters=nested(sweep.parameters, values), plan=plan, drawn=drawn)


def _hashed(seed: str, place: int, parameter: Parameter) -> float:
    key = parameter.key if parameter.kind in BY_KEY else f"{parameter.key} (quantile)"
    hashed = hashlib.sha256(json.dumps([seed, place, key]).encode()).hexdigest()
    return random.Random(int(hashed, 16)).random()  # noqa: S311


def load_optuna() -> Any:
    """The library of TPE, an extra. Raises UserError where it is not installed."""
    try:
        import optuna
    except ImportError as problem:
        if problem.name != "optuna":
            raise
        todo = "install it with: pip install 'ampcompare[tpe]'"
        raise UserError(f"method='bayes': needs Optuna, which is not installed; {todo}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _proposed(sweep: Sweep, rows: Sequence[Row]) -> tuple[list[Any], dict[str, Any]]:
    """By TPE: the values, and of each parameter its quantile, of a list of values the number of one."""
    optuna = load_optuna()
    of, states = optuna.distributions, optuna.trial.TrialState
    listed = {p.key: p for p in sweep.parameters if p.kind == "categorical"}
    asked: dict[str, Any] = {
        p.key: of.CategoricalDistribution(range(p.grid_size()))
        if p.key in listed
        else of.FloatDistribution(0, 1)
        for p in sweep.parameters
        if p.kind != "constant"
    }
    # constant_liar: parallel workers do not try the same place at once.
    sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True)
    is_rising = sweep.metric is not None and sweep.metric.maximize
    study = optuna.create_study(sampler=sampler, direction="maximize" if is_rising else "minimize")
    going_on = {"stopped": states.PRUNED, "running": states.RUNNING, "queued": states.RUNNING}
    for row in (row for row in rows if row.drawn):
        has_value = row.state == "finished" and row.value is not None
        study.add_trial(
            optuna.trial.create_trial(
                state=states.COMPLETE if has_value else going_on.get(row.state, states.FAIL),
                params=dict(row.drawn),
                distributions=asked,
                value=row.value if has_value else None,
                intermediate_values={int(band): value for band, value in row.bands.items()},
            )
        )
    drawn = study.ask(asked).params
    values = [
        p.grid_value(drawn[p.key]) if p.key in listed else p.at(drawn.get(p.key, 0.0))
        for p in sweep.parameters
    ]
    return values, drawn


def falls_behind(value: float, reached: Iterable[float], eta: float, *, maximize: bool) -> bool:
    """Whether a run is not among the best 1/eta of those that came to a band, its own value among them;
    before there are eta the best goes on (asynchronous successive halving: Li et al. 2020).
    """
    ordered = sorted(reached, reverse=maximize)
    last = ordered[max(1, int(len(ordered) // eta)) - 1]
    return value < last if maximize else value > last
