from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import make

from ampcompare.report.charts.series import curves, scale_curves, thin
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import group_runs


def groups_of(*runs):
    return group_runs([figures_of(run) for run in runs])


@given(
    st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), min_size=1, max_size=400),
    st.integers(2, 60),
)
def test_thinning_keeps_ends_and_extremes_and_the_limit(values, limit):
    y = np.array(values)
    kept = thin(np.arange(len(y)), y, limit)
    assert list(kept) == sorted(set(kept))
    assert {0, len(y) - 1} <= set(kept)
    if not np.isnan(y).all():
        assert np.nanmax(y[kept]) == np.nanmax(y)
        assert np.nanmin(y[kept]) == np.nanmin(y)
    if np.isnan(y).any():
        assert np.isnan(y[kept]).any()
    assert len(kept) <= max(limit, 1.5 * limit + 2)


def test_single_run_is_the_line_and_values_are_as_logged():
    run = make("native")
    rows = curves(groups_of(run), "global_step", "train/loss")
    assert {row["kind"] for row in rows} == {"line"}
    assert [row["x"] for row in rows] == list(run.history["global_step"][run.history["train/loss"].notna()])
    assert np.allclose([row["y"] for row in rows], run.values("train/loss"), rtol=1e-4)


def test_several_seeds_are_their_mean_and_the_runs_behind_it():
    def constant(value):
        def edit(plan):
            for row in plan["rows"]:
                if "train/loss" in row:
                    row["train/loss"] = value

        return edit

    groups = groups_of(*(make("none", seed, edit=constant(float(seed))) for seed in (1, 2, 6)))
    rows = curves(groups, "global_step", "train/loss")
    assert {row["y"] for row in rows if row["kind"] == "line"} == {3}
    assert {row["run"] for row in rows if row["kind"] == "line"} == {"mean of 3 runs"}
    assert {row["y"] for row in rows if row["kind"] == "run"} == {1, 2, 6}
    assert len({row["id"] for row in rows}) == 4


def test_mean_is_taken_only_where_every_run_has_a_value():
    short = make("none", 1, edit=lambda plan: plan.update(rows=plan["rows"][:10]))
    rows = curves(groups_of(short, make("none", 2)), "global_step", "train/loss")
    assert max(row["x"] for row in rows if row["kind"] == "line") == 40


def test_crashed_run_is_drawn_behind_and_not_in_the_mean():
    rows = curves(groups_of(make("none", 1), make("none", 2, state="crashed")), "epoch", "eval/accuracy")
    assert {row["run"] for row in rows if row["kind"] == "line"} == {"none_resnet50 (seed 1)"}
    assert {row["run"] for row in rows if row["kind"] == "run"} == {"none_resnet50 (seed 2)"}


def test_logged_nan_is_a_gap_and_rows_without_a_value_are_not():
    def edit(plan):
        plan["rows"][3]["train/loss"] = "NaN"

    rows = curves(groups_of(make("none", edit=edit)), "global_step", "train/loss")
    assert [row["x"] for row in rows if row["y"] is None] == [15]


def test_skipped_steps_are_marked_on_the_scale_they_led_to():
    rows = scale_curves(groups_of(make("native", skip_steps=(10, 20))))
    marks = [(r["x"], r["y"], r["new"], r["skipped"]) for r in rows if r["kind"] == "skip"]
    assert marks == [(10, 32768, 1, 1), (20, 16384, 1, 2)]


def test_many_long_runs_stay_within_the_budget():
    runs = [make(b, seed, steps=4000) for b in ("none", "native", "apex_o1") for seed in range(10)]
    assert len(curves(groups_of(*runs), "global_step", "train/loss")) < 10_000
