"""Options of a report besides the runs: gates, the plan, and benchmarks."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, runs

from ampcompare import analyse_runs
from ampcompare.errors import UserError
from ampcompare.report.charts import charts_of
from ampcompare.report.comparison_table import comparison_table

RECORDS = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(0.37), FAST),
    *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
]


@pytest.fixture(scope="module")
def known():
    """Return the estimates of the group `native`."""
    analysis = analyse_runs(RECORDS)
    return analysis.comparison("native").estimates


def shown(text: str, records=RECORDS, **options) -> dict[str, bool]:
    """Return for each gate of a requirement whether it is shown."""
    analysis = analyse_runs(records, require=[text], **options)
    return {answer.gate.text: answer.is_shown for answer in analysis.gate_results}


def test_a_gate_is_shown_up_to_the_end_of_the_interval(known):
    low, high = known["speed"].low, known["memory"].high
    terms = (f"speedup >= {low - 1e-6:.9f}", f"speedup >= {known['speed'].value:.9f}")
    assert list(shown(f"native: {', '.join(terms)}").values()) == [True, False]
    terms = (f"memory <= {high + 1e-6:.9f}", f"memory <= {high - 1e-6:.9f}")
    assert list(shown(f"native: {', '.join(terms)}").values()) == [True, False]


def test_an_equivalence_gate_uses_its_own_margin():
    terms = ("equivalent within 0.5", "equivalent within 0.3", "not lower by 0.4", "not lower by 0.36")
    results = shown(f"apex_o1: {', '.join(terms)}", margin=2.0)
    assert results == dict(zip(terms, (True, False, True, False), strict=True))


def test_a_control_can_refute_a_speed_up_gate_but_not_a_gate_below_1():
    small = (40.4, 41.42, 42.41, 40.41, 41.4)
    arm = runs("none", SAME, (38, 43.5, 40, 43, 41), arms=("first", "first", "last", "last", "last"))
    records = [*runs("none", BASE), *runs("native", SAME, small), *arm]
    assert shown("native: speedup >= 1, speedup >= 0.95", records) == {
        "speedup >= 1": False,
        "speedup >= 0.95": True,
    }


def test_no_quality_gate_is_shown_for_a_group_with_failures():
    assert shown("fp16: speedup >= 1.5, equivalent within 5, not lower by 5, failures <= 2") == {
        "speedup >= 1.5": False,  # two runs are left, too few for an interval
        "equivalent within 5": False,
        "not lower by 5": False,
        "failures <= 2": False,
    }
    assert shown("fp16: failures <= 3") == {"failures <= 3": True}
    one_failed = [*runs("none", BASE), *runs("native", SAME, FAST, failed=(4,))]  # four are left to compare
    assert shown("native: equivalent within 0.5, speedup >= 1.5", one_failed) == {
        "equivalent within 0.5": False,
        "speedup >= 1.5": True,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("native speedup >= 1", "expected 'LABEL: TERM'"),
        ("native: speed >= 1.5", "did you mean speedup >= X"),
        ("native: speedup >= fast", "is not a requirement"),
        ("native: speedup >= 0", "expected a number above 0"),
        ("native: failures <= 1.5", "expected a whole number"),
        ("nativ: speedup >= 1.5", "did you mean native"),
        ("none: speedup >= 1.5", "is the baseline, of which only"),
    ],
)
def test_an_invalid_gate_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as told:
        analyse_runs(RECORDS, require=[text])
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="lower is better for eval/loss"):
        analyse_runs(RECORDS, metric="eval/loss", require=["native: not lower by 0.1"])


def test_a_running_run_counts_as_a_possible_failure():
    going = make("native", 9, state="running", steps=20, epochs=2)
    done = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(3)]
    (answer,) = analyse_runs([*done, going], require=["native: failures <= 0"]).gate_results
    assert not answer.is_shown
    assert answer.why == "3 of 4 runs, 1 running"
    (answer,) = analyse_runs([*done, going], require=["native: failures <= 1"]).gate_results
    assert answer.is_shown


PLAN = {"margin": 1.0, "target": 0.5, "looks": [3, 5], "max_seeds": 5}


def planned(n: int = 5, **plan: Any):
    """Return runs with a plan in their configs."""
    config = {"plan": PLAN | plan}
    return [*runs("none", BASE[:n], config=config), *runs("native", SAME[:n], FAST, config=config)]


def note(records, **options) -> str:
    """Return the first caveat."""
    return analyse_runs(records, **options).caveats[0]


def test_margin_target_and_level_come_from_the_plan():
    analysis = analyse_runs(planned())
    assert (analysis.metric.margin, analysis.metric.target) == (1.0, 50.0)
    assert "the same within 1 point" in analysis.headline
    assert analysis.level == 1 - 0.05 / 2  # two looks share the 5 %
    assert "planned: margin 1 point, target 50.00%, looks at 3 and 5 seeds, at most 5 seeds" in analysis.basis
    assert "Not as planned" not in " ".join(analysis.caveats)


def test_options_override_the_plan_with_a_caveat():
    analysis = analyse_runs(planned(), margin=0.5, target=0.6)
    assert (analysis.metric.margin, analysis.metric.target) == (0.5, 60.0)
    assert analysis.caveats[0] == (
        "Not as planned: the margin is 0.5 points instead of 1 point and the target is 60.00% instead of "
        "50.00%."
    )


def test_deviations_from_the_plan_give_a_caveat():
    looks = "no look was planned at 4 seeds, but at 3 and 5 seeds (plan.looks of the sweep file)."
    assert looks in " ".join(analyse_runs(planned(4)).caveats)
    assert "no look was planned" not in " ".join(analyse_runs(planned(3)).caveats)
    assert "the A/A control is missing" in note(planned(control="bookends"))
    unplanned = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)])
    assert "planned" not in " ".join([unplanned.basis, unplanned.caption, *unplanned.caveats])


@pytest.mark.parametrize(("seeds", "sentence"), [(3, "First look (3 of up to 5 seeds)."), (5, "")])
def test_before_the_planned_maximum_an_undecided_report_names_its_look(seeds: int, sentence: str):
    config, noisy = {"plan": PLAN}, (0.90, 0.96, 0.92, 0.94, 0.93)
    made = [*runs("none", BASE[:seeds], config=config), *runs("native", noisy[:seeds], FAST, config=config)]
    caveats = analyse_runs(made).caveats
    assert [caveat for caveat in caveats if " look (" in caveat] == ([sentence] if sentence else [])


def test_plan_values_that_differ_between_runs_are_not_used():
    records = [*runs("none", BASE, config={"plan": {"margin": 1.0}})]
    records += runs("native", SAME, FAST, config={"plan": {"margin": 2.0}})
    analysis = analyse_runs(records)
    assert analysis.metric.margin == 0.5
    assert "The runs record different values of plan.margin (1.0 and 2.0): no value is used." in " ".join(
        analysis.caveats
    )


def test_of_different_plans_the_strictest_level_is_used():
    longer = {"plan": PLAN | {"looks": [3, 5, 10]}}
    analysis = analyse_runs([*planned(), *runs("fp16", less(0.1), FAST, config=longer)])
    assert analysis.level == 1 - 0.05 / 6  # three looks, two groups
    sentence = (
        "The runs record different plans (looks at 3 and 5 seeds and looks at 3, 5 and 10 seeds): the "
        "strictest level is used."
    )
    assert sentence in analysis.caveats


ODD = ({}, [], "</script>", True, float("nan"), float("inf"), 10**400, [1], [3] * 10_001)
BELOW = (-1, 0)


def test_an_invalid_plan_value_is_named_and_not_used(subtests: pytest.Subtests):
    for key, odd in itertools.product(PLAN | {"control": ""}, (*ODD, *BELOW)):
        with subtests.test(key=key, odd=odd):
            analysis = analyse_runs(planned(2, **(dict.fromkeys(PLAN) | {key: odd})))
            assert getattr(analysis.plan, key) in (None, (), "")
            assert f"plan.{key} (" in " ".join(analysis.caveats)
            assert analysis.metric.margin == 0.5


RUNS = [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, SLOW)]
(DEVICE,) = analyse_runs(RUNS).groups[0].devices


def arm(label: str, ratio: float, *ends: float | None, **more: str) -> dict[str, Any]:
    """Return the entry of an arm in a benchmark's file."""
    low, high = ends or (None, None)
    figures = {"step_ms": 1.0, "images_per_second": 100.0 * ratio, "peak_mib": 50.0, "failed": None}
    fields = {"label": label, "options": {"backend": label} | more, "rounds": 24}
    return figures | fields | {"ratio": ratio, "low": low, "high": high}


NATIVE = arm("native", 1.3, 1.2, 1.4)


def with_bench(
    folder: Path,
    *arms: dict[str, Any],
    control: tuple[float, float] = (0.98, 1.02),
    runs: Any = None,
    **more: Any,
):
    """Return the analysis of runs with the speeds of a benchmark."""
    every = [arm("none", 1.0, 1.0, 1.0), *arms]
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    file = folder / "bench.json"
    file.write_text(json.dumps(content | {"control": arm("control", 1.01, *control), "arms": every} | more))
    return analyse_runs(runs or RUNS, bench=str(file))


def test_speed_comes_from_the_benchmark_and_everything_else_from_the_runs(tmp_path: Path):
    analysis, alone = with_bench(tmp_path, NATIVE, arm("fp16", 1.1)), analyse_runs(RUNS)
    native, fp16 = analysis.comparison("native"), analysis.comparison("fp16")
    assert (native.speedup, native.estimates["speed"].ends) == (1.3, (1.2, 1.4))
    assert native.claims["speed"].shown == ("faster",)
    assert (fp16.speedup, fp16.claims["speed"].why) == (
        1.1,
        "24 interleaved rounds gave no confidence interval",
    )
    assert native.group.estimates["images_per_second"].value == pytest.approx(130)
    for question in ("memory", "quality"):
        assert native.estimates[question] == alone.comparison("native").estimates[question]
    assert analysis.answers[-1] == "Speed: native 1.30× as fast; no verdict for fp16."
    assert (
        "throughput from `ampcompare bench` (99%), where differences below 2% are not resolved"
        in analysis.caption
    )
    source = "24 interleaved rounds on a card, 99% confidence intervals. The A/A control measured 1.01×."
    assert analysis.methods[-1] == f"Throughput is from `ampcompare bench`: {source}"


def test_the_rate_of_a_group_is_that_of_the_baseline_times_its_speed_up(tmp_path: Path):
    """So that a reader who divides the two gets the speed-up, which is no quotient of the medians."""
    other = arm("native", 1.3, 1.2, 1.4) | {"images_per_second": 149.0}
    groups = {group.label: group for group in with_bench(tmp_path, other).groups}
    rates = [groups[label].estimates["images_per_second"].value for label in ("none", "native")]
    assert rates[1] / rates[0] == pytest.approx(1.3)


@pytest.mark.parametrize("per_process", [1, 5])
def test_ratio_and_value_of_memory_have_one_source(tmp_path: Path, per_process: int):
    """Runs that share a process have too few values of their own, so all memory is the benchmark's."""
    made = [*runs("none", BASE), *runs("native", SAME, FAST)]
    for number, run in enumerate(made):
        run.config["run"] = {"process": f"p{number // per_process}"}
        run.summary["memory/peak_mib"] = 9000.0
    peaks = {"none": 800.0, "native": 600.0}
    arms = [arm("native", 1.3, 1.2, 1.4) | {"peak_mib": peaks["native"]}]
    base = arm("none", 1.0, 1.0, 1.0) | {"peak_mib": peaks["none"]}
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    file = tmp_path / "bench.json"
    file.write_text(
        json.dumps(content | {"control": arm("control", 1.01, 0.98, 1.02), "arms": [base, *arms]})
    )
    analysis = analyse_runs(made, bench=str(file))
    values = {group.label: group.estimates["peak_mib"].value for group in analysis.groups}
    ratio = analysis.comparison("native").estimates["memory"].value
    assert values["native"] / values["none"] == pytest.approx(ratio)
    assert values["none"] == pytest.approx(9000.0 if per_process == 1 else 800.0)


def test_a_benchmark_on_another_device_is_not_used(tmp_path: Path):
    analysis, alone = with_bench(tmp_path, NATIVE, device="another card"), analyse_runs(RUNS)
    for label in ("native", "fp16"):
        assert analysis.comparison(label).estimates["speed"] == alone.comparison(label).estimates["speed"]
    assert "No arm of --bench has" in " ".join(analysis.caveats)


def test_with_benchmark_speeds_no_times_of_runs_are_shown(tmp_path: Path):
    analysis = with_bench(tmp_path, NATIVE)  # which has no arm of fp16
    fp16 = analysis.comparison("fp16")
    assert "speed" not in fp16.estimates
    assert fp16.claims["speed"].why == "the benchmark has no matching arm"
    table = comparison_table(analysis)
    assert [column.key for column in table.columns] == ["speed", "memory", "quality"]
    (cell,) = (row.cells["speed"] for row in table.rows if row.label == "fp16")
    assert (cell.text, cell.also, cell.answer) == ("–", "", "not compared")
    assert not {"throughput", "quality-time"} & charts_of(analysis).keys()
    assert "Including start-up and stalls" not in " ".join(analysis.caveats)
    assert {"throughput", "quality-time"} < charts_of(analyse_runs(RUNS)).keys()


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ((1.43, 4.78), "the gain is not shown to exceed the A/A control"),
        ((0.7, 0.9), "the slowdown is not shown to exceed the A/A control"),
        ((0.9, 1.2), "the confidence interval includes zero difference"),
    ],
)
def test_a_speed_that_the_control_of_the_benchmark_does_not_resolve_names_the_control(
    tmp_path: Path, ends: tuple[float, float], why: str
):
    analysis = with_bench(tmp_path, arm("native", sum(ends) / 2, *ends), control=(0.7, 1.6))
    claim = analysis.comparison("native").claims["speed"]
    assert (claim.answer, claim.shown, claim.why) == ("inconclusive", (), why)


def test_speeds_that_are_not_compared_on_this_cpu_make_no_column_and_one_line(tmp_path: Path):
    def on_cpu(plan: Any) -> None:
        plan["summary"]["environment"] |= {"device_type": "cpu", "arithmetic": {"float16": "fp32"}}

    made = [make(b, seed, edit=on_cpu) for b in ("none", "native") for seed in (1, 2, 3)]
    analysis = with_bench(tmp_path, NATIVE, runs=made)
    assert "speed" not in analysis.comparison("native").estimates
    assert "bench" not in analysis.caption
    assert "speed" not in [column.key for column in comparison_table(analysis).columns]
    lines = [line for line in (*analysis.caveats, *analysis.notes) if "not compared" in line]
    assert lines == ["The throughput of native is not compared: this CPU computes float16 in fp32."]
    assert not {"throughput", "quality-time"} & charts_of(analysis).keys()


FINGERPRINT = {
    "model": "./net.py:build",
    "model_source": "0123",
    "data": "./data.py:build",
    "data_source": "4567",
    "data_fingerprint": "89ab-50000-10000",
    "train_data": None,
    "test_set": "cdef",
    "package_version": "0.2.0",
}


def own(change: Any = None) -> list[Any]:
    """Return recorded runs with a user's own network and data."""

    def edit(plan: Any) -> None:
        plan["config"]["model"]["name"], plan["config"]["data"]["source"] = (
            "/home/me/net.py:build",
            "./data.py:build",
        )
        plan["summary"]["data/test_set"] = "cdef"
        hashes = {"model_source": "0123", "data_source": "4567", "data_fingerprint": "89ab-40000-10000"}
        layout = {"memory_format": "channels_last", "packages": {"ampcompare": "0.2.0"}}
        plan["summary"]["environment"] |= hashes | layout
        if change:
            change(plan)

    return [make(b, seed, edit=edit) for b in ("none", "native") for seed in (1, 2, 3)]


def with_fingerprint(folder: Path, runs: list[Any], fingerprint: Any = FINGERPRINT, **options: str) -> Any:
    """Return the analysis of runs with a benchmark that has this fingerprint."""
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    arms = [arm("none", 1.0, 1.0, 1.0, **options), arm("native", 1.3, 1.2, 1.4, **options)]
    file, control = folder / "bench.json", arm("control", 1.01, 0.98, 1.02)
    content |= {"control": control, "arms": arms} | ({"fingerprint": fingerprint} if fingerprint else {})
    file.write_text(json.dumps(content))
    return analyse_runs(runs, bench=str(file))


def test_a_matching_benchmark_is_used_without_a_caveat(tmp_path: Path):
    options = {"batch_size": "128", "memory_format": "channels_last", "optimizer.name": "sgd"}
    analysis = with_fingerprint(tmp_path, own(), **options)
    assert analysis.comparison("native").speedup == 1.3
    assert "benchmark" not in " ".join(analysis.caveats)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "resnet18"),
        ("model_source", "edited"),
        ("data", "cifar10"),
        ("data_source", "edited"),
        ("data_fingerprint", "ffff-50000-10000"),
        ("test_set", "ffff"),
    ],
)
def test_a_benchmark_of_other_network_data_or_code_is_refused_with_what_differs(
    tmp_path: Path, key: str, value: str
):
    with pytest.raises(UserError) as problem:
        with_fingerprint(tmp_path, own(), FINGERPRINT | {key: value})
    (line,) = problem.value.lines
    assert f"than the runs: they differ in {key}; " in line


@pytest.mark.parametrize(
    ("options", "version", "difference"),
    [
        ({"batch_size": "64"}, "0.2.0", "batch_size"),
        ({"memory_format": "contiguous"}, "0.2.0", "memory_format"),
        ({"optimizer.name": "adamw"}, "0.2.0", "optimizer.name"),
        ({}, "0.3.0", "package_version"),
    ],
)
def test_a_benchmark_with_other_tolerated_settings_gives_the_first_caveat(
    tmp_path: Path, options: dict[str, str], version: str, difference: str
):
    runs = own(lambda plan: plan["config"].update(optimizer={"name": "sgd"}))
    analysis = with_fingerprint(tmp_path, runs, FINGERPRINT | {"package_version": version}, **options)
    assert analysis.comparison("native").speedup == 1.3
    assert f"The benchmark and the runs differ in {difference}." in analysis.caveats[:3]


def test_a_benchmark_without_a_fingerprint_gives_the_first_caveat(tmp_path: Path):
    analysis = with_fingerprint(tmp_path, own(), None)
    assert analysis.comparison("native").speedup == 1.3
    assert analysis.caveats[0].startswith("The benchmark file does not record its network")


@pytest.mark.parametrize("data", ["cifar10", "synthetic"])
def test_synthetic_images_count_as_the_built_in_data_set_that_they_replace(tmp_path: Path, data: str):
    nothing = dict.fromkeys(FINGERPRINT) | {"model": "resnet50", "data": data}
    assert with_fingerprint(tmp_path, RUNS, nothing).comparison("native").speedup == 1.3
    with pytest.raises(UserError, match="they differ in data"):
        with_fingerprint(tmp_path, RUNS, nothing | {"data": "cifar100"})


def test_with_one_seed_the_headline_has_the_benchmark_speed_and_inconclusive_quality(
    tmp_path: Path,
):
    """The 0.91x of one is not shown to be slower, the 0.83x of the other is."""
    few = [run for run in RUNS if run.option("seed") == 0]
    content = [NATIVE, arm("fp16", 0.83, 0.80, 0.86)]
    analysis = with_bench(tmp_path, *content, runs=few)
    accuracy, speed = analysis.answers
    assert accuracy == "Accuracy: no verdict for native (n = 1) and fp16 (n = 1)."
    assert speed == "Speed: native 1.30× as fast; fp16 0.830× as fast."
    analysis = with_bench(tmp_path, arm("native", 0.91, 0.8, 1.02), arm("fp16", 0.83, 0.80, 0.86), runs=few)
    assert (
        analysis.answers[1]
        == "Speed: fp16 0.830× as fast; inconclusive for native (0.910×, CI 0.800 to 1.02)."
    )


def test_with_an_uneven_control_no_speed_is_claimed(tmp_path: Path):
    analysis = with_bench(tmp_path, NATIVE, control=(1.05, 1.1))
    assert not analysis.comparison("native").claims["speed"].shown
    assert "not stable: a second run of the baseline measured 1.01×" in analysis.caption


def test_a_small_offset_of_the_control_limits_the_resolution(tmp_path: Path):
    narrow = arm("native", 1.024, 1.023, 1.025), arm("fp16", 1.2, 1.19, 1.21)
    analysis = with_bench(tmp_path, *narrow, control=(1.002, 1.03))
    assert analysis.comparison("fp16").claims["speed"].shown == ("faster",)
    assert analysis.comparison("native").claims["speed"].shown == ()
    analysis = with_bench(tmp_path, *narrow, control=(0.999, 1.001))
    assert analysis.comparison("native").claims["speed"].shown == ("faster",)


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be read"), ('{"arms": 3}', "not a file of")])
def test_a_file_that_is_no_benchmark_is_refused_in_one_line(content: str, why: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=why) as problem:
        analyse_runs(RUNS, bench=str(tmp_path / "x.json"))
    assert len(problem.value.lines) == 1


def test_an_unknown_metric_names_the_results_of_evaluations_first():
    with pytest.raises(UserError, match=r"--metric 'eval/bleu': no run has this metric; .*logged: eval/"):
        analyse_runs(RECORDS, metric="eval/bleu")
    with pytest.raises(UserError, match=r"no run has this metric; logged: eval/accuracy, "):
        analyse_runs(RECORDS, metric="zzzz")
