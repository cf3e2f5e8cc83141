"""The charts of lost updates: of the runs that have them, with what the figure means."""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes import full, make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.updates import lost_updates, lost_updates_by_layer

BOTH = pytest.mark.parametrize("chart", [lost_updates, lost_updates_by_layer])


def of(backend: str, seed: int = 1, **options: Any):
    """A run of a backend with half weights; made as `fp16`, of which plausible curves are known."""
    return make("fp16", seed, edit=full, config={"backend": backend}, **options)


@BOTH
def test_only_groups_that_have_lost_updates_are_drawn(chart):
    spec = chart(analyse_runs([make("none"), make("native"), of("fp16")]))
    assert {row["backend"] for row in spec["datasets"]["data"]} == {"fp16"}


def test_by_step_it_is_the_mean_over_seeds_in_percent():
    def half(plan):
        full(plan)
        for row in plan["rows"]:
            if "update/lost_fraction" in row:
                row["update/lost_fraction"] /= 2

    runs = [of("bf16", 1), make("fp16", 2, edit=half, config={"backend": "bf16"})]
    rows = [r for r in lost_updates(analyse_runs(runs))["datasets"]["data"] if r["kind"] == "line"]
    assert {(row["y"], row["low"], row["high"]) for row in rows} == {(42.75, 28.5, 57)}


def test_by_layer_it_is_the_mean_over_the_run_with_the_size_of_the_update():
    rows = lost_updates_by_layer(analyse_runs([of("bf16", 1), of("bf16", 2)]))["datasets"]["data"]
    assert [(row["layer"], row["x"], row["size"]) for row in rows] == [
        ("conv1", 60.5, 0.105),
        ("layer10", 53.5, 0.035),
    ]
