from __future__ import annotations

from ampcompare.report import analyse_runs
from report.fakes import make


def three(**options):
    return [make(backend, **options) for backend in ("none", "native", "apex_o1")]


def cautions(runs, **options) -> str:
    return " ".join(analyse_runs(runs, **options).verdict.cautions)


def test_headline_names_the_fastest_and_its_ratio():
    assert analyse_runs(three()).verdict.headline == "native trained fastest here, at 1.90× the throughput of none."


def test_headline_when_nothing_is_faster():
    slow = make("native", edit=lambda p: p["summary"].update({"throughput/images_per_second_median": 4.0}))
    assert analyse_runs([make("none"), slow]).verdict.headline == "Nothing trained faster than none here."


def test_unfinished_run_is_not_the_headline():
    runs = [*three(), make("fp16", state="failed")]
    assert analyse_runs(runs).verdict.headline.startswith("native trained fastest")


def test_line_of_a_backend_holds_its_figures():
    def fix(accuracy):
        def edit(plan):
            plan["summary"] |= {"best/eval_accuracy": accuracy, "eval/accuracy": accuracy}

        return edit

    runs = [make("none", edit=fix(0.92)), make("native", edit=fix(0.9125))]
    lines = dict(analyse_runs(runs).verdict.lines)
    assert lines["none"].startswith("40.0 images/s, 9,200 MiB peak memory, best eval accuracy 92.00 % (n")
    assert lines["native"].replace("\N{NO-BREAK SPACE}", " ") == (
        "1.90× the throughput of none (76.0 against 40.0 images/s), 41 % less peak memory, "
        "best eval accuracy 0.75 points lower, 3 skipped steps (n = 1)."
    )


def test_one_seed_gives_no_interval_and_says_so():
    assert "One seed per backend (n = 1): no interval can be given" in cautions(three())
    several = [make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)]
    assert "no interval" not in cautions(several)
    assert "not confidence intervals" in cautions(several)
    assert "range 1.88× to 1.92×" in dict(analyse_runs(several).verdict.lines)["native"]


def test_same_seed_three_times_is_one_seed():
    runs = [make("none", 1), make("none", 1), make("none", 1)]
    assert "One seed" in cautions(runs)


def test_missing_baseline_is_said_and_nothing_compared():
    analysis = analyse_runs(three()[1:])
    assert "no run of the baseline 'none'" in analysis.verdict.headline
    assert analysis.comparisons == ()
    assert analyse_runs(three(), baseline="native").comparison("none").speedup == 40 / 76


def test_single_backend_has_nothing_to_compare():
    assert "nothing to compare it with" in analyse_runs([make("none")]).verdict.headline


def test_synthetic_data_and_cpu_are_said_only_where_they_hold():
    text = cautions(three(source="synthetic", device_type="cpu"))
    assert "Synthetic data" in text
    assert "fp16 arithmetic is emulated" in text
    assert "say nothing about a GPU" in text
    clean = cautions(three())
    assert "ynthetic" not in clean
    assert "CPU" not in clean


def test_differing_keys_are_named_and_compared_ones_are_not():
    runs = three()
    runs[1].config |= {"batch_size": 256, "output_dir": "elsewhere", "wandb": {"tags": ["x"]}}
    runs[2].summary["environment"] = runs[2].summary["environment"] | {"torch": "2.11.0"}
    analysis = analyse_runs(runs)
    assert [d.key for d in analysis.differences] == ["batch_size", "environment.torch"]
    assert "(batch_size and environment.torch)" in " ".join(analysis.verdict.cautions)
    assert analyse_runs(three()).differences == ()


def test_runs_pooled_although_they_differ_are_named():
    text = cautions([make("none", 1), make("none", 2, config={"batch_size": 64}), make("native", 1)])
    assert "Runs that differ in batch_size are put together under none." in text


def test_other_device_is_said_and_no_speedup_given():
    runs = [make("none", device="A"), make("native", device="B")]
    analysis = analyse_runs(runs)
    assert analysis.verdict.headline == "The backends ran on different devices: no speed-up can be given."
    assert "not compared across devices" in " ".join(analysis.verdict.cautions)


def test_missing_metric_is_named():
    def no_memory(plan):
        plan["rows"] = [{k: v for k, v in row.items() if k != "memory/peak_mib"} for row in plan["rows"]]

    assert "No peak memory is recorded for native." in cautions([make("none"), make("native", edit=no_memory)])


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
    assert dict(analysis.verdict.lines)["unknown"] == "1 run, without a single logged row."
