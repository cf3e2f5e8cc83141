"""Distributions of sweep parameters: grids, random draws that follow them, proposals that learn."""

import dataclasses
import json
import math
from functools import partial
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.samplers import TPESampler
from scipy import stats
from support.outside import Outside

from ampcompare.cli import main
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.sweep_file import Sweep, read_sweep


@pytest.fixture
def sweep_of(project):
    def made(spec: Any, method: str = "random") -> Sweep:
        return read_sweep(project.write_file(method=method, parameters={"x": spec}, metric={"name": "loss"}))

    return made


def draws(sweep: Sweep, count: int = 400) -> list[Any]:
    return [run_at(sweep, "s", None, project).parameters["x"] for project in range(count)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"values": [1, True, "1", None, 1e-05, [1, 2]]}, [1, True, "1", None, 1e-05, [1, 2]]),
        ({"min": 2, "max": 5}, [2, 3, 4, 5]),
        ({"distribution": "q_uniform", "min": 0.1, "max": 0.5, "q": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"distribution": "q_uniform", "min": 1.5, "max": 3.5}, [2, 3]),
    ],
)
def test_a_grid_runs_through_all_values_and_a_search_draws_them(sweep_of, spec, expected):
    (parameter,) = sweep_of(spec, "grid").parameters
    found = [parameter.grid_value(i) for i in range(parameter.grid_size())]
    assert [json.dumps(v) for v in found] == [json.dumps(v) for v in expected]  # 1 and true apart
    assert {json.dumps(v) for v in draws(sweep_of(spec))} == {json.dumps(v) for v in expected}


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("distribution: uniform, min: 0.5, max: 2.5", stats.uniform(0.5, 2.0)),
        ("distribution: log_uniform, min: -3, max: 1", stats.loguniform(math.exp(-3), math.exp(1))),
        ("distribution: log_uniform_values, min: 0.0001, max: 1.0", stats.loguniform(1e-4, 1.0)),
        ("distribution: inv_log_uniform, min: 0, max: 2", stats.loguniform(math.exp(-2), 1.0)),
        ("distribution: inv_log_uniform_values, min: 0.1, max: 10", stats.loguniform(0.1, 10)),
        ("distribution: normal, mu: 3, sigma: 0.5", stats.norm(3, 0.5)),
        ("distribution: log_normal, mu: 0.5, sigma: 0.7", stats.lognorm(0.7, scale=math.exp(0.5))),
        ("distribution: beta, a: 2, b: 5", stats.beta(2, 5)),
    ],
)
def test_draws_follow_the_distribution(sweep_of, spec, reference):
    drawn = draws(sweep_of(yaml.safe_load(f"{{{spec}}}")))
    assert stats.kstest(drawn, reference.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("kind", "settings", "ends"),
    [
        ("uniform", {"min": 0.3, "max": 5.2, "q": 1}, (1, 5)),
        ("log_uniform_values", {"min": 8, "max": 64, "q": 8}, (8, 64)),
        ("normal", {"mu": 0, "sigma": 2, "q": 0.5}, (-math.inf, math.inf)),
        ("beta", {"a": 1, "b": 1, "q": 0.1}, (0, 1)),
    ],
)
def test_quantized_draws_are_multiples_within_the_range(sweep_of, kind, settings, ends):
    values, q = draws(sweep_of({"distribution": f"q_{kind}", **settings})), settings["q"]
    assert all(math.isclose(v / q, round(v / q), abs_tol=1e-9) for v in values)
    assert len(set(values)) > 2
    assert ends[0] <= min(values)
    assert max(values) <= ends[1]
    assert math.inf in ends or (min(values), max(values)) == pytest.approx(ends)
    assert {type(v) for v in values} == {type(q)}


def test_probabilities_are_followed(sweep_of):
    values = draws(sweep_of({"values": ["rare", "often", "never"], "probabilities": [0.2, 0.8, 0.0]}), 500)
    assert "never" not in values
    assert stats.binomtest(values.count("rare"), 500, 0.2).pvalue > 1e-3


def test_bayes_comes_near_the_optimum_and_prefers_the_better_value(sweep_of, outside: Outside):
    """By the last of 40 proposals, each made with all that were tried before."""
    outside.replace(optuna.samplers, "TPESampler", partial(TPESampler, seed=3))
    for spec, cost, near in (
        ({"min": 0.0, "max": 1.0}, lambda x: (x - 0.3) ** 2, 0.12),
        ({"distribution": "normal"}, lambda x: (x - 0.3) ** 2, 0.5),
        ({"values": ["far", "near", "off"]}, lambda x: float(x != "near"), None),
    ):
        sweep, rows = sweep_of(spec, "bayes"), []
        for project in range(40):
            row = run_at(sweep, "s", None, project, rows)
            rows.append(dataclasses.replace(row, state=RunState.FINISHED, value=cost(row.parameters["x"])))
        found = [row.parameters["x"] for row in rows[20:]]
        if near is None:
            assert found.count("near") > 10
        else:
            assert np.median(np.abs(np.array(found) - 0.3)) < near


def test_without_optuna_a_bayes_sweep_says_what_to_install(
    sweep_of, tmp_path, outside: Outside, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    outside.uninstall("optuna")
    with pytest.raises(SystemExit) as end:
        main(["sweep", str(sweep_of({"min": 0.0, "max": 1.0}, "bayes").path)])
    assert end.value.code == 2
    assert "needs Optuna, which is not installed; install it with: pip install 'ampcompare[tpe]'" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "runs").exists()


def test_groups_are_trees_and_a_dotted_name_stays_one_key():
    varied = [Parameter(path, "constant", {}) for path in (("a",), ("o", "lr"), ("o", "d", "e"), ("o.lr",))]
    assert nested(varied, [1, 2, 3, 4]) == {"a": 1, "o": {"lr": 2, "d": {"e": 3}}, "o.lr": 4}
