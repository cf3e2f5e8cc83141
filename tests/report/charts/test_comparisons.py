"""The charts of what is compared: the difference over training, the forest plots, the sweep's wall clock."""

from __future__ import annotations

import json
import statistics

import pytest
from scipy import stats
from support.a_sweep import a_sweep
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.analysis import phrases
from ampcompare.report.charts.catalogue import CHARTS, has_data
from ampcompare.report.charts.pictures import draw

HOSTILE = "'+alert(1)+'</script>"


@pytest.fixture(scope="module")
def five():
    """Five backends, five seeds, one that diverges, the baseline once more at both ends."""
    return analyse_runs(a_sweep(drift=0.03, control=True))


def rows_of(spec, label=None, kind=None):
    rows = spec["datasets"]["data"]
    return [r for r in rows if label in (None, r["backend"]) and kind in (None, r["kind"])]


def test_difference_curve_is_the_mean_of_the_pairs_with_students_interval(five):
    key, last = "eval/accuracy", 20.0

    def ends(backend):
        runs = [f.run for f in five.figures if f.run.option("backend") == backend]
        runs = [run for run in runs if run.option("plan.arm") is None]
        return {run.option("seed"): 100 * float(run.history[key].dropna().iloc[-1]) for run in runs}

    ours, theirs = ends("native"), ends("none")
    pairs = [ours[seed] - theirs[seed] for seed in ours]
    mean, half = statistics.fmean(pairs), statistics.stdev(pairs) / 5**0.5 * stats.t.ppf(0.975, 4)
    (row,) = [r for r in rows_of(CHARTS["eval-difference"](five), "native") if r["x"] == last]
    assert (row["y"], row["low"], row["high"]) == pytest.approx((mean, mean - half, mean + half), rel=1e-3)
    assert row["run"] == "n = 5, paired by seed"


def test_difference_curve_leaves_out_runs_that_failed(five):
    rows = rows_of(CHARTS["eval-difference"](five), "fp16")
    assert {row["n"] for row in rows} == {2}
    assert min(row["y"] for row in rows) > -10  # a diverged run is 80 points below


@pytest.mark.parametrize(
    ("name", "question"),
    [("speed-ups", "speed"), ("memory-ratios", "memory"), ("quality-differences", "quality")],
)
def test_forest_plot_shows_the_tested_interval_of_each_claim(five, name, question):
    spec = CHARTS[name](five)
    shown = [row["backend"] for row in rows_of(spec)]
    assert shown == [c.group.label for c in five.comparisons]
    for comparison in five.comparisons:
        found = phrases.tested(comparison, question)
        (row,) = rows_of(spec, comparison.group.label)
        assert row["x"] == pytest.approx(found.value, rel=1e-4)
        if comparison.silence and question == "quality":
            assert "low" not in row
        else:
            assert (row["low"], row["high"]) == pytest.approx((found.low, found.high), rel=1e-4)


@pytest.mark.parametrize("name", ["eval-difference", "speed-ups", "quality-differences"])
@pytest.mark.parametrize(
    "runs",
    [
        [make("native")],
        [make("none"), make("native", config={"backend": HOSTILE})],
        [make("none", s, config={"optimizer": {"lr": 0.001 * i}}) for i in range(30) for s in (1, 2)],
    ],
    ids=["alone", "hostile", "thirty groups"],
)
def test_chart_of_odd_sets_of_runs_is_a_specification_that_can_be_drawn(name, runs):
    key = {"group_by": ("optimizer.lr",), "baseline": "0.001"} if len(runs) > 10 else {}
    spec = CHARTS[name](analyse_runs(runs, **key))
    json.dumps(spec, allow_nan=False)
    assert HOSTILE not in json.dumps([layer.get("transform") for layer in spec["layer"]])
    if has_data(spec):
        assert draw(spec, "svg").startswith(b"<svg")
