"""Values that are no results: placeholders of rows without an evaluation, and clocks that count from 1970."""

from pathlib import Path
from typing import Any

import pytest

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.analysis import Analysis
from ampcompare.errors import UserError


def analysis_of(folder: Path, columns: dict[str, list[float]], **options: Any) -> Analysis:
    """Write the column `acc` of three runs per arm, by arm, and compare them."""
    for arm, values in columns.items():
        for seed in (1, 2, 3):
            shift = seed / 1000
            rows = [
                f"{epoch},{value if value in (0, -1) else value + shift}"
                for epoch, value in enumerate(values)
            ]
            path = folder / arm / f"{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["epoch,acc", *rows]))
    return analyse_runs(load_runs([f"{arm}={folder / arm}" for arm in columns]), **options)


@pytest.mark.parametrize("placeholder", [0, -1])
@pytest.mark.parametrize("metric", ["acc:max", "acc:max:fraction", "acc:min"])
def test_placeholders_between_results_are_rows_without_an_evaluation(tmp_path, placeholder, metric):
    values = [placeholder, 0.5, placeholder, 0.7, placeholder]
    analysis = analysis_of(tmp_path, {"a": values, "b": values}, metric=metric)
    factor = 100 if "fraction" in metric else 1
    assert [group.estimates["quality"].value for group in analysis.groups] == pytest.approx(
        [0.702 * factor] * 2
    )
    assert any(f"acc is {placeholder} in 18 rows" in caveat for caveat in analysis.caveats)
    best = analysis_of(tmp_path, {"a": values, "b": values}, metric="acc:min", best=True)
    assert best.groups[0].estimates["quality"].value == pytest.approx(0.502)


@pytest.mark.parametrize("end", [0, -1])
def test_a_placeholder_at_the_end_alone_is_said_and_not_compared(tmp_path, end):
    analysis = analysis_of(tmp_path, {"a": [0.5, 0.6, 0.7], "b": [0.5, 0.6, end]}, metric="acc:max")
    comparison = analysis.comparison("b")
    assert comparison.claims["quality"].shown == ()
    assert any(f"exactly {end} in the last row, after other values" in caveat for caveat in analysis.caveats)
    both = analysis_of(tmp_path / "2", {"a": [0.5, 0.7, end], "b": [0.5, 0.7, end]}, metric="acc:max")
    assert both.comparison("b").claims["quality"].shown == ()


@pytest.mark.parametrize(
    ("values", "metric"),
    [
        ([0.5, 0.6, 0.7], "acc:max"),
        ([2.0, 0.5, 0.002, 0], "acc:min"),  # an error that really falls to 0
        ([-3.0, -2.0, -1], "acc:max"),  # a score that may be negative
        ([0, 0.5, 0.7], "acc:max"),  # it began at 0
    ],
)
def test_results_are_no_placeholders(tmp_path, values, metric):
    analysis = analysis_of(tmp_path, {"a": values, "b": values}, metric=metric)
    expected = values[-1] + (0 if values[-1] in (0, -1) else 0.002)
    assert analysis.groups[0].estimates["quality"].value == pytest.approx(expected)
    assert not any("exactly" in caveat or " rows, " in caveat for caveat in analysis.caveats)


def clocks(folder: Path, form: str, first: float) -> list[str]:
    """Write runs whose clock begins at `first`; the steps of `b` take half as long."""
    for arm, seconds in (("a", 2.0), ("b", 1.0)):
        for seed in (1, 2, 3):
            rows = [
                f"{step},{form.format(first + 1000 * seed + step * seconds)},{0.5 + seed / 1000 + step / 100}"
                for step in range(10)
            ]
            path = folder / arm / f"{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["step,clock,acc", *rows]))
    return [f"{arm}={folder / arm}" for arm in "ab"]


@pytest.mark.parametrize(
    ("form", "first", "unit"),
    [("{:.1f}", 1.7e9, "seconds"), ("{:.1f}", 1.7e12, "ms"), ("{:.1f}", 0.0, "seconds")],
)
def test_a_cumulative_time_counts_from_the_first_row(tmp_path, form, first, unit):
    runs = load_runs(clocks(tmp_path, form, first))
    named = {"metric": "acc:max", "time": f"clock:{unit}:cumulative", "ignore": ["device"]}
    analysis = analyse_runs(runs, **named)
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0)
    seconds = analysis.groups[0].estimates["train_seconds"].value
    assert seconds < 1e5


def test_a_date_as_the_time_of_a_step_is_refused(tmp_path):
    runs = load_runs(clocks(tmp_path, "{:.1f}", 1.7e9))
    with pytest.raises(UserError, match=r"--time 'clock:seconds:each': .* seconds since 1970.*:cumulative"):
        analyse_runs(runs, metric="acc:max", time="clock:seconds:each")


def test_the_speed_of_a_log_by_epochs_is_in_epochs(tmp_path):
    for arm, seconds in (("a", 60.0), ("b", 30.0)):
        for seed in (1, 2, 3):
            rows = [
                f"{epoch},{0.5 + epoch / 100 + seed / 1000},0:{int(seconds * epoch) // 60:02d}:"
                f"{int(seconds * epoch) % 60:02d}"
                for epoch in range(1, 6)
            ]
            path = tmp_path / arm / f"{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["epoch,acc,elapsed", *rows]))
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in "ab"])
    named = {"metric": "acc:max", "time": "elapsed:seconds:cumulative", "ignore": ["device"]}
    analysis = analyse_runs(runs, **named)
    assert analysis.quantities.speed == "epochs/s"
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0)
