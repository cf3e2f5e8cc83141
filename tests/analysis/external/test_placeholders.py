"""Values that are no results: placeholders of rows without an evaluation."""

from pathlib import Path
from typing import Any

import pytest
from support.log_templates import write

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.analysis import Analysis


def analysis_of(folder: Path, columns: dict[str, list[float]], **options: Any) -> Analysis:
    """Write the column `acc` of a run per arm, by arm, and compare them."""
    for arm, values in columns.items():
        rows = [f"{epoch},{value}" for epoch, value in enumerate(values)]
        write(folder / f"{arm}.csv", "\n".join(["epoch,acc", *rows]))
    return analyse_runs(load_runs([f"{arm}={folder / arm}.csv" for arm in columns]), **options)


@pytest.mark.parametrize("placeholder", [0, -1])
@pytest.mark.parametrize("metric", ["acc:max:fraction", "acc:min"])
def test_placeholders_between_results_are_rows_without_an_evaluation(tmp_path, placeholder, metric):
    values = [placeholder, 0.5, placeholder, 0.7, placeholder]
    analysis = analysis_of(tmp_path, {"a": values, "b": values}, metric=metric)
    factor = 100 if "fraction" in metric else 1
    assert [group.estimates["quality"].value for group in analysis.groups] == [0.7 * factor] * 2
    assert any(f"acc is {placeholder} in 6 rows" in caveat for caveat in analysis.caveats)
    best = analysis_of(tmp_path, {"a": values, "b": values}, metric="acc:min", best=True)
    assert best.groups[0].estimates["quality"].value == 0.5


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
        ([-0.2, 0.9, -1], "acc:max"),
        ([0.9, 0.01, 0], "acc:max"),  # it fell to near 0 before
        ([0, 0.5, 0.7], "acc:max"),  # it began at 0
    ],
)
def test_results_are_no_placeholders(tmp_path, values, metric):
    analysis = analysis_of(tmp_path, {"a": values, "b": values}, metric=metric)
    assert analysis.groups[0].estimates["quality"].value == values[-1]
    assert not any("exactly" in caveat or " rows, " in caveat for caveat in analysis.caveats)
