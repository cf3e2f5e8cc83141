"""Claims and gates of records with a known answer: what an interval shows, and what no interval can show."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.simulated.records import record
from scipy import stats
from support.known_runs import BASE, FAST, SAME, less, runs

from ampcompare import analyse_runs, load_runs
from ampcompare.runs import RunRecord

LOSS = "eval/loss"


def losses(backend: str, values: list[float]) -> list[RunRecord]:
    """Return runs whose metric is a loss: less is better."""
    made = runs(backend, [None] * len(values))
    return [
        run.with_columns({LOSS: np.linspace(value + 1, value, run.rows)})
        for run, value in zip(made, values, strict=True)
    ]


# Differences in points, and what their 95% interval shows beside a margin of 0.5.
ACCURACY = {
    "same": ([0.01, -0.01, 0.02, 0.0, -0.02], ("equivalent",)),
    "not lower": ([0.6, -0.3, 0.5, -0.2, 0.7], ("not worse",)),
    "lower within the margin": ([-0.30, -0.31, -0.29, -0.30, -0.32], ("worse", "equivalent")),
    "lower": ([-1.2, -1.3, -1.1, -1.2, -1.25], ("worse",)),
    "higher": ([0.8, 0.9, 0.7, 0.8, 0.85], ("better",)),
    "higher within the margin": ([0.30, 0.31, 0.29, 0.30, 0.32], ("better", "equivalent")),
    "undecided": ([-1.0, 0.8, -0.6, 0.9, -0.4], ()),
}


@pytest.mark.parametrize("case", ACCURACY)
@pytest.mark.parametrize("is_loss", [False, True])
def test_a_claim_is_what_scipys_interval_shows(case: str, is_loss: bool):
    """For a loss the same differences count with the other sign."""
    differences, shown = ACCURACY[case]
    if is_loss:
        base = [2.0 + seed / 10 for seed in range(5)]
        arm = [value - change for value, change in zip(base, differences, strict=True)]
        analysis = analyse_runs(
            [*losses("none", base), *losses("native", arm)], metric=f"{LOSS}:min", margin=0.5
        )
    else:
        arm = [value + change / 100 for value, change in zip(BASE, differences, strict=True)]
        analysis = analyse_runs([*runs("none", BASE), *runs("native", arm)])
    native = analysis.comparison("native")
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    ends = (-high, -low) if is_loss else (low, high)
    assert native.estimates["quality"].ends == pytest.approx(ends, abs=1e-6)
    assert native.claims["quality"].shown == shown
    assert native.claims["quality"].is_open == (not shown)
    assert analysis.is_decided == (bool(shown) and not native.claims["speed"].is_open)
    if "worse" in shown:
        assert f"by at most {abs(low):.2g}"[:14] in analysis.headline
        assert "not lower" not in analysis.headline
        assert "not higher" not in analysis.headline
    if shown == ("not worse",):
        assert f"not {'higher' if is_loss else 'lower'} by more than 0.5" in analysis.headline


@pytest.mark.parametrize(
    ("differences", "gate", "passes"),
    [
        (ACCURACY["not lower"][0], "not lower by 0.5", True),
        (ACCURACY["not lower"][0], "equivalent within 0.5", False),
        (ACCURACY["lower within the margin"][0], "not lower by 0.5", True),
        (ACCURACY["lower"][0], "not lower by 0.5", False),
        (ACCURACY["lower"][0], "not lower by 1.5", True),
        (ACCURACY["undecided"][0], "not lower by 0.5", False),
        (ACCURACY["undecided"][0], "not lower by 2", True),
    ],
)
def test_a_gate_on_quality_passes_only_if_the_interval_shows_it(differences, gate, passes):
    arm = [value + change / 100 for value, change in zip(BASE, differences, strict=True)]
    analysis = analyse_runs([*runs("none", BASE), *runs("native", arm)], require=[f"native: {gate}"])
    assert [result.is_shown for result in analysis.gate_results] == [passes]


def test_for_a_loss_the_gate_is_not_higher():
    base = [2.0 + seed / 10 for seed in range(5)]
    made = [
        *losses("none", base),
        *losses("native", [value + 0.01 * (i % 2) for i, value in enumerate(base)]),
    ]
    analysis = analyse_runs(made, metric=f"{LOSS}:min", margin=0.5, require=["native: not higher by 0.1"])
    assert analysis.gate_results[0].is_shown
    with pytest.raises(Exception, match="use 'not higher by X'"):
        analyse_runs(made, metric=f"{LOSS}:min", require=["native: not lower by 0.1"])


@pytest.mark.parametrize(
    ("speeds", "shown", "passes"),
    [
        ((40.0, 41.0, 42.0, 40.0, 41.1), ("same speed",), True),
        ((40.2, 41.2, 42.2, 40.2, 41.2), ("faster", "same speed"), True),
        ((39.9, 40.5, 43.3, 39.0, 42.5), (), False),
        (FAST, ("faster",), False),
    ],
)
def test_equal_speeds_are_shown_within_two_percent(speeds, shown, passes):
    base = (40.0, 41.0, 42.0, 40.0, 41.0)
    made = [*runs("none", BASE, base), *runs("native", SAME, speeds)]
    analysis = analyse_runs(made, require=["native: same speed within 2%"])
    claim = analysis.comparison("native").claims["speed"]
    logs = np.log(np.array(speeds) / np.array(base))
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    if shown != ("same speed",):  # there the resolution of the logged speeds is wider than their spread
        assert claim.estimate.ends == pytest.approx((np.exp(low), np.exp(high)), rel=1e-3)
    assert claim.shown == shown
    assert analysis.gate_results[0].is_shown == passes


def bench_file(folder: Path, arm: tuple[float, float, float], control: tuple[float, float]) -> str:
    """Write a benchmark of version 0.3 with one arm and a control; return its path."""

    def entry(label: str, ratio: float, low: float, high: float) -> dict[str, Any]:
        options = {"backend": label}
        numbers = {"ratio": ratio, "low": low, "high": high, "images_per_second": 100 * ratio}
        return {"label": label, "options": options, "peak_mib": 50.0, "rounds": 24, **numbers}

    device = runs("none", BASE)[0].environment["device_name"]
    content = {"baseline": "none", "level": 0.95, "machine": "a card", "device": device}
    arms = [entry("none", 1.0, 1.0, 1.0), entry("native", *arm)]
    file = folder / "bench.json"
    file.write_text(json.dumps(content | {"arms": arms, "control": entry("control", 1.0, *control)}))
    return str(file)


@pytest.mark.parametrize(
    ("control", "bound", "passes"),
    [
        ((0.96, 1.05), "1.01", False),  # the control differs by more than the arm
        ((0.96, 1.05), "1.0", False),
        ((0.96, 1.05), "0.98", True),  # "at most 2% slower" is no gain
        ((0.999, 1.001), "1.01", True),
    ],
)
def test_a_gate_does_not_pass_what_the_control_of_the_benchmark_shows_too(tmp_path, control, bound, passes):
    file = bench_file(tmp_path, (1.04, 1.03, 1.05), control)
    made = [*runs("none", BASE), *runs("native", SAME)]
    analysis = analyse_runs(made, bench=file, require=[f"native: speedup >= {bound}"])
    assert analysis.gate_results[0].is_shown == passes
    assert ("faster" in analysis.comparison("native").claims["speed"].shown) == (control[1] < 1.02)


# Speeds at seeds 0 to 4, the second about 1% above the first.
STEADY, ONE_PERCENT_FASTER = (40.0, 40.02, 39.98, 40.01, 39.99), (40.4, 40.43, 40.37, 40.4, 40.41)
CONTROLS = {
    "wide": [(38, 43.5, 40, 43, 41), "is not shown to exceed the A/A control"],
    "of two runs": [(40, 41), "the A/A control has only n = 2"],
    "narrow": [STEADY, ""],
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("bound", ["1.005", "1.0"])
def test_a_gate_that_only_the_control_fails_names_it(control: str, bound: str):
    """The whole interval of the speed is above the bound and within 2% of the baseline's."""
    speeds, why = CONTROLS[control]
    made = [
        *runs("none", BASE, STEADY),
        *runs("none", SAME[: len(speeds)], speeds, arms=["control last"] * len(speeds)),
        *runs("native", SAME, ONE_PERCENT_FASTER),
    ]
    analysis = analyse_runs(made, require=[f"native: speedup >= {bound}"])
    native = analysis.comparison("native")
    ratios = np.log(np.divide(ONE_PERCENT_FASTER, STEADY))
    low, high = np.exp(stats.ttest_1samp(ratios, 0).confidence_interval(0.95))
    assert float(bound) < low < high < 1.02
    assert native.claims["speed"].shown == (("same speed",) if why else ("faster", "same speed"))
    assert any("Within 2% it counts as the same" in method for method in analysis.methods)
    (result,) = analysis.gate_results
    assert result.is_shown == (not why)
    assert result.why.endswith(f"{why})") if why else "control" not in result.why


@pytest.mark.parametrize("control", [(0.96, 1.05), (0.98, 1.04)])
def test_a_gate_that_only_the_benchmarks_control_fails_names_it(tmp_path: Path, control: tuple[float, float]):
    file = bench_file(tmp_path, (1.01, 1.0086, 1.0114), control)
    made = [*runs("none", BASE), *runs("native", SAME)]
    (result,) = analyse_runs(made, bench=file, require=["native: speedup >= 1.005"]).gate_results
    assert not result.is_shown
    assert "A/A control" in result.why


def write_logs(folder: Path, column: str, speeds: dict[str, list[str]]) -> list[str]:
    """Write a CSV file for each run, whose speed is logged as this text; return the named sources."""
    for arm, texts in speeds.items():
        (folder / arm).mkdir()
        for number, text in enumerate(texts):
            with (folder / arm / f"{number}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([["step", "val_acc", column], [100, 0.7 + number / 1000, text]])
    return [f"{arm}={folder / arm}" for arm in speeds]


@pytest.mark.parametrize(
    ("column", "base", "arm", "half_width"),
    [
        ("ms", "21.4", "21.3", 0.1 / 21.35),
        ("ms", "250", "248", 1 / 249),
        ("rate", "812", "815", 1 / 813.5),
        ("rate", "0.52", "0.53", 0.01 / 0.525),
    ],
)
def test_speeds_that_agree_in_few_digits_have_the_spread_of_their_last_digit(
    tmp_path, column, base, arm, half_width
):
    """Three equal values: the deviation is one unit of the last digit, with two degrees of freedom."""
    sources = write_logs(tmp_path, column, {"fp32": [base] * 3, "bf16": [arm] * 3})
    speed = {"time": "ms:ms:each"} if column == "ms" else {"throughput": "rate:per_second"}
    analysis = analyse_runs(load_runs(sources), metric="val_acc:max", ignore=["device"], **speed)
    estimate = analysis.comparison("bf16").estimates["speed"]
    half = (np.log(estimate.high) - np.log(estimate.low)) / 2
    # The files of an arm have no seeds, so the two sides are not paired.
    welch = stats.t.ppf(0.975, 4) * half_width * np.sqrt(2 / 3)
    assert half == pytest.approx(welch, rel=0.02)


def reaching(backend: str, seconds: list[float], missed: int = 0) -> list[RunRecord]:
    """Return runs that reach 90% after so many seconds; the last `missed` of them never do."""
    made = []
    for seed, time in enumerate(seconds):
        last = 0.93 if seed < len(seconds) - missed else 0.85
        one = record(backend, seed, accuracies=(0.5, 0.8, last))
        clock = np.linspace(time / one.rows, time, one.rows)
        made.append(one.with_columns({"time/train_seconds": clock}))
    return made


@pytest.mark.parametrize(("missed", "side"), [(1, "native"), (2, "native"), (1, "none")])
def test_the_time_to_the_target_is_no_ratio_if_a_run_missed_it(missed, side):
    from ampcompare.report.comparison_table import comparison_table

    every = {"none": [30.0, 31.0, 32.0], "native": [20.0, 21.0, 22.0]}
    whole = analyse_runs([r for b, s in every.items() for r in reaching(b, s)], target=0.9)
    assert "time" in whole.comparison("native").estimates
    made = [r for b, s in every.items() for r in reaching(b, s, missed if b == side else 0)]
    analysis = analyse_runs(made, target=0.9)
    assert "time" not in analysis.comparison("native").estimates
    table = comparison_table(analysis)
    cells = [cell.text for row in table.rows for key, cell in row.cells.items() if key == "time"]
    assert not cells or f"{3 - missed} of 3 reached it" in cells


def test_the_correlation_over_the_seeds_is_stated():
    arm = less(0.1)
    analysis = analyse_runs([*runs("none", BASE), *runs("native", arm)])
    expected = np.corrcoef(BASE, arm)[0, 1]
    assert analysis.comparison("native").seed_correlation == pytest.approx(expected)
    assert f"native {expected:+.2f}." in " ".join(analysis.notes)


def test_seeds_that_are_added_after_the_whole_error_was_spent_are_named():
    def planned(seeds: range, plan: dict[str, Any]) -> list[RunRecord]:
        chance = np.random.default_rng(seeds.start)
        return [
            record(backend, seed, accuracies=(0.5, 0.8, chance.normal(0.93, 0.004)), plan=plan)
            for backend in ("none", "native")
            for seed in seeds
        ]

    first = planned(range(5), {"looks": [5]})
    later = planned(range(5, 10), {"looks": [5, 10], "shares": [0.2, 0.8]})
    caveats = " ".join(analyse_runs([*first, *later]).caveats)
    assert "all looks together err in up to 9% instead of 5%" in caveats
    whole = planned(range(5), {"looks": [5, 10], "shares": [0.2, 0.8]}) + later
    assert "instead of 5%" not in " ".join(analyse_runs(whole).caveats)


def test_a_backend_of_ours_that_collapses_to_zero_lost_its_accuracy():
    """A last value of 0 may be a placeholder in the logs of other programs only."""
    base = [record("none", seed, accuracies=(0.5, 0.8, 0.93 + seed / 1e4)) for seed in range(5)]
    arm = [record("native", seed, accuracies=(0.4, 0.3, 0.0)) for seed in range(5)]
    native = analyse_runs([*base, *arm]).comparison("native")
    assert native.is_quality_lost
    assert "placeholder" not in native.claims["quality"].why


@pytest.mark.parametrize("end", ["not finished", "failed", "another batch size"])
def test_the_baseline_is_recommended_only_if_all_others_are_decided_against(end: str):
    half = [value / 2 for value in (40.0, 41.0, 42.0, 40.0, 41.0)]
    other: dict[str, Any] = {"config": {"batch_size": 64}} if end == "another batch size" else {}
    if end == "not finished":
        other = {"state": "running"}
    elif end == "failed":
        other = {"failed": range(5)}
    made = [*runs("none", BASE), *runs("native", SAME, half)]
    assert analyse_runs(made).recommendation.text.startswith("Stay with fp32 (none)")
    text = analyse_runs([*made, *runs("apex_o1", SAME, FAST, **other)]).recommendation.text
    assert text.startswith("No recommendation yet: apex_o1 ")


def test_the_next_step_names_each_missing_interval_and_no_other():
    noisy = [value + change for value, change in zip(BASE, (0.01, -0.01, 0.008, -0.008, 0.0), strict=True)]
    made = [*runs("none", BASE), *runs("native", noisy), *runs("fp16", SAME[:2])]
    advice = analyse_runs(made).advice
    assert "A confidence interval for the accuracy of fp16 needs 1 more seed." in advice
    assert "interval for the accuracy of native" not in advice


@pytest.mark.parametrize(
    ("plan", "is_said"), [({"looks": [5]}, True), ({"looks": [5, 10]}, False), ({}, False)]
)
def test_more_seeds_after_the_only_planned_look_are_named_with_their_error(
    plan: dict[str, Any], is_said: bool
):
    noise = (0.01, -0.01, 0.008, -0.008, 0.0)
    made = [
        record(b, s, accuracies=(0.5, 0.8, 0.93 + noise[s] * (b != "none")), plan=plan)
        for b in ("none", "native")
        for s in range(5)
    ]
    assert ("both looks together err in up to 9%" in analyse_runs(made).advice) == is_said


@pytest.mark.parametrize(("groups", "n"), [(18, 3), (200, 4)])
def test_a_design_that_decides_nothing_has_no_deviation(groups: int, n: int):
    from ampcompare.analysis.statistics.multiplicity import joint_level
    from ampcompare.analysis.statistics.sample_size import largest_deviation

    assert 0 <= largest_deviation(0.5, n, joint_level(groups), 2) < 0.05


def test_a_report_at_an_unplanned_number_of_seeds_claims_no_joint_confidence():
    made = [
        record(b, s, accuracies=(0.5, 0.8, 0.93 + s / 1e4 + 1e-4 * (b != "none")), plan={"looks": [5]})
        for b in ("none", "native", "fp16")
        for s in range(3)
    ]
    analysis = analyse_runs(made)
    assert "together the intervals" not in analysis.caption
    assert any("no look was planned at 3 seeds" in caveat for caveat in analysis.caveats)
