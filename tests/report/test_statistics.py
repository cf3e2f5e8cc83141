"""Statistics against cases worked by hand."""

from __future__ import annotations

import pytest

from ampcompare.report.statistics import Spread, compare, group_runs, spread
from report.fakes import figures


def group(label: str, *runs: dict):
    return group_runs([figures(label=label, seed=i, **run) for i, run in enumerate(runs)])[0]


def test_spread_of_four_values():
    assert spread([4.0, 1.0, None, 2.0, 9.0]) == Spread(n=4, mean=4.0, median=3.0, low=1.0, high=9.0)
    assert spread([None, None]) is None


def test_speedup_is_the_ratio_of_the_medians():
    base = group("none", *({"images_per_second": v} for v in (90.0, 100.0, 140.0)))
    fast = group("native", *({"images_per_second": v} for v in (150.0, 210.0, 190.0)))
    comparison = compare(fast, base)
    assert comparison.speedup == 1.9
    assert comparison.speedup_range == (1.5, 2.1)
    assert compare(base, base).speedup == 1.0


def test_one_run_has_no_range():
    comparison = compare(group("native", {"images_per_second": 30.0}), group("none", {"images_per_second": 120.0}))
    assert comparison.speedup == 0.25
    assert comparison.speedup_range is None


def test_memory_change_is_relative_to_the_baselines_median():
    base = group("none", {"peak_mib": 1000.0}, {"peak_mib": 1200.0})
    assert compare(group("native", {"peak_mib": 660.0}), base).memory_change == pytest.approx(-0.4)


def test_accuracy_difference_is_that_of_the_means_in_points():
    base = group("none", {"best_accuracy": 0.90, "last_accuracy": 0.88}, {"best_accuracy": 0.92, "last_accuracy": 0.9})
    other = group("native", {"best_accuracy": 0.915, "last_accuracy": 0.90})
    comparison = compare(other, base)
    assert comparison.accuracy_points == pytest.approx(0.5)
    assert comparison.last_accuracy_points == pytest.approx(1.0)


def test_missing_figure_and_zero_baseline_say_nothing():
    comparison = compare(group("native", {}), group("none", {"images_per_second": 1.0, "peak_mib": 1.0}))
    assert (comparison.speedup, comparison.memory_change, comparison.accuracy_points) == (None, None, None)
    assert compare(group("native", {"peak_mib": 1.0}), group("none", {"peak_mib": 0.0})).memory_change is None


def test_other_device_gives_no_speedup_but_an_accuracy_difference():
    here = {"images_per_second": 1.0, "peak_mib": 1.0, "best_accuracy": 0.5}
    comparison = compare(group("native", here | {"device": "A"}), group("none", here | {"device": "B"}))
    assert not comparison.same_device
    assert (comparison.speedup, comparison.memory_change) == (None, None)
    assert comparison.accuracy_points == 0.0


def test_only_finished_runs_count_where_there_is_one():
    runs = group("none", {"images_per_second": 1.0, "state": "crashed"}, {"images_per_second": 3.0})
    assert (len(runs.runs), len(runs.counted), runs.is_unfinished) == (2, 1, False)
    assert runs.figure("images_per_second").median == 3.0


def test_unfinished_runs_stand_in_without_an_accuracy_difference():
    base = group("none", {"images_per_second": 2.0, "best_accuracy": 0.9})
    torn = group("native", {"images_per_second": 4.0, "best_accuracy": 0.3, "state": "crashed"})
    comparison = compare(torn, base)
    assert torn.is_unfinished
    assert comparison.speedup == 2.0
    assert comparison.accuracy_points is None


def test_crashed_run_without_rows_counts_for_nothing():
    assert group("none", {"state": "crashed", "rows": 0}).counted == ()


def test_groups_come_in_the_fixed_order_unknown_backends_last():
    labels = ["zzz", "apex_o1", "native bf16", "aaa", "none", "native", "fp16", "apex_o2"]
    runs = [figures(label=label) for label in labels]
    order = [g.label for g in group_runs(runs)]
    assert order == ["none", "native", "native bf16", "apex_o1", "apex_o2", "fp16", "aaa", "zzz"]
