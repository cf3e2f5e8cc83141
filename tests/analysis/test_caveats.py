"""The caveats are true of the runs: underflow by dtype, and how exactly an accuracy is known."""

from typing import Any

import pytest
from scipy import stats
from support.fakes import full, make
from support.known_runs import BASE, SAME, less, runs

from ampcompare import analyse_runs, metrics

PERFECT = (1.0, 1.0, 1.0)


def with_test_images(made: list, images: int) -> list:
    """Set the size of the test set of runs."""
    for run in made:
        run.summary |= {metrics.TEST_IMAGES: images, metrics.CLASSES: 10}
    return made


def test_underflow_is_a_loss_under_fp16_and_hypothetical_elsewhere():
    """`full` logs 5% at scale 1 for native, 4% for none, 7% for others; a tenth at the scale."""
    as_bf16 = {"backend": "native_bf16"}
    made = [make("none", edit=full), make("native", edit=full), make("native", 2, edit=full, config=as_bf16)]
    analysis = analyse_runs(made).numerics["underflow"]
    shares, meaning = analysis.removeprefix(
        "Largest fraction of gradient elements below fp16's range "
    ).split(". ")
    assert shares.split("; ") == [
        "with fp32 (none): below 1% would be zero in fp16 (4% without the loss scale)",
        "with native: below 1%, flushed to zero (5% without the loss scale)",
        "with native_bf16: 1% would be zero in fp16 (7% without the loss scale)",
    ]
    assert meaning == "A gradient element that is flushed to zero changes no weight."
    assert "changes no weight" not in analyse_runs([made[0], made[2]]).numerics["underflow"]


def test_perfect_agreement_assumes_the_resolution_of_the_test_set_with_a_caveat():
    """Three pairs that agree: s is one answer of 200, 0.5 points; 4.303 * 0.5 / sqrt(3) = 1.242."""
    made = with_test_images([*runs("none", PERFECT), *runs("native", PERFECT)], 200)
    unfinished = make("native", 9, state="running")  # which has no test set in its summary yet
    analysis = analyse_runs([*made, unfinished])
    low, high = analysis.comparison("native").estimates["quality"].ends
    half = stats.t.ppf(0.975, 2) * 0.5 / 3**0.5
    assert (low, high) == (pytest.approx(-half), pytest.approx(half))
    caveats = " ".join(analysis.caveats)
    assert "a standard deviation of 0.5 points (one of 200 test images)" in caveats


def test_seeds_that_differ_need_no_assumed_spread():
    made = with_test_images([*runs("none", BASE), *runs("native", SAME)], 10_000)
    assert "assumes a standard deviation" not in " ".join(analyse_runs(made).caveats)


def test_seeds_that_all_differ_by_the_same_amount_have_an_assumed_spread():
    lower = [value - 0.01 for value in BASE]
    made = with_test_images([*runs("none", BASE), *runs("native", lower)], 200)
    caveats = " ".join(analyse_runs(made).caveats)
    assert "a standard deviation of 0.5 points (one of 200 test images) for native" in caveats


@pytest.mark.parametrize(("accuracies", "images"), [(PERFECT, 200), ((0.93, 0.93, 0.93), 10_000)])
def test_the_report_says_that_its_intervals_do_not_cover_the_choice_of_the_test_set(
    accuracies: Any, images: int
):
    made = with_test_images([*runs("none", accuracies), *runs("native", accuracies)], images)
    sentences = [one for one in analyse_runs(made).notes if "test set of" in one and "All intervals" in one]
    assert len(sentences) == 1
    assert f"this test set of {images:,} samples" in sentences[0]


@pytest.mark.parametrize("n", [3, 5])
def test_same_and_not_lower_say_which_failures_they_do_not_exclude(n: int):
    good = [*runs("none", BASE[:n]), *runs("native", SAME[:n]), *runs("fp16", less(5.0)[:n])]
    rate = 100 * stats.binomtest(0, n).proportion_ci(0.9, "exact").high
    (told,) = (one for one in analyse_runs(good).notes if "do not exclude" in one)
    assert told.startswith(f"{n} good runs of native do not exclude that up to {rate:.0f}% of runs fail")


def test_perfect_accuracy_on_a_test_set_of_unknown_size_claims_nothing():
    made = [*runs("none", PERFECT), *runs("native", PERFECT)]
    for run in made:
        run.config["data"]["source"] = "./mine.py:build"
        run.logged["eval/accuracy"][1][:] = 1.0
    native = analyse_runs(made).comparison("native")
    assert not native.estimates["quality"].has_interval
    assert native.claims["quality"].shown == ()
    assert (
        native.claims["quality"].why == "eval accuracy is the same in all runs and its resolution is unknown"
    )


def test_the_sentence_on_the_test_set_needs_no_classes():
    made = [*runs("none", BASE), *runs("native", SAME)]
    for run in made:
        run.config["data"]["source"] = "./mine.py:build"
        run.summary |= {metrics.TEST_IMAGES: 800}
    assert any("this test set of 800 samples" in note for note in analyse_runs(made).notes)


@pytest.mark.parametrize(
    ("fraction", "sentence"),
    [
        (0.0, "no gradient element was below fp16's range in 20 measured steps"),
        (0.0009, "below 0.5% of the gradient elements were below fp16's range in 20 measured steps"),
    ],
)
def test_little_underflow_is_not_called_none(fraction: float, sentence: str):
    def edit(plan: Any) -> None:
        rows = [row for row in plan["rows"] if "train/loss" in row]
        for row in rows[:10]:
            row |= {metrics.UNDERFLOW: fraction, metrics.UNDERFLOW_UNSCALED: fraction}

    made = [make("none", seed, edit=edit) for seed in (1, 2)]
    assert sentence in analyse_runs(made).numerics[""]


@pytest.mark.parametrize("every", [None, 1, 7, 5_000, 1_000_000])
def test_diagnostics_that_never_came_to_a_step_are_not_called_off(every: int | None):
    def edit(plan: Any) -> None:
        plan["config"]["diagnostics"] = {"every": every}

    made = [make("none", seed, edit=edit) for seed in (1, 2)]
    steps = max(run.values(metrics.STEP).max() for run in made)
    told = analyse_runs(made).numerics[""]
    is_too_long = every is not None and bool(every > steps)
    assert (f"diagnostics.every={every} is more than the {steps:,.0f} steps of a run" in told) is is_too_long
    assert ("diagnostics.every records them" in told) is not is_too_long


def test_runs_that_failed_are_not_told_to_compare_their_best_value():
    """Their lengths differ because they ended early, and a best value of a failed run is no result."""
    failing = runs("native", SAME, failed=(0, 1))
    for run in failing[:2]:
        run.summary[metrics.STEP] = 3
    told = " ".join(analyse_runs([*runs("none", BASE), *failing]).caveats)
    assert "--best" not in told
    assert "2 of 5 runs of native" in told
