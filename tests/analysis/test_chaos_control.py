"""The baseline with changed last bits (`--control chaos`): a row of its own that makes no claim."""

import dataclasses

import numpy as np
import pytest
from analysis.simulated.records import record
from scipy import stats
from support.fakes import make

from ampcompare import analyse_runs
from ampcompare.analysis.chaos_control import (
    describe_equal_losses,
    describe_unresolved,
    is_unresolved,
)
from ampcompare.analysis.grouping.groups import Kind
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.runs import RunRecord

CHAOS = "none again (last bits changed)"
NAME = "fp32 again, last bits changed"
SEEDS = range(1, 6)


def changed(run: RunRecord, **plan) -> RunRecord:
    """Return the run as `--control chaos` records it."""
    training = {**run.config.get("training", {}), "perturb_weights": "one_ulp"}
    return dataclasses.replace(
        run,
        id=f"{run.id}-chaos",
        config=run.config | {"training": training, "plan": {"arm": "chaos", **plan}},
    )


def arms(**accuracies) -> list[RunRecord]:
    """Return a run of each backend for each seed; `chaos` is the baseline with changed last bits."""
    runs = []
    for backend, values in accuracies.items():
        for seed, value in zip(SEEDS, values, strict=False):
            own = np.array([2.0, 1.0, 0.3]) + seed / 100 + (1e-7 if backend == "chaos" else 0)
            name = "none" if backend == "chaos" else backend
            one = record(name, seed, accuracies=(0.5, 0.8, value), losses=own)
            runs.append(changed(one) if backend == "chaos" else one)
    return runs


BASE = (0.930, 0.931, 0.932, 0.933, 0.934)
NEAR = (0.9301, 0.9309, 0.9321, 0.9329, 0.9341)
LOWER = (0.9201, 0.9209, 0.9221, 0.9229, 0.9241)


def test_a_row_of_its_own_beside_the_baseline():
    """Never pooled, no comparison of the correction, no claim; the other rows are as without it."""
    plain = analyse_runs(arms(none=BASE, native=NEAR, bf16=LOWER))
    with_control = analyse_runs(arms(none=BASE, native=NEAR, bf16=LOWER, chaos=NEAR))
    assert [group.label for group in with_control.groups] == ["none", CHAOS, "native", "bf16"]
    assert with_control.level == plain.level
    assert [group.n for group in with_control.groups] == [5] * 4
    row = with_control.comparison(CHAOS)
    assert row.group.display_name == NAME
    assert (row.is_control, row.claims, row.drift) == (True, {}, None)
    assert row.baseline.label == "none"
    assert row.group.kind is Kind.CHAOS
    assert not any(group.kind is Kind.CHAOS for group in plain.groups)
    assert row.estimates["quality"].value == pytest.approx(0.002, abs=1e-9)
    for label in ("native", "bf16"):
        ours, theirs = with_control.comparison(label), plain.comparison(label)
        assert ours.claims == theirs.claims
        assert not ours.has_control  # which is an A/A control, of speed
    assert with_control.headline == plain.headline
    assert with_control.basis == plain.basis


@pytest.mark.parametrize(
    ("key", "value", "display"),
    [
        ("batch_size", "128", "128 again (last bits changed)"),
        ("backend", "native", "native again, last bits changed"),
    ],
)
def test_the_name_is_that_of_the_baseline(key, value, display):
    """Whatever is compared; other settings that differ are still in the labels."""
    runs = [make("native", seed) for seed in SEEDS]
    runs += [make("native", seed, config={"batch_size": 64}) for seed in SEEDS] if key == "batch_size" else []
    analysis = analyse_runs([*runs, *(changed(run) for run in runs[:5])], baseline=value, group_by=[key])
    (control,) = [group for group in analysis.groups if group.is_control]
    assert control.display_name == display
    assert analysis.comparison(control.label).baseline.value == value


def test_several_baselines_have_a_control_each():
    runs = [make("none", seed, config={"batch_size": size}) for size in (32, 64) for seed in (1, 2, 3)]
    analysis = analyse_runs([*runs, *map(changed, runs)], group_by=["backend", "batch_size"])
    controls = [group for group in analysis.groups if group.kind is Kind.CHAOS]
    assert [group.label for group in controls] == [f"{CHAOS} · batch_size {size}" for size in (32, 64)]
    for group in controls:
        base = analysis.comparison(group.label).baseline
        assert base.settings["batch_size"] == group.settings["batch_size"]


def test_runs_that_all_began_so_are_ordinary():
    """A whole experiment with changed weights has a baseline; and the option itself can be compared."""
    runs = [changed(run) for run in arms(none=BASE, native=NEAR)]
    for run in runs:
        run.config["plan"] = {}
    assert [group.label for group in analyse_runs(runs).groups] == ["none", "native"]
    both = arms(none=BASE, chaos=NEAR)
    compared = analyse_runs(both, group_by=["training.perturb_weights"], baseline="none")
    assert [group.value for group in compared.groups] == ["none", "one_ulp"]
    assert not any(group.is_control for group in compared.groups)


def test_an_a_a_control_stays_one():
    again = [dataclasses.replace(run, id=f"{run.id}-aa") for run in arms(none=BASE)]
    for run, position in zip(again, ("first", "first", "last", "last", "last"), strict=True):
        run.config = run.config | {"plan": {"arm": position}}
    analysis = analyse_runs([*arms(none=BASE, native=NEAR, chaos=NEAR), *again])
    assert [group.label for group in analysis.groups] == ["none", "none again (A/A)", CHAOS, "native"]
    first, second = (c for c in analysis.comparisons if c.is_control)
    assert (first.group.kind, second.group.kind) == (Kind.AA, Kind.CHAOS)
    assert analysis.comparison("native").has_control


LOSSES = {  # losses of the control at seed 1 (the baseline's are 2, 1, 0.3), and whether they are equal
    "equal": ([2.0, 1.0, 0.3], True),
    "last bit": ([2.0, 1.0, np.nextafter(0.3, 1)], False),
    "first differs": ([2.0000001, 1.0, 0.3], False),
    "shorter": ([2.0, 1.0], True),
    "none": ([], False),
    "not a number": ([2.0, float("nan"), 0.3], False),
}


@pytest.mark.parametrize("case", LOSSES)
def test_runs_with_equal_losses_are_counted(case):
    losses, is_equal = LOSSES[case]
    base = [record("none", seed) for seed in (1, 2, 10)]
    again = [changed(record("none", seed, losses=(1.9, 1.0, 0.3))) for seed in (2, 10)]
    again.append(changed(record("none", 1, losses=losses)))
    analysis = analyse_runs([*base, *again])
    baseline, control = analysis.groups
    sentence = describe_equal_losses(control, baseline)
    assert bool(sentence) == is_equal
    assert (sentence in analysis.caveats) == is_equal
    assert ("In 1 of 3 runs" in sentence) == is_equal


def test_equal_losses_of_several_seeds_and_runs():
    base = [record("none", seed, losses=(float("nan"), 1.0)) for seed in (1, 2, 10)]
    again = [changed(run) for run in base]
    twice = dataclasses.replace(again[0], id="twice")
    analysis = analyse_runs([*base, *again, twice])
    assert f"In 4 of 4 runs of {NAME}" in "".join(analysis.caveats)
    apart = [changed(record("none", seed)) for seed in (3, 4)]  # no seed in common
    analysis = analyse_runs([*base, *apart])
    assert describe_equal_losses(analysis.groups[1], analysis.groups[0]) == ""


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [(-0.3, 0.05, True), (0.3, 0.05, True), (-0.3, 0.2, False), (0.0, 0.1, False), (-0.3, None, False)],
)
def test_differences_that_changed_bits_cause_are_not_resolved(value, error, expected):
    """t of 4 degrees of freedom at 95% is 2.776, so the half-width is 2.776 standard errors."""
    analysis = analyse_runs(arms(none=BASE, chaos=NEAR))
    baseline, control = analysis.groups
    estimate = Estimate(value, (value, value), 5, error, 4.0)
    assert is_unresolved(estimate) == expected
    sentence = describe_unresolved(control, baseline, analysis.metric, estimate)
    assert bool(sentence) == expected
    assert not expected or NAME in sentence
    assert not is_unresolved(None)
    assert describe_unresolved(control, baseline, analysis.metric, None) == ""


def test_the_report_says_that_such_differences_are_not_resolved():
    analysis = analyse_runs(arms(none=BASE, native=LOWER, chaos=LOWER))
    assert any("do not resolve" in caveat and NAME in caveat for caveat in analysis.caveats)
    analysis = analyse_runs(arms(none=BASE, native=LOWER, chaos=NEAR))
    assert not any("do not resolve" in caveat for caveat in analysis.caveats)


def test_a_planned_control_that_is_missing_is_said():
    planned = arms(none=BASE, native=NEAR)
    for run in planned:
        run.config["plan"] = {"control": "chaos"}
    assert any("the control chaos is missing" in caveat for caveat in analyse_runs(planned).caveats)


def test_no_loss_is_claimed_where_the_baseline_differs_as_much_from_itself():
    alone = analyse_runs(arms(none=BASE, native=LOWER))
    assert alone.comparison("native").claims["quality"].shown == ("worse",)
    analysis = analyse_runs(arms(none=BASE, native=LOWER, chaos=LOWER))
    claim = analysis.comparison("native").claims["quality"]
    assert claim.shown == ()
    assert claim.why == "the baseline with changed last bits differs from the baseline, too"
    assert "lower" not in analysis.badge(analysis.comparison("native").group)
    # Nor is a gain claimed.
    higher = [2 * base - lower for base, lower in zip(BASE, LOWER, strict=True)]
    gain = analyse_runs(arms(none=BASE, native=higher, chaos=LOWER)).comparison("native")
    assert gain.claims["quality"].shown == ()
    # A baseline that differs from itself by less leaves the claim.
    resolved = analyse_runs(arms(none=BASE, native=LOWER, chaos=NEAR))
    assert resolved.comparison("native").claims["quality"].shown == ("worse",)


def test_the_row_has_the_paired_interval_of_the_other_rows():
    analysis = analyse_runs(arms(none=BASE, native=LOWER, chaos=NEAR))
    estimate = analysis.comparison(CHAOS).estimates["quality"]
    differences = 100 * (np.array(NEAR) - np.array(BASE))
    interval = stats.ttest_1samp(differences, 0).confidence_interval(analysis.level)
    assert estimate.is_paired
    assert estimate.ends == pytest.approx((interval.low, interval.high))
