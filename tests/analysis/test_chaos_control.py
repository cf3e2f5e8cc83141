"""The baseline with changed last bits (`--control chaos`): a row of its own that makes no claim."""

import dataclasses

import numpy as np
import pytest
from analysis.simulated.records import record
from scipy import stats

from ampcompare import analyse_runs
from ampcompare.analysis.grouping.groups import Kind
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
    row = with_control.comparison(CHAOS)
    assert (row.group.kind, row.group.display_name, row.baseline.label) == (Kind.CHAOS, NAME, "none")
    assert (row.is_control, row.claims, row.drift) == (True, {}, None)
    differences = 100 * (np.array(NEAR) - np.array(BASE))
    interval = stats.ttest_1samp(differences, 0).confidence_interval(with_control.level)
    assert row.estimates["quality"].ends == pytest.approx((interval.low, interval.high))
    for label in ("native", "bf16"):
        ours, theirs = with_control.comparison(label), plain.comparison(label)
        assert ours.claims == theirs.claims
        assert not ours.has_control  # which is an A/A control, of speed
    assert (with_control.level, with_control.headline) == (plain.level, plain.headline)


def test_runs_that_all_began_with_changed_bits_are_ordinary():
    runs = [changed(run) for run in arms(none=BASE, native=NEAR)]
    for run in runs:
        run.config["plan"] = {}
    assert [group.label for group in analyse_runs(runs).groups] == ["none", "native"]


def test_whether_bits_were_changed_can_be_compared():
    runs = arms(none=BASE, chaos=NEAR)
    compared = analyse_runs(runs, group_by=["training.perturb_weights"], baseline="none")
    found = [(group.value, group.is_control) for group in compared.groups]
    assert found == [("none", False), ("one_ulp", False)]


LOSSES = {  # losses of the control at seed 1 (the baseline's are 2, 1, 0.3), and whether they are equal
    "equal": ([2.0, 1.0, 0.3], True),
    "last bit": ([2.0, 1.0, np.nextafter(0.3, 1)], False),
    "shorter": ([2.0, 1.0], True),
    "not a number": ([2.0, float("nan"), 0.3], False),
}


@pytest.mark.parametrize("case", LOSSES)
def test_runs_with_equal_losses_are_counted(case):
    losses, is_equal = LOSSES[case]
    base = [record("none", seed) for seed in (1, 2, 10)]
    again = [changed(record("none", seed, losses=(1.9, 1.0, 0.3))) for seed in (2, 10)]
    analysis = analyse_runs([*base, *again, changed(record("none", 1, losses=losses))])
    caveats = [caveat for caveat in analysis.caveats if "had no effect" in caveat]
    assert ["1 of 3 runs" in caveat for caveat in caveats] == [True] * is_equal


HIGHER = [2 * base - lower for base, lower in zip(BASE, LOWER, strict=True)]


@pytest.mark.parametrize(
    ("native", "chaos", "shown"),
    [
        (LOWER, None, ("worse",)),
        (LOWER, LOWER, ()),
        (HIGHER, LOWER, ()),  # nor is a gain claimed
        (LOWER, NEAR, ("worse",)),  # a baseline that differs from itself by less leaves the claim
        (LOWER, LOWER[:2], ("worse",)),  # two runs have no interval
    ],
)
def test_nothing_is_claimed_where_the_baseline_differs_as_much_from_itself(native, chaos, shown):
    analysis = analyse_runs(arms(none=BASE, native=native, **({"chaos": chaos} if chaos else {})))
    claim = analysis.comparison("native").claims["quality"]
    assert claim.shown == shown
    assert ("changed last bits" in claim.why) == (not shown)
    assert any("do not resolve" in caveat and NAME in caveat for caveat in analysis.caveats) == (not shown)
    assert ("lower" in analysis.badge(analysis.comparison("native").group)) == bool(shown)
