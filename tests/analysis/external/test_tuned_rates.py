"""Runs of a search, whose learning rates differ, are listed; a missing seed is the next step."""

from typing import Any

from support.external import FULL, MIXED, external
from support.fakes import make

from ampcompare import analyse_runs

OPTIONS: dict[str, Any] = {
    "metric": "val_acc:max",
    "baseline": FULL,
    "group_by": ["trainer.precision"],
    "throughput": "samples_per_sec:per_second",
}


def test_runs_of_a_search_are_pooled_with_a_caveat_and_split_by_an_option():
    rates = [{"lr": rate} for rate in (0.1, 0.2, 0.3, 0.4)]
    made = [external(arm, seed, config=rate) for arm in (FULL, MIXED) for seed, rate in enumerate(rates)]
    recorder = {"recorder": "0.4"}
    loops = [
        make(arm, seed, config=recorder | r) for arm in ("none", "native") for seed, r in enumerate(rates)
    ]
    for analysis in (analyse_runs(made, **OPTIONS), analyse_runs(loops)):
        assert [group.n for group in analysis.groups] == [4, 4]
        assert any("also differ in lr (0.1, 0.2, 0.3 and 0.4)" in line for line in analysis.caveats)
    split = analyse_runs(made, split_by=["lr"], **OPTIONS)
    assert [group.n for group in split.groups] == [1] * 8
    ignored = analyse_runs(made, ignore=["lr"], **OPTIONS)
    assert not any("differ in lr" in line for line in ignored.caveats)


def test_a_missing_seed_is_said_first_and_not_answered_by_a_number_of_runs():
    made = [external(precision, seed) for precision in (FULL, MIXED) for seed in range(5)]
    loops = [make(b, seed, config={"recorder": "0.4"}) for b in ("none", "native") for seed in range(5)]
    for run in (*made, *loops):
        del run.config["seed"]
    advice = analyse_runs(made, **OPTIONS).advice
    assert ("--seed KEY pairs them" in advice, "more" in advice) == (True, False)
    advice = analyse_runs(loops).advice
    assert ("Recorder(seed=...) pairs them" in advice, "more" in advice) == (True, False)
