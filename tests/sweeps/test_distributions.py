"""Distributions of sweep parameters: grids, and suggestions that follow the distribution they name."""

from __future__ import annotations

import json
import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ampcompare.sweeps.distributions import DISTRIBUTIONS, Parameter, nested, parse_spec

optuna.logging.set_verbosity(optuna.logging.ERROR)


def parameter(spec, *path):
    return Parameter(path or ("x",), *parse_spec(spec))


def draws(spec, count=400, sampler=None):
    study = optuna.create_study(sampler=sampler or optuna.samplers.RandomSampler(seed=1))
    varied = parameter(spec)
    values = []
    for _ in range(count):
        trial = study.ask()
        values.append(varied.suggest(trial))
        study.tell(trial, 0.0)
    return values


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"value": None}, [None]),
        ({"values": [1, True, "1", None, 1e-05, [1, 2]]}, [1, True, "1", None, 1e-05, [1, 2]]),
        ({"min": 2, "max": 5}, [2, 3, 4, 5]),
        ({"distribution": "q_uniform", "min": 0.1, "max": 0.5, "q": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"distribution": "q_uniform", "min": 1.5, "max": 3.5}, [2, 3]),
    ],
)
def test_grid_runs_through_all_values(spec, expected):
    varied = parameter(spec)
    found = [varied.grid_value(i) for i in range(varied.grid_size())]
    assert found == expected
    assert [type(v) for v in found] == [type(v) for v in expected]


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ({"min": 0.5, "max": 2.5}, stats.uniform(0.5, 2.0)),
        ({"distribution": "uniform", "min": 1, "max": 3}, stats.uniform(1, 2)),
        ({"distribution": "log_uniform", "min": -3, "max": 1}, stats.loguniform(math.exp(-3), math.exp(1))),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0}, stats.loguniform(1e-4, 1.0)),
        ({"distribution": "inv_log_uniform", "min": 0, "max": 2}, stats.loguniform(math.exp(-2), 1.0)),
        ({"distribution": "inv_log_uniform_values", "min": 0.1, "max": 10}, stats.loguniform(0.1, 10)),
        ({"distribution": "normal"}, stats.norm(0, 1)),
        ({"distribution": "normal", "mu": 3, "sigma": 0.5}, stats.norm(3, 0.5)),
        ({"distribution": "log_normal", "mu": 0.5, "sigma": 0.7}, stats.lognorm(0.7, scale=math.exp(0.5))),
        ({"distribution": "beta", "a": 2, "b": 5}, stats.beta(2, 5)),
    ],
)
def test_continuous_suggestions_follow_the_distribution(spec, reference):
    assert stats.kstest(draws(spec), reference.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("spec", "of", "ends"),
    [
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, 0.25, (0, 1)),
        ({"distribution": "q_uniform", "min": 0.3, "max": 5.2}, 1, (1, 5)),
        ({"distribution": "q_log_uniform", "min": 0, "max": 3, "q": 2}, 2, (2, 20)),
        ({"distribution": "q_log_uniform_values", "min": 8, "max": 64, "q": 8}, 8, (8, 64)),
        ({"distribution": "q_normal", "mu": 0, "sigma": 2, "q": 0.5}, 0.5, None),
        ({"distribution": "q_log_normal", "q": 1}, 1, None),
        ({"distribution": "q_beta", "a": 1, "b": 1, "q": 0.1}, 0.1, (0, 1)),
    ],
)
def test_quantized_suggestions_are_multiples_within_the_range(spec, of, ends):
    values = draws(spec)
    assert all(math.isclose(v / of, round(v / of), abs_tol=1e-9) for v in values)
    assert len(set(values)) > 2
    if ends:
        assert (min(values), max(values)) == pytest.approx(ends)
    assert {type(v) for v in values} == {type(of)}


def test_whole_numbers_stay_whole_and_reach_both_ends():
    values = draws({"min": 1, "max": 4})
    assert {type(v) for v in values} == {int}
    assert set(values) == {1, 2, 3, 4}


def test_categorical_keeps_types_apart():
    values = draws({"values": [1, True, "1", None, 1.5, [1]]}, 200)
    assert {json.dumps(v) for v in values} == {"1", "true", '"1"', "null", "1.5", "[1]"}


def test_probabilities_are_followed():
    values = draws({"values": ["rare", "often", "never"], "probabilities": [0.2, 0.8, 0.0]}, 500)
    assert "never" not in values
    assert stats.binomtest(values.count("rare"), 500, 0.2).pvalue > 1e-3


@pytest.mark.parametrize("spec", [{"min": 0.0, "max": 1.0}, {"distribution": "normal", "mu": 0, "sigma": 1}])
def test_bayes_comes_near_the_optimum_of_plain_and_of_quantile_parameters(spec):
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3))
    varied = parameter(spec)
    found = []
    for _ in range(40):
        trial = study.ask()
        found.append(varied.suggest(trial))
        study.tell(trial, (found[-1] - 0.3) ** 2)
    assert np.median(np.abs(np.array(found[20:]) - 0.3)) < np.median(np.abs(np.array(found[:10]) - 0.3))


@given(st.sampled_from(sorted(DISTRIBUTIONS)), st.floats(0, 1))
def test_every_quantile_is_a_finite_number(kind, u):
    spec = {
        "min": 1,
        "max": 3,
        "q": 0.5,
        "mu": 0,
        "sigma": 1,
        "a": 1,
        "b": 2,
        "values": [1.0],
        "probabilities": [1.0],
    }
    _, quantile = DISTRIBUTIONS[kind]
    assert quantile is None or math.isfinite(quantile(spec, u))


def test_nested_parameters_become_groups():
    varied = [
        parameter({"value": 1}, "a"),
        parameter({"value": 2}, "o", "lr"),
        parameter({"value": 3}, "o", "d", "e"),
    ]
    assert nested(varied, [1, 2, 3]) == {"a": 1, "o": {"lr": 2, "d": {"e": 3}}}


def test_dotted_name_stays_one_key():
    assert nested([parameter({"value": 1}, "optimizer.lr")], [0.1]) == {"optimizer.lr": 0.1}
