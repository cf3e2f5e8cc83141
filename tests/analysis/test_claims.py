"""Claims and gates of records with a known answer: what an interval shows, and what no interval can show."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.simulated.records import record
from scipy import stats
from support.known_runs import BASE, FAST, SAME, runs

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
    assert (f"not {'higher' if is_loss else 'lower'}" in analysis.headline) == (shown == ("not worse",))


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
    assert analysis.comparison("native").claims["speed"].shown == shown
    assert analysis.gate_results[0].is_shown == passes


# Speeds at seeds 0 to 4, the second about 1% above the first.
STEADY, ONE_PERCENT_FASTER = (40.0, 40.02, 39.98, 40.01, 39.99), (40.4, 40.43, 40.37, 40.4, 40.41)
CONTROLS = {
    "wide": [(38, 43.5, 40, 43, 41), "not shown to exceed the A/A control"],
    "of two runs": [(40, 41), "n = 2"],
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
    analysis = analyse_runs(made, require=[f"native: speedup >= {bound}, speedup >= 0.95"])
    native = analysis.comparison("native")
    ratios = np.log(np.divide(ONE_PERCENT_FASTER, STEADY))
    low, high = np.exp(stats.ttest_1samp(ratios, 0).confidence_interval(0.95))
    assert float(bound) < low < high < 1.02
    assert native.claims["speed"].shown == (("same speed",) if why else ("faster", "same speed"))
    result, below_1 = analysis.gate_results
    assert (result.is_shown, below_1.is_shown) == (not why, True)
    assert why in result.why
    assert ("control" in result.why) == bool(why)


def write_logs(folder: Path, column: str, speeds: dict[str, str]) -> list[str]:
    """Write three CSV files per arm with this column, one row per 100 steps; return the named sources."""
    for arm, texts in speeds.items():
        (folder / arm).mkdir()
        for number in range(3):
            rows = [
                [100 * row, 0.7 + number / 1000 + row / 100, text]
                for row, text in enumerate(texts.split(), 1)
            ]
            with (folder / arm / f"{number}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["step", "val_acc", column], *rows])
    return [f"{arm}={folder / arm}" for arm in speeds]


@pytest.mark.parametrize(
    ("option", "base", "arm", "half_width"),
    [
        ("time=ms:ms:each", "21.4", "21.3", 0.1 / 21.35),
        ("throughput=rate:per_second", "0.52", "0.53", 0.01 / 0.525),
        # Of a clock, the last digit counts in relation to the time between two rows.
        ("time=clock:seconds:cumulative", "100.5 110.5 120.5", "100.5 110.4 120.3", 0.1 / 9.95),
    ],
)
def test_speeds_that_agree_in_few_digits_have_the_spread_of_their_last_digit(
    tmp_path, option, base, arm, half_width
):
    """Three equal values: the deviation is one unit of the last digit, with two degrees of freedom."""
    name, _, value = option.partition("=")
    sources = write_logs(tmp_path, value.partition(":")[0], {"fp32": base, "bf16": arm})
    analysis = analyse_runs(load_runs(sources), metric="val_acc:max", ignore=["device"], **{name: value})
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


@pytest.mark.parametrize(("missed", "side"), [(2, "native"), (1, "none")])
def test_the_time_to_the_target_is_no_ratio_if_a_run_missed_it(missed, side):
    every = {"none": [30.0, 31.0, 32.0], "native": [20.0, 21.0, 22.0]}
    whole = analyse_runs([r for b, s in every.items() for r in reaching(b, s)], target=0.9)
    assert "time" in whole.comparison("native").estimates
    made = [r for b, s in every.items() for r in reaching(b, s, missed if b == side else 0)]
    analysis = analyse_runs(made, target=0.9)
    assert "time" not in analysis.comparison("native").estimates
    counts = [int(group.estimates["seconds_to_target"].n) for group in analysis.groups]
    assert sorted(counts) == [3 - missed, 3]
    assert any(f"{3 - missed} of 3 runs" in caveat and "90.00%" in caveat for caveat in analysis.caveats)


def test_seeds_that_are_added_after_the_whole_error_was_spent_are_named():
    def planned(seeds: range, plan: dict[str, Any]) -> list[RunRecord]:
        chance = np.random.default_rng(seeds.start)
        return [
            record(backend, seed, accuracies=(0.5, 0.8, chance.normal(0.93, 0.004)), plan=plan)
            for backend in ("none", "native")
            for seed in seeds
        ]

    two_looks = {"looks": [5, 10], "shares": [0.2, 0.8]}
    later = planned(range(5, 10), two_looks)
    for first, is_said in (({"looks": [5]}, True), (two_looks, False)):
        analysis = analyse_runs([*planned(range(5), first), *later])
        assert ("9%" in " ".join(analysis.caveats)) == is_said


def test_a_backend_of_ours_that_collapses_to_zero_lost_its_accuracy():
    """A last value of 0 may be a placeholder in the logs of other programs only."""
    base = [record("none", seed, accuracies=(0.5, 0.8, 0.93 + seed / 1e4)) for seed in range(5)]
    arm = [record("native", seed, accuracies=(0.4, 0.3, 0.0)) for seed in range(5)]
    native = analyse_runs([*base, *arm]).comparison("native")
    assert native.is_quality_lost
    assert "placeholder" not in native.claims["quality"].why
