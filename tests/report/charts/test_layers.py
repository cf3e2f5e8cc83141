"""Charts by layer: lost updates, of the runs that have them, and the largest activations."""

from __future__ import annotations

import math

from support.fakes import full, make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.activations import activations_by_layer
from ampcompare.report.charts.updates import lost_updates


def rows_of(chart, *runs):
    return chart(analyse_runs(list(runs)))["datasets"]["data"]


def bf16(seed: int = 1, edit=full):
    """A run of a backend with half weights; made as `fp16`, of which plausible curves are known."""
    return make("fp16", seed, edit=edit, config={"backend": "bf16"})


def test_only_groups_that_have_lost_updates_are_drawn():
    runs = make("none"), make("native"), make("fp16", edit=full)
    assert {row["backend"] for row in rows_of(lost_updates, *runs)} == {"fp16"}


def test_lost_updates_by_step_are_the_mean_over_seeds_in_percent():
    def half(plan):
        full(plan)
        for row in plan["rows"]:
            if "update/lost_fraction" in row:
                row["update/lost_fraction"] /= 2

    rows = [row for row in rows_of(lost_updates, bf16(1), bf16(2, edit=half)) if row["kind"] == "line"]
    assert {(row["y"], row["low"], row["high"]) for row in rows} == {(42.75, 28.5, 57)}


def test_each_layer_has_the_largest_activation_of_all_steps_and_runs():
    def larger(plan):
        full(plan)
        row = next(row for row in plan["rows"] if "activation/max_abs/conv1" in row)
        row["activation/max_abs/conv1"] = 65000.0

    drawn = rows_of(activations_by_layer, make("native", 1, edit=full), make("native", 2, edit=larger))
    assert {row["layer"]: row["x"] for row in drawn} == {"conv1": 65000, "layer10": 250}


def test_infinite_and_zero_have_no_place_on_the_axis_and_infinite_is_said():
    def spoil(plan):
        full(plan)
        for row in plan["rows"]:
            if "activation/max_abs/conv1" in row:
                row |= {"activation/max_abs/conv1": math.inf, "activation/max_abs/layer10": 0.0}

    spec = activations_by_layer(analyse_runs([make("native", edit=spoil)]))
    assert spec["datasets"]["data"] == []
    assert "inf or nan are left out" in " ".join(spec["title"]["subtitle"])
