"""The caveats are true of the runs: underflow by dtype, and how exactly an accuracy is known."""

import math

import numpy as np
from scipy import stats
from support.fakes import full, make, put
from support.known_runs import BASE, SAME, less, runs

from ampcompare import analyse_runs, metrics

PERFECT = (1.0, 1.0, 1.0)


def test_underflow_is_a_loss_under_fp16_and_hypothetical_elsewhere():
    """`full` logs 5% at scale 1 for native, 4% for none, 7% for others; a tenth at the scale."""
    as_bf16 = {"backend": "native_bf16"}
    made = [make("none", edit=full), make("native", edit=full), make("native", 2, edit=full, config=as_bf16)]
    sentence = analyse_runs(made).numerics["underflow"]
    none, native, bf16 = sentence.partition(". ")[0].split("; ")
    assert ("would be zero in fp16" in none, "4%" in none) == (True, True)
    assert ("flushed to zero" in native, "5%" in native) == (True, True)
    assert ("1% would be zero in fp16" in bf16, "7%" in bf16) == (True, True)


def test_same_and_not_lower_say_which_failures_they_do_not_exclude():
    n = 5
    good = [*runs("none", BASE[:n]), *runs("native", SAME[:n]), *runs("fp16", less(5.0)[:n])]
    rate = 100 * stats.binomtest(0, n).proportion_ci(0.9, "exact").high
    (note,) = (one for one in analyse_runs(good).notes if "do not exclude" in one)
    assert f"{rate:.0f}%" in note
    assert "native" in note
    assert "fp16" not in note


def test_perfect_accuracy_on_a_test_set_of_unknown_size_claims_nothing():
    made = [*runs("none", PERFECT), *runs("native", PERFECT)]
    for run in made:
        run.config["data"]["source"] = "./mine.py:build"
        run.logged["eval/accuracy"][1][:] = 1.0
    native = analyse_runs(made).comparison("native")
    assert not native.estimates["quality"].has_interval
    assert native.claims["quality"].shown == ()
    assert "resolution is unknown" in native.claims["quality"].why


def test_nothing_is_claimed_of_skips_and_scale_where_skips_are_unknown():
    run = make("native", recorder={"version": 1, "backend": "native"})
    run.config["precision"] = {"init_scale": 256.0}
    run.summary.pop(metrics.SKIPPED, None)
    count = run.rows
    put(run, metrics.SCALE, 256.0)
    run.logged[metrics.SKIPPED] = np.arange(count), np.full(count, math.nan)
    numerics = " ".join(analyse_runs([run]).numerics.values())
    assert ("256 in each logged row" in numerics, "unknown" in numerics) == (True, True)
    assert ("o step" in numerics, "constant" in numerics) == (False, False)
