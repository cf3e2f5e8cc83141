"""Runs of a search, whose learning rates differ, are no repeats; a missing seed is the next step."""

from typing import Any

import pytest
from support.external import FULL, MIXED, external
from support.fakes import make

from ampcompare import analyse_runs

OPTIONS: dict[str, Any] = {
    "metric": "val_acc:max",
    "baseline": FULL,
    "group_by": ["trainer.precision"],
    "throughput": "samples_per_sec:per_second",
}
RATES = (0.1, 0.2, 0.3, 0.4)


@pytest.mark.parametrize("key", ["lr", "learning_rate", "optim.lr"])
def test_runs_with_different_learning_rates_are_no_repeats(key: str):
    made = [
        external(precision, seed, config={"lr": None, key: rate})
        for precision in (FULL, MIXED)
        for seed, rate in enumerate(RATES)
    ]
    analysis = analyse_runs(made, **OPTIONS)
    assert [group.n for group in analysis.groups] == [1] * 8
    assert not any(claim.shown for c in analysis.comparisons for claim in c.claims.values())
    ignored = analyse_runs(made, ignore=[key], **OPTIONS)
    assert [group.n for group in ignored.groups] == [4, 4]


def test_a_learning_rate_of_each_arm_is_a_part_of_the_arm():
    made = [
        external(precision, seed, config={"lr": rate})
        for precision, rate in ((FULL, 0.1), (MIXED, 0.2))
        for seed in range(4)
    ]
    analysis = analyse_runs(made, **OPTIONS)
    assert [group.n for group in analysis.groups] == [4, 4]
    assert "quality" in analysis.comparisons[0].estimates


def test_recorded_loops_with_different_learning_rates_are_no_repeats():
    made = [
        make(backend, seed, config={"recorder": "0.4", "lr": rate})
        for backend in ("none", "native")
        for seed, rate in enumerate(RATES)
    ]
    assert [group.n for group in analyse_runs(made).groups] == [1] * 8


def test_a_missing_seed_is_said_first_and_not_answered_by_a_number_of_runs():
    made = [external(precision, seed) for precision in (FULL, MIXED) for seed in range(5)]
    for run in made:
        del run.config["seed"]
    advice = analyse_runs(made, **OPTIONS).advice
    assert advice.startswith("No run records a seed, so runs are not paired: --seed KEY")
    assert "hparams.yaml with the line `seed: 3`" in advice
    assert "more" not in advice

    def without_seed(plan: Any) -> None:
        del plan["config"]["seed"]
        plan["config"]["recorder"] = "0.4"

    loops = [make(backend, seed, edit=without_seed) for backend in ("none", "native") for seed in range(5)]
    advice = analyse_runs(loops).advice
    assert advice.startswith("No run records a seed, so runs are not paired: Recorder(seed=...)")
    assert "more" not in advice
