"""Options of a report besides the runs: gates, the plan, and benchmarks."""

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


def shown(text: str, records=RECORDS, **options) -> dict[str, bool]:
    """Return for each gate of a requirement whether it is shown."""
    analysis = analyse_runs(records, require=[text], **options)
    return {answer.gate.text: answer.is_shown for answer in analysis.gate_results}


def test_a_gate_is_shown_up_to_the_end_of_the_interval():
    known = analyse_runs(RECORDS).comparison("native").estimates
    low, high = known["speed"].low, known["memory"].high
    speeds = f"speedup >= {low - 1e-6:.9f}, speedup >= {known['speed'].value:.9f}"
    memories = f"memory <= {high + 1e-6:.9f}, memory <= {high - 1e-6:.9f}"
    assert list(shown(f"native: {speeds}, {memories}").values()) == [True, False] * 2


def test_an_equivalence_gate_uses_its_own_margin():
    terms = ("equivalent within 0.5", "equivalent within 0.3", "not lower by 0.4", "not lower by 0.36")
    results = shown(f"apex_o1: {', '.join(terms)}", margin=2.0)
    assert results == dict(zip(terms, (True, False, True, False), strict=True))


def test_no_quality_gate_is_shown_for_a_group_with_failures():
    # Two runs are left, too few for an interval.
    terms = "fp16: speedup >= 1.5, equivalent within 5, not lower by 5, failures <= 2, failures <= 3"
    assert [*shown(terms).values()] == [False, False, False, False, True]
    one_failed = [*runs("none", BASE), *runs("native", SAME, FAST, failed=(4,))]  # four are left to compare
    assert [*shown("native: equivalent within 0.5, speedup >= 1.5", one_failed).values()] == [False, True]


def test_an_invalid_gate_is_refused_in_one_line(subtests: pytest.Subtests):
    for text, message in {
        "native speedup >= 1": "expected 'LABEL: TERM'",
        "native: speed >= 1.5": "did you mean speedup >= X",
        "native: speedup >= 0": "expected a number above 0",
        "native: failures <= 1.5": "expected a whole number",
        "nativ: speedup >= 1.5": "did you mean native",
        "none: speedup >= 1.5": "is the baseline, of which only",
    }.items():
        with subtests.test(text), pytest.raises(UserError, match=message) as refused:
            analyse_runs(RECORDS, require=[text])
        assert len(refused.value.lines) == 1


def test_a_running_run_counts_as_a_possible_failure():
    made = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(3)]
    made.append(make("native", 9, state="running", steps=20, epochs=2))
    assert [*shown("native: failures <= 0, failures <= 1", made).values()] == [False, True]


PLAN = {"margin": 1.0, "target": 0.5, "looks": [3, 5], "max_seeds": 5}


def planned(n: int = 5, **plan: Any):
    """Return runs with a plan in their configs."""
    config = {"plan": PLAN | plan}
    return [*runs("none", BASE[:n], config=config), *runs("native", SAME[:n], FAST, config=config)]


def test_margin_target_and_level_come_from_the_plan():
    analysis = analyse_runs(planned())
    assert (analysis.metric.margin, analysis.metric.target) == (1.0, 50.0)
    assert analysis.level == 1 - 0.05 / 2  # two looks share the 5 %
    assert "looks at 3 and 5 seeds" in analysis.basis
    assert "Not as planned" not in " ".join(analysis.caveats)
    other = analyse_runs(planned(), margin=0.5, target=0.6)
    assert (other.metric.margin, other.metric.target) == (0.5, 60.0)
    facts = ("Not as planned", "0.5 points", "1 point", "60.00%", "50.00%")
    assert [fact for fact in facts if fact not in other.caveats[0]] == []


@pytest.mark.parametrize(("seeds", "is_planned"), [(3, True), (4, False)])
def test_a_report_at_an_unplanned_number_of_seeds_claims_no_joint_confidence(seeds: int, is_planned: bool):
    config = {"plan": {"looks": [3]}}
    arms = {"none": BASE, "native": SAME, "fp16": less(0.1)}
    analysis = analyse_runs([r for b, values in arms.items() for r in runs(b, values[:seeds], config=config)])
    assert any(f"no look was planned at {seeds} seeds" in caveat for caveat in analysis.caveats) != is_planned
    assert ("together the intervals" in " ".join(analysis.methods)) == is_planned


def test_a_planned_control_that_is_missing_is_the_first_caveat_and_runs_without_a_plan_have_none():
    assert "A/A control is missing" in analyse_runs(planned(control="bookends")).caveats[0]
    unplanned = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)])
    assert "planned" not in " ".join([unplanned.basis, unplanned.caption, *unplanned.caveats])


def test_before_the_planned_maximum_an_undecided_report_is_called_an_interim_result():
    config, noisy = {"plan": PLAN}, (0.90, 0.96, 0.92)
    made = [*runs("none", BASE[:3], config=config), *runs("native", noisy, FAST, config=config)]
    assert any("nterim" in caveat and "3 of up to 5" in caveat for caveat in analyse_runs(made).caveats)


def test_plan_values_that_differ_between_runs_are_not_used():
    records = [*runs("none", BASE, config={"plan": {"margin": 1.0}})]
    records += runs("native", SAME, FAST, config={"plan": {"margin": 2.0}})
    analysis = analyse_runs(records)
    assert analysis.metric.margin == 0.5
    assert any("plan.margin (1.0 and 2.0)" in caveat for caveat in analysis.caveats)


def test_of_different_plans_the_strictest_level_is_used():
    longer = {"plan": PLAN | {"looks": [3, 5, 10]}}
    analysis = analyse_runs([*planned(), *runs("fp16", less(0.1), FAST, config=longer)])
    assert analysis.level == 1 - 0.05 / 6  # three looks, two groups
    assert any("strictest level" in caveat for caveat in analysis.caveats)


ODD = [("margin", {}), ("target", True), ("looks", [3] * 10_001), ("max_seeds", 10**400), ("control", "</s>")]


def test_an_invalid_plan_value_is_named_and_not_used(subtests: pytest.Subtests):
    for key, odd in [*ODD, ("margin", -1), ("looks", 0), ("target", float("nan"))]:
        with subtests.test(key=key, odd=odd):
            analysis = analyse_runs(planned(2, **(dict.fromkeys(PLAN) | {key: odd})))
            assert getattr(analysis.plan, key) in (None, (), "")
            assert f"plan.{key} (" in " ".join(analysis.caveats)
            assert analysis.metric.margin == 0.5


RUNS = [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, SLOW)]
(DEVICE,) = analyse_runs(RUNS).groups[0].devices


def arm(label: str, ratio: float, *ends: float | None, **figures: Any) -> dict[str, Any]:
    """Return the entry of an arm in a benchmark's file."""
    low, high = ends or (None, None)
    fields = {"label": label, "options": {"backend": label}, "rounds": 24, "failed": None}
    measured = {"step_ms": 1.0, "images_per_second": 100.0 * ratio, "peak_mib": 50.0}
    return fields | measured | {"ratio": ratio, "low": low, "high": high} | figures


NATIVE = arm("native", 1.3, 1.2, 1.4)


def with_bench(
    folder: Path,
    *arms: dict[str, Any],
    control: tuple[float, float] = (0.98, 1.02),
    runs: Any = None,
    **more: Any,
):
    """Return the analysis of runs with the speeds of a benchmark, whose baseline is `none` if not given."""
    every = [*arms] if any(one["label"] == "none" for one in arms) else [arm("none", 1.0, 1.0, 1.0), *arms]
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    file = folder / "bench.json"
    file.write_text(json.dumps(content | {"control": arm("control", 1.01, *control), "arms": every} | more))
    return analyse_runs(runs or RUNS, bench=str(file))


def test_speed_comes_from_the_benchmark_and_everything_else_from_the_runs(tmp_path: Path):
    # So that a reader who divides the two rates gets the speed-up, the recorded rate does not count.
    own = arm("native", 1.3, 1.2, 1.4, images_per_second=149.0)
    analysis, alone = with_bench(tmp_path, own, arm("fp16", 1.1)), analyse_runs(RUNS)
    native, fp16 = analysis.comparison("native"), analysis.comparison("fp16")
    assert (native.speedup, native.estimates["speed"].ends) == (1.3, (1.2, 1.4))
    assert native.claims["speed"].shown == ("faster",)
    assert (fp16.speedup, fp16.claims["speed"].shown) == (1.1, ())
    assert "no confidence interval" in fp16.claims["speed"].why
    assert native.group.estimates["images_per_second"].value == pytest.approx(130)
    for question in ("memory", "quality"):
        assert native.estimates[question] == alone.comparison("native").estimates[question]
    assert "`ampcompare bench` (99%)" in analysis.caption


def test_a_benchmark_on_another_device_is_not_used(tmp_path: Path):
    analysis, alone = with_bench(tmp_path, NATIVE, device="another card"), analyse_runs(RUNS)
    for label in ("native", "fp16"):
        assert analysis.comparison(label).estimates["speed"] == alone.comparison(label).estimates["speed"]
    assert "No arm of --bench has" in " ".join(analysis.caveats)


def test_with_benchmark_speeds_no_times_of_runs_are_shown(tmp_path: Path):
    analysis = with_bench(tmp_path, NATIVE)  # which has no arm of fp16
    fp16 = analysis.comparison("fp16")
    assert "speed" not in fp16.estimates
    assert "no matching arm" in fp16.claims["speed"].why
    assert [column.key for column in comparison_table(analysis).columns] == ["speed", "memory", "quality"]
    assert not {"throughput", "quality-time"} & charts_of(analysis).keys()
    assert "Including start-up and stalls" not in " ".join(analysis.caveats)


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


def own() -> list[Any]:
    """Return recorded runs with a user's own network and data."""

    def edit(plan: Any) -> None:
        plan["config"]["model"]["name"], plan["config"]["data"]["source"] = (
            "/home/me/net.py:build",
            "./data.py:build",
        )
        plan["summary"]["data/test_set"] = "cdef"
        hashes = {"model_source": "0123", "data_source": "4567", "data_fingerprint": "89ab-40000-10000"}
        plan["summary"]["environment"] |= hashes

    return [make(b, seed, edit=edit) for b in ("none", "native") for seed in (1, 2, 3)]


def with_fingerprint(folder: Path, runs: list[Any], fingerprint: Any) -> Any:
    """Return the analysis of runs with a benchmark that has this fingerprint."""
    return with_bench(folder, NATIVE, runs=runs, **({"fingerprint": fingerprint} if fingerprint else {}))


@pytest.mark.parametrize("key", ["model_source", "data_fingerprint", "test_set"])
def test_a_benchmark_of_other_network_data_or_code_is_refused_with_what_differs(tmp_path: Path, key: str):
    with pytest.raises(UserError, match=rf"differ in {key};") as problem:
        with_fingerprint(tmp_path, own(), FINGERPRINT | {key: "ffff-50000-10000"})
    assert len(problem.value.lines) == 1


def test_a_benchmark_without_a_fingerprint_gives_the_first_caveat(tmp_path: Path):
    analysis = with_fingerprint(tmp_path, own(), None)
    assert analysis.comparison("native").speedup == 1.3
    assert "does not record its network" in analysis.caveats[0]


def test_synthetic_images_count_as_the_built_in_data_set_that_they_replace(tmp_path: Path):
    nothing = dict.fromkeys(FINGERPRINT) | {"model": "resnet50", "data": "synthetic"}
    assert with_fingerprint(tmp_path, RUNS, nothing).comparison("native").speedup == 1.3
    with pytest.raises(UserError, match="they differ in data"):
        with_fingerprint(tmp_path, RUNS, nothing | {"data": "cifar100"})


@pytest.mark.parametrize(
    ("control", "are_faster"),
    [((0.999, 1.001), [True, True]), ((1.002, 1.03), [False, True]), ((1.15, 1.2), [False, False])],
)
def test_the_control_of_a_benchmark_limits_its_resolution(
    tmp_path: Path, control: tuple[float, float], are_faster: list[bool]
):
    arms = arm("native", 1.024, 1.023, 1.025), arm("fp16", 1.2, 1.19, 1.21)
    analysis = with_bench(tmp_path, *arms, control=control)
    claims = [analysis.comparison(label).claims["speed"] for label in ("native", "fp16")]
    assert ["faster" in claim.shown for claim in claims] == are_faster
    assert ("not stable" in analysis.caption) == (not any(are_faster))


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be read"), ('{"arms": 3}', "not a file of")])
def test_a_file_that_is_no_benchmark_is_refused_in_one_line(content: str, why: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=why) as problem:
        analyse_runs(RUNS, bench=str(tmp_path / "x.json"))
    assert len(problem.value.lines) == 1
