"""What a sweep tries next, and which runs early termination stops.

A random search draws by a hash of the sweep and the run's number, so a restarted driver draws the same. TPE
(Optuna) proposes from what was tried so far and keeps nothing.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.sweep import Sweep

BY_KEY = ("categorical", "int_uniform", "uniform", "log_uniform_values")  # hashed by that alone


def run_at(
    sweep: Sweep,
    seed: str,
    shared_plan: Mapping[str, Any] | None,
    index: int,
    runs: Sequence[SweepRun] = (),
) -> SweepRun:
    """Return the run at an index of a sweep, still without an id.

    Args:
        seed: Tells this sweep from others, for draws (`sweep_identity.seed_of`).
        shared_plan: What every run records of the plan beside the file and its own number; None: nothing.
        index: Number of the point.
        runs: The sweep's runs so far, by which a sampler goes.
    """
    plan = {} if shared_plan is None else {**shared_plan, "place": index}
    if sweep.is_grid:
        point = sweep.points[index]
        own = {"block": point.block, "arm": point.arm}
        plan |= {key: value for key, value in own.items() if value is not None and plan}
        return SweepRun(index, parameters=point.parameters, plan=plan)
    if sweep.learns:
        values, drawn = _propose(sweep, runs)
    else:
        values, drawn = [p.at(_hashed(seed, index, p)) for p in sweep.parameters], {}
    return SweepRun(index, parameters=nested(sweep.parameters, values), plan=plan, drawn=drawn)


def _hashed(seed: str, index: int, parameter: Parameter) -> float:
    key = parameter.key if parameter.kind in BY_KEY else f"{parameter.key} (quantile)"
    hashed = hashlib.sha256(json.dumps([seed, index, key]).encode()).hexdigest()
    return random.Random(int(hashed, 16)).random()  # noqa: S311


def load_optuna() -> Any:
    """Import Optuna, an extra.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import optuna
    except ImportError as problem:
        if problem.name != "optuna":
            raise
        raise UserError(
            "method='bayes': needs Optuna, which is not installed; install it with: pip install "
            "'ampcompare[tpe]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _propose(sweep: Sweep, runs: Sequence[SweepRun]) -> tuple[list[Any], dict[str, Any]]:
    """Ask TPE for values.

    Returns:
        The value of each parameter; and what TPE drew: a quantile, or the number of a listed value.
    """
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
    # constant_liar: parallel workers do not try the same point at once.
    sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True)
    is_rising = sweep.metric is not None and sweep.metric.maximize
    study = optuna.create_study(sampler=sampler, direction="maximize" if is_rising else "minimize")
    trial_states = {
        RunState.STOPPED: states.PRUNED,
        RunState.FAILED: states.FAIL,
        RunState.FINISHED: states.FAIL,
    }
    for run in (run for run in runs if run.drawn):
        has_value = run.state is RunState.FINISHED and run.value is not None
        study.add_trial(
            optuna.trial.create_trial(
                state=states.COMPLETE if has_value else trial_states.get(run.state, states.RUNNING),
                params=dict(run.drawn),
                distributions=asked,
                value=run.value if has_value else None,
                intermediate_values=dict(run.bands),
            )
        )
    drawn = study.ask(asked).params
    values = [
        p.grid_value(drawn[p.key]) if p.key in listed else p.at(drawn.get(p.key, 0.0))
        for p in sweep.parameters
    ]
    return values, drawn


def falls_behind(value: float, reached: Iterable[float], eta: int, *, maximize: bool) -> bool:
    """Return whether a run is not among the best 1/eta of those that have reached a band.

    Before eta runs have reached it, the best one continues (asynchronous successive halving, Li et al. 2020).

    Args:
        value: The run's metric at the band.
        reached: The metric of every run that has reached the band, this one among them.
        eta: Of eta runs one continues.
        maximize: Whether more is better.
    """
    ordered = sorted(reached, reverse=maximize)
    last = ordered[max(1, len(ordered) // eta) - 1]
    return value < last if maximize else value > last
