from __future__ import annotations

import pytest
from support.fakes import make
from support.known_runs import plain

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs


def three(**options):
    return [make(backend, **options) for backend in ("none", "native", "apex_o1")]


def cautions(runs, **options) -> str:
    return " ".join(analyse_runs(runs, **options).verdict.cautions)


def fix(accuracy, **summary):
    def edit(plan):
        plan["summary"] |= {"best/eval_accuracy": accuracy, "eval/accuracy": accuracy} | summary

    return edit


def seeds(backend, *accuracies, speeds=None):
    speed = "throughput/images_per_second_median"
    return [
        make(backend, seed, edit=fix(accuracy, **({speed: speeds[seed]} if speeds else {})))
        for seed, accuracy in enumerate(accuracies)
    ]


def test_line_of_a_backend_with_three_seeds_has_its_intervals():
    runs = seeds("none", 0.930, 0.931, 0.932, speeds=(40, 41, 42))
    runs += seeds("native", 0.931, 0.932, 0.934, speeds=(76, 78.72, 79.8))
    assert plain(dict(analyse_runs(runs).verdict.lines)["native"]).startswith(
        "Trains 1.91× as fast as none (95 %: 1.88 to 1.94), needs 41 % less memory (no spread), and its "
        "eval accuracy is equivalent within 0.5 points (+0.13 points; 90 %: +0.04 to +0.23) (n = 3, paired "
        "by seed)"
    )


def test_other_metric_is_compared_in_its_own_unit_without_a_margin():
    runs = [make(b, s) for b in ("none", "native") for s in (1, 2, 3)]
    analysis = analyse_runs(runs, metric="eval/loss")
    assert analysis.comparison("native").equivalence is None
    assert "its eval loss" in analysis.verdict.headline
    assert analyse_runs(runs, metric="eval/loss", margin=5.0).comparison("native").equivalence.holds


def test_metric_that_no_run_has_is_an_error_that_names_the_nearest():
    with pytest.raises(UserError, match="did you mean eval/accuracy"):
        analyse_runs(three(), metric="eval/acuracy")
    with pytest.raises(UserError, match="--margin"):
        analyse_runs(three(), margin=-1.0)


def test_seeds_that_are_not_paired_are_said():
    runs = seeds("none", 0.9, 0.9, 0.9) + seeds("native", 0.9)
    assert "Seeds without a partner are left out of the comparison (native: 2)." in cautions(runs)
    runs = [make("none", s) for s in (1, 2)] + [make("native", s) for s in (3, 4)]
    assert "share fewer than two seeds: compared without pairing" in cautions(runs)
    assert "not paired" in dict(analyse_runs(runs).verdict.lines)["native"]


def test_clock_that_goes_backwards_is_said():
    def back(plan):
        plan["rows"][7]["time/elapsed_seconds"] = 0.0

    assert "The clock of none_resnet50 goes backwards" in cautions([make("none", edit=back)])


def test_headline_of_one_seed_names_the_fastest_and_that_it_is_not_enough():
    text = plain(analyse_runs(three()).verdict.headline)
    assert text.startswith(
        "native trains 1.90× as fast as none and its eval accuracy differs by −2.17 points"
    )
    assert text.endswith("not enough seeds to tell what of this is chance (n = 1).")


def test_line_of_a_backend_holds_its_figures():
    runs = [make("none", edit=fix(0.92)), make("native", edit=fix(0.9125))]
    lines = {label: plain(line) for label, line in analyse_runs(runs).verdict.lines}
    assert lines["none"] == "40.0 images/s, 9,200 MiB peak memory, eval accuracy 92.00 % (n = 1)."
    assert lines["native"] == (
        "Trains 1.90× as fast as none, needs 41 % less memory and its eval accuracy differs by −0.75 points: "
        "not enough seeds to tell what of this is chance (n = 1); 3 skipped steps."
    )


def test_one_seed_gives_no_interval_and_says_so():
    assert "One seed per backend (n = 1): no interval can be given" in cautions(three())
    several = [make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)]
    assert "no interval" not in cautions(several)


def test_without_a_baseline_or_another_backend_nothing_is_compared():
    assert "nothing to compare it with" in analyse_runs([make("none")]).verdict.headline
    analysis = analyse_runs(three()[1:])
    assert "no run of the baseline 'none'" in analysis.verdict.headline
    assert analysis.comparisons == ()
    assert analyse_runs(three(), baseline="native").comparison("none").speedup == 40 / 76


def test_synthetic_data_and_cpu_are_said_only_where_they_hold():
    text = cautions(three(source="synthetic", device_type="cpu"))
    assert "Synthetic data" in text
    assert "fp16 arithmetic is emulated" in text
    assert "say nothing about a GPU" in text
    clean = cautions(three())
    assert "ynthetic" not in clean
    assert "CPU" not in clean


def test_other_device_is_said_and_no_speedup_given():
    runs = [make("none", device="A"), make("native", device="B")]
    analysis = analyse_runs(runs)
    assert analysis.verdict.headline == "The backends ran on different devices: no speed-up can be given."
    assert "not compared across devices" in " ".join(analysis.verdict.cautions)


def test_missing_metric_is_named():
    def no_memory(plan):
        plan["rows"] = [{k: v for k, v in row.items() if k != "memory/peak_mib"} for row in plan["rows"]]

    assert "No peak memory is recorded for native." in cautions(
        [make("none"), make("native", edit=no_memory)]
    )


def test_unfinished_unsound_and_nan_runs_are_named():
    def nan(plan):
        plan["rows"][2]["train/loss"] = "NaN"

    runs = [make("none"), make("native", edit=nan), make("apex_o1", state="crashed", problems=("Torn.",))]
    text = cautions(runs)
    assert "apex_o1_resnet50 (crashed) did not finish" in text
    assert "For apex_o1 there is none, so the figures are those of unfinished runs." in text
    assert "The training loss of native_resnet50 is not finite in 1 row, first at step 10." in text
    assert "The record of apex_o1_resnet50 has problems" in text


def test_run_of_which_nothing_is_known_is_still_listed():
    def empty(plan):
        plan["rows"], plan["summary"], plan["config"] = [], {}, {}

    analysis = analyse_runs([make("none"), make("native", edit=empty, state="crashed")])
    assert [f.label for f in analysis.figures] == ["none", "unknown"]
    assert dict(analysis.verdict.lines)["unknown"] == (
        "The one unknown run failed (95 %: 3 to 100 %), without a single logged row."
    )


def test_means_that_lie_the_other_way_round_than_the_claim_of_pairs_are_said():
    """All pairs but one gain a third; the one that loses ran on a machine twenty times as fast."""
    accuracies = [0.93] * 12
    slow = [100 + seed / 10 for seed in range(11)]
    base = seeds("none", *accuracies, speeds=[*slow, 2000])
    ours = seeds("native", *accuracies, speeds=[*(1.3 * s + i % 3 for i, s in enumerate(slow)), 1500])
    analysis = analyse_runs([*base, *ours])
    (comparison,) = analysis.comparisons
    assert comparison.claims["speed"].is_above
    said = "In throughput the means of native and the baseline lie the other way round"
    assert said in " ".join(analysis.verdict.cautions)
    assert said not in cautions([*base[:-1], *ours[:-1]])


def test_a_ratio_whose_interval_spans_decades_is_too_noisy_to_tell():
    base = seeds("none", 0.93, 0.93, speeds=(40, 41))
    lines = dict(analyse_runs([*base, *seeds("native", 0.93, 0.93, speeds=(4, 400))]).verdict.lines)
    assert "Trains at a speed that is too noisy to tell from that of none" in plain(lines["native"])
    known = dict(analyse_runs([*base, *seeds("native", 0.93, 0.93, speeds=(80, 82.1))]).verdict.lines)
    assert "as fast as none" in plain(known["native"])
