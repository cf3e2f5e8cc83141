"""The decision table: records of which the right answer is known, and the sentence that gives it.

Accuracies and speeds are chosen so that each interval can be had by hand from the pairs' differences.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, plain, runs

from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs

NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
TABLE: dict[str, tuple[list[RunRecord], str]] = {
    "kept": (
        [*runs("none", BASE), *runs("native", SAME, FAST)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: ±0.002), eval "
            "accuracy equivalent within 0.5 points (+0.0020 points; 90 %: −0.01 to +0.01)."
        ),
    ),
    "kept, a faster one failed": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, FASTER, failed=(1, 2, 4))],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (97.5 %: 1.90 to 1.91), "
            "eval accuracy equivalent within 0.5 points (+0.0020 points; 90 %: −0.01 to +0.01). fp16 is "
            "faster still (2.03×), but 3 of 5 of its runs failed."
        ),
    ),
    "kept, a faster one lost": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", less(1.2), FASTER)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: ±0.002), eval "
            "accuracy equivalent within 0.5 points (+0.0020 points; 95 %: −0.01 to +0.02). fp16 is "
            "faster still (2.07×), but its eval accuracy is 1.20 points lower (97.5 %: −1.22 to −1.18)."
        ),
    ),
    "a loss within the margin": (
        [*runs("none", BASE), *runs("native", less(0.37), FAST)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: ±0.002), eval "
            "accuracy 0.37 points lower (95 %: −0.38 to −0.35), less than the default margin of 0.5 points "
            "(90 %: −0.38 to −0.36)."
        ),
    ),
    "a loss": (
        [*runs("none", BASE), *runs("native", less(1.2), FAST)],
        (
            "native trains 1.90× as fast as none (95 %: ±0.002), but its eval accuracy is 1.20 points "
            "lower (95 %: −1.21 to −1.18)."
        ),
    ),
    "a gain": (
        [*runs("none", BASE), *runs("native", less(-1.2), FAST)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: ±0.002), eval "
            "accuracy 1.20 points higher (95 %: +1.19 to +1.22)."
        ),
    ),
    "undecided": (
        [*runs("none", BASE), *runs("native", NOISY, FAST)],
        (
            "native trains 1.90× as fast as none (95 %: ±0.002), but whether it keeps its eval accuracy "
            "is undecided (−0.20 points; 95 %: −2.93 to +2.53); no number of seeds up to 1,000 would decide "
            "it."
        ),
    ),
    "none keeps": (
        [*runs("none", BASE), *runs("native", less(1.2), FAST), *runs("fp16", NOISY, FASTER)],
        (
            "No backend is shown to be faster and to keep its quality: fp16 trains 2.07× as fast as none "
            "(97.5 %: 2.07 to 2.08), but whether it keeps its eval accuracy is undecided (−0.20 points; "
            "95 %: −2.93 to +2.53); no number of seeds up to 1,000 would decide it. native is faster too "
            "(1.90×), but its eval accuracy is 1.20 points lower (97.5 %: −1.22 to −1.18)."
        ),
    ),
    "one faster failed, the other is undecided in speed": (
        [
            *runs("none", BASE),
            *runs("native", SAME, (36, 44, 43, 41, 40)),
            *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
        ],
        (
            "No backend is shown to be faster and to keep its quality: fp16 trains 2.03× as fast as none "
            "(97.5 %: 1.97 to 2.10), but 3 of 5 of its runs failed."
        ),
    ),
    "all that is faster failed in part": (
        [*runs("none", BASE), *runs("fp16", SAME, FASTER, failed=(2,))],
        ("1 of 5 fp16 runs failed; those that finished train 2.06× as fast as none (95 %: 2.03 to 2.09)."),
    ),
    "no more than no change at all": (
        [
            *runs("none", BASE),
            *runs("none", SAME, (38, 43.5, 40, 43, 41), arms=("first", "first", "last", "last", "last")),
            *runs("native", SAME, (40.4, 41.42, 42.41, 40.41, 41.4)),
        ],
        (
            "No speed-up is shown: native trains 1.01× as fast as none (95 %: ±0.0003), no more than no "
            "change at all shows here."
        ),
    ),
    "still running": (
        [*runs("none", BASE), *runs("native", SAME, FAST, state="running")],
        "Nothing can be compared: 5 runs are still running.",
    ),
    "the baseline is still running": (
        [*runs("none", BASE, state="running"), *runs("native", SAME, FAST)],
        "There is no finished run of the baseline 'none' to compare with: 5 runs are still running.",
    ),
    "saturated": (
        [*runs("none", (0.997, 0.998, 0.997)), *runs("native", (0.997, 0.998, 0.9972), FAST)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: 1.90 to 1.91), "
            "eval accuracy equivalent within 0.5 points (+0.01 points; 90 %: −0.01 to +0.03)."
        ),
    ),
    "more seeds would decide": (
        [*runs("none", BASE[:3]), *runs("native", (0.932, 0.930, 0.9335), FAST)],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (95 %: 1.90 to 1.91), "
            "eval accuracy equivalent within 0.5 points (+0.08 points; 90 %: −0.19 to +0.35)."
        ),
    ),
    "the same seed five times": (
        [
            *(r for speed in SLOW for r in runs("none", BASE[:1], (speed,))),
            *(r for speed in FAST for r in runs("native", SAME[:1], (speed,))),
        ],
        (
            "native trains 1.90× as fast as none (95 %: ±0.002), but one seed does not tell whether it "
            "keeps its eval accuracy."
        ),
    ),
    "no speed-up shown": (
        [*runs("none", BASE), *runs("native", SAME, (36, 44, 43, 41, 40))],
        (
            "No speed-up is shown: native trains 0.998× as fast as none (95 %: 0.918 to 1.08); no "
            "number of seeds up to 1,000 would decide it."
        ),
    ),
    "slower": (
        [*runs("none", BASE), *runs("native", SAME, (1.8, 1.82, 1.85, 1.8, 1.81))],
        ("No backend trains faster than none: native trains 22.5× slower than none (95 %: 22.2× to 22.8×)."),
    ),
    "one seed": (
        [*runs("none", BASE[:1]), *runs("native", SAME[:1], FAST)],
        (
            "native trains 1.90× as fast as none and its eval accuracy differs by +0.01 points: not "
            "enough seeds to tell what of this is chance (n = 1)."
        ),
    ),
    "one seed, slower": (
        [*runs("none", BASE[:1]), *runs("native", SAME[:1], (20,))],
        (
            "native trains 2.00× slower than none and its eval accuracy differs by +0.01 points: not "
            "enough seeds to tell what of this is chance (n = 1)."
        ),
    ),
    "at chance": (
        [*runs("none", [0.1] * 3), *runs("native", [0.1] * 3, FAST)],
        (
            "native trains 1.90× as fast as none (95 %: 1.90 to 1.91), but all 3 runs of native are at "
            "chance (10.00 % by guessing among 10 classes): eval accuracy says nothing there."
        ),
    ),
    "all at chance, the reason said once": (
        [
            *runs("none", [0.1] * 3),
            *runs("native", [0.1] * 3, FAST),
            *runs("apex_o1", [0.1] * 3, FASTER),
        ],
        (
            "apex_o1 trains 2.07× as fast as none (97.5 %: 2.07 to 2.08), native 1.90×, but whether any of "
            "them keeps its quality is not shown: all 3 runs of none are at chance (10.00 % by guessing "
            "among 10 classes): eval accuracy says nothing there."
        ),
    ),
    "a failed baseline": (
        [*runs("none", BASE, failed=(3,)), *runs("native", SAME, FAST)],
        (
            "native trains 1.89× as fast as none (95 %: 1.87 to 1.92), but nothing is claimed of its "
            "eval accuracy, as 1 of 5 none runs failed."
        ),
    ),
    "all of it failed": (
        [*runs("none", BASE), *runs("fp16", SAME, FASTER, failed=range(5))],
        "Nothing can be compared: 5 of 5 fp16 runs failed.",
    ),
    "all of the baseline failed": (
        [*runs("none", BASE, failed=range(5)), *runs("native", SAME, FAST)],
        "There is no finished run of the baseline 'none' to compare with: 5 of 5 none runs failed.",
    ),
    "no accuracy": (
        [*runs("none", [None] * 3), *runs("native", [None] * 3, FAST)],
        (
            "native trains 1.90× as fast as none (95 %: 1.90 to 1.91), but no eval accuracy is recorded "
            "to say what it costs."
        ),
    ),
    "two that keep": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("apex_o1", SAME, (75, 78.5, 79, 76, 78))],
        (
            "native is the fastest that keeps its quality: 1.90× as fast as none (97.5 %: 1.90 to 1.91), "
            "eval accuracy equivalent within 0.5 points (+0.0020 points; 95 %: −0.01 to +0.02). apex_o1 "
            "(1.89×) keeps it too, and is not shown to be slower."
        ),
    ),
    "other devices": (
        [*runs("none", BASE, device="A"), *runs("native", SAME, FAST, device="B")],
        (
            "The backends ran on different devices: no speed-up can be given. native: its eval accuracy "
            "is equivalent within 0.5 points (+0.0020 points; 90 %: −0.01 to +0.01)."
        ),
    ),
    "no baseline": (
        runs("native", SAME, FAST),
        "There is no run of the baseline 'none' here, only of native: nothing to compare with.",
    ),
    "only the baseline": (runs("none", BASE), "Only none was run: there is nothing to compare it with yet."),
    "another setting": (
        [*runs("none", BASE), *runs("native", SAME, FAST, config={"batch_size": 64})],
        ("Nothing is compared: native is not, because it differs from none in batch_size (64 against 128)."),
    ),
    "learning rates": (
        [
            *runs("none", (0.90, 0.93, 0.92), lr=(0.1, 0.2, 0.3)),
            *runs("native", (0.92, 0.91, 0.935), FAST, lr=(0.11, 0.21, 0.31)),
        ],
        (
            "Best of 3 learning rates each: native reaches eval accuracy 93.50 % (lr 0.31), none 93.00 % "
            "(lr 0.2): +0.50 points, 1.95× as fast. A best is picked by the very figure that is shown, "
            "which flatters it: no difference is claimed to be more than chance."
        ),
    ),
}


OPTIONS: dict[str, tuple[list[RunRecord], dict[str, Any], str]] = {
    "no margin for a loss": (
        [make(b, s) for b in ("none", "native") for s in (1, 2, 3)],
        {"metric": "eval/loss"},
        (
            "native trains 1.90× as fast as none (no spread), but no margin is set within which its eval "
            "loss would count as kept (--margin)."
        ),
    ),
    "a narrower margin": (
        [*runs("none", BASE), *runs("native", less(0.37), FAST)],
        {"margin": 0.1},
        (
            "native trains 1.90× as fast as none (95 %: ±0.002), but its eval accuracy is 0.37 points "
            "lower (95 %: −0.38 to −0.35)."
        ),
    ),
    "another key": (
        [
            *runs("native", BASE, config={"batch_size": 128}),
            *runs("native", SAME, FAST, config={"batch_size": 256}),
        ],
        {"group_by": ["batch_size"], "baseline": "128"},
        (
            "batch_size 256 is the fastest that keeps its quality: 1.90× as fast as batch_size 128 (95 %: "
            "±0.002), eval accuracy equivalent within 0.5 points (+0.0020 points; 90 %: −0.01 to +0.01)."
        ),
    ),
    "another baseline": (
        [*runs("none", BASE), *runs("native", SAME, FAST)],
        {"baseline": "native"},
        "No backend trains faster than native: none trains 1.90× slower than native (95 %: ±0.002×).",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_the_headline_follows_what_was_asked(case: str):
    records, options, expected = OPTIONS[case]
    assert plain(analyse_runs(records, **options).verdict.headline) == expected


@pytest.mark.parametrize("case", TABLE)
def test_the_headline_is_the_decision(case: str):
    records, expected = TABLE[case]
    assert plain(analyse_runs(records).verdict.headline) == expected


def test_the_printed_interval_of_a_claim_leaves_out_no_change_however_close_it_is():
    slightly = [s * (1.0024 + 0.0003 * n) for n, s in enumerate(SLOW)]
    found = analyse_runs([*runs("none", BASE), *runs("native", SAME, slightly)])
    claim = found.comparison("native").claims["speed"]
    assert claim.is_above
    assert claim.estimate.low < 1.005  # of three digits: 1.00
    assert "1.003× as fast as none (95 %: 1.002 to 1.004)" in plain(found.verdict.headline)


def test_the_printed_interval_of_equivalence_lies_within_the_margin_however_close_it_is():
    found = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)])
    tested = found.comparison("native").claims["equivalence"].estimate
    margin = max(-tested.low, tested.high) + 1e-5
    view = found.view(margin=margin)
    assert view.comparison("native").is_equivalent
    ends = plain(view.verdict.lines[1][1]).partition("; 90 %: ")[2].partition(")")[0].split(" to ")
    assert all(abs(float(end.replace("−", "-"))) < margin for end in ends)


def test_what_more_seeds_would_not_decide_is_said_of_all_numbers_up_to_the_most():
    found = analyse_runs([*runs("none", BASE), *runs("native", SAME, (36, 44, 43, 41, 40))])
    assert "no number of seeds up to 1,000 would decide it" in found.verdict.headline


def test_the_fastest_of_several_settings_is_the_one_of_most_images_a_second():
    """At batch 256 all is faster; the ratio to its own baseline is larger at 128."""
    small = [*runs("none", BASE), *runs("native", SAME, [2.2 * s for s in SLOW])]
    large = [*runs("none", BASE, [4 * s for s in SLOW]), *runs("native", SAME, [8 * s for s in SLOW])]
    for run in large:
        run.config["batch_size"] = 256
        run.id += "large"
    said = plain(analyse_runs([*small, *large]).verdict.headline)
    assert said.startswith("native · batch_size 256 is the fastest that keeps its quality: 2.00× as fast as")
    assert "2.20×" not in said


def test_a_gain_no_larger_than_what_the_control_lost_is_no_speed_up():
    again = runs(
        "none",
        BASE,
        [s * f for s, f in zip(SLOW, (0.96, 0.97, 0.95, 0.97, 0.96), strict=True)],
        arms=["first", "last", "first", "last", "first"],
    )
    small = runs("native", SAME, [1.02 * s for s in SLOW])
    found = analyse_runs([*runs("none", BASE), *again, *small])
    assert found.comparison("native").claims["speed"].is_above
    assert found.verdict.headline.startswith("No speed-up is shown")
    assert "no more than no change at all shows here" in found.verdict.headline


def test_a_group_beside_a_failed_baseline_is_not_said_to_have_an_accuracy_that_says_nothing():
    found = analyse_runs([*runs("none", BASE, failed=[1]), *runs("native", SAME, FAST)])
    assert found.comparison("native").outcome == "not claimed: 1 of 5 none runs failed"


def test_the_size_of_a_loss_is_the_same_wherever_it_is_said():
    found = analyse_runs([*runs("none", BASE), *runs("native", [a - 0.0122 for a in SAME], FAST)])
    assert found.comparison("native").outcome == "1.22 points lower"
    assert "1.22 points lower" in plain(found.verdict.headline)


def test_nothing_is_decided_where_nothing_is_compared_or_a_group_has_only_begun():
    none, native = runs("none", BASE), runs("native", SAME, FAST)
    assert analyse_runs([*none, *native]).is_decided
    for run in native:
        run.config["batch_size"] = 256
    assert not analyse_runs([*none, *native]).is_decided
    begun = runs("fp16", SAME, FASTER, state="running")
    for run in begun:
        run.rows, run.logged = 0, {}
    assert not analyse_runs([*none, *runs("native", SAME, FAST), *begun]).is_decided


def test_those_that_early_termination_left_are_said_to_be_the_better_ones():
    done, stopped = runs("native", SAME[:3], FAST), runs("native", SAME, FAST, state="killed")[3:]
    (said,) = (
        c for c in analyse_runs([*runs("none", BASE), *done, *stopped]).verdict.cautions if "better" in c
    )
    assert said.startswith("2 of 5 runs of native were stopped: ")
