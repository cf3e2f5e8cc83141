"""Lines of the charts: mean and range over the runs that count, thinned for drawing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import make, put

from ampcompare.report import analyse_runs
from ampcompare.report.charts.curves import training_loss
from ampcompare.report.charts.rows import CHART_POINTS, lines, thin, time_lines


def line_of(*runs, x="global_step", y="train/loss", **options):
    """The only line of these runs."""
    (found,) = lines(analyse_runs(runs, **options).groups, x, y)
    return found


def logs(value):
    return lambda plan: [row.update({"train/loss": value}) for row in plan["rows"] if "train/loss" in row]


@given(
    st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), min_size=1, max_size=400),
    st.integers(2, 60),
)
def test_thinning_keeps_ends_and_extremes_and_the_limit(values, limit):
    y = np.array(values)
    kept = thin(y, limit)
    assert list(kept) == sorted(set(kept))
    assert {0, len(y) - 1} <= set(kept)
    if not np.isnan(y).all():
        assert np.nanmax(y[kept]) == np.nanmax(y)
        assert np.nanmin(y[kept]) == np.nanmin(y)
    assert np.isnan(y[kept]).any() == np.isnan(y).any()
    assert len(kept) <= max(limit, 1.5 * limit + 2)


def test_a_thinned_band_keeps_the_extremes_of_what_is_left_out():
    runs = [make("none", seed, steps=4000) for seed in (1, 2, 3)]
    spikes = np.full(runs[0].rows, 1.0)
    spikes[[401, 777]] = 50.0, -50.0
    put(runs[0], "train/loss", spikes)
    drawn = line_of(*runs).drawn(24, with_range=True)
    assert len(drawn["x"]) < 50
    assert max(drawn["high"]) == 50
    assert min(drawn["low"]) == -50


def test_single_run_is_the_line_and_values_are_as_logged():
    run = make("native")
    line = line_of(run)
    assert line.n == 1
    assert [*line.x] == [*run.history["global_step"][run.history["train/loss"].notna()]]
    assert np.allclose(line.drawn(10**6, with_range=False)["y"], run.values("train/loss"), rtol=1e-4)


def test_line_is_the_mean_of_the_runs_between_the_lowest_and_the_highest():
    line = line_of(*(make("none", seed, edit=logs(float(seed))) for seed in (1, 2, 6)))
    assert ({*line.low}, {*line.y}, {*line.high}) == ({1}, {3}, {6})


def test_mean_is_taken_only_where_every_run_has_a_value():
    short = make("none", 1, edit=lambda plan: plan.update(rows=plan["rows"][:10]))
    assert max(line_of(short, make("none", 2)).x) == 40


def test_runs_logged_at_other_steps_are_interpolated():
    def later(plan):
        for row in plan["rows"]:
            row["global_step"] += 2
            row["train/loss"] = 4.0

    line = line_of(make("none", 1, edit=logs(2.0)), make("none", 2, edit=later))
    assert {*line.y} == {3}


def test_a_failed_run_is_neither_in_the_mean_nor_stretches_an_axis():
    def slower(plan):
        for row in plan["rows"]:
            row["time/elapsed_seconds"] *= 100

    runs = make("none", 1), make("none", 2), make("none", 3, state="crashed", edit=slower)
    groups = analyse_runs(runs).groups
    (line,) = time_lines(groups, "eval/accuracy")
    assert line.n == 2
    assert line.x[-1] < 1000


def test_logged_nan_is_a_gap_and_rows_without_a_value_are_not():
    def edit(plan):
        plan["rows"][3]["train/loss"] = "NaN"

    line = line_of(make("none", edit=edit), metric="eval/accuracy")
    assert [*line.x[np.isnan(line.y)]] == [15]
    assert line.drawn(100, with_range=False)["y"].count(None) == 1


def test_time_is_the_mean_of_each_epoch_and_a_clock_that_jumps_back_is_left_out():
    def late(plan):
        for row in plan["rows"]:
            row["time/elapsed_seconds"] += 100

    def jumps(plan):
        plan["rows"][-1]["time/elapsed_seconds"] = 0.0

    plain = make("none", 1)
    (alone,) = time_lines(analyse_runs([plain]).groups, "eval/accuracy")
    (both,) = time_lines(analyse_runs([plain, make("none", 2, edit=late)]).groups, "eval/accuracy")
    assert both.x == pytest.approx((alone.x + alone.x + 100) / 2, abs=1)
    assert time_lines(analyse_runs([make("none", edit=jumps)]).groups, "eval/accuracy") == []


def test_many_long_runs_stay_within_the_budget():
    runs = [make(b, seed, steps=4000) for b in ("none", "native", "apex_o1") for seed in range(4)]
    rows = training_loss(analyse_runs(runs))["data"]["values"]
    assert len(rows) == 3
    assert sum(len(row["x"]) for row in rows) <= 1.5 * CHART_POINTS
