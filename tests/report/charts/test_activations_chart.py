"""The chart of the largest activations: by layer, on a log axis that ends where fp16 does."""

from __future__ import annotations

import math
from typing import Any

from support.fakes import full, make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.activations import activations_by_layer


def drawn(*runs: Any) -> dict[tuple[str, str], dict[str, Any]]:
    rows = activations_by_layer(analyse_runs(list(runs)))["datasets"]["data"]
    return {(row["backend"], row["layer"]): row for row in rows}


def test_each_layer_has_the_largest_of_all_steps_and_runs():
    def larger(plan: Any) -> None:
        full(plan)
        row = next(row for row in plan["rows"] if "activation/max_abs/conv1" in row)
        row["activation/max_abs/conv1"] = 65000.0

    rows = drawn(make("none", edit=full), make("native", 1, edit=full), make("native", 2, edit=larger))
    assert rows["native", "conv1"]["x"] == 65000
    assert rows["native", "layer10"]["x"] == 250
    assert rows["none", "conv1"]["x"] == 600
    assert rows["none", "conv1"]["zero"] == 6


def test_infinite_and_zero_have_no_place_on_the_axis_and_infinite_is_said():
    def spoil(plan: Any) -> None:
        full(plan)
        for row in plan["rows"]:
            if "activation/max_abs/conv1" in row:
                row |= {"activation/max_abs/conv1": math.inf, "activation/max_abs/layer10": 0.0}

    spec = activations_by_layer(analyse_runs([make("native", edit=spoil)]))
    assert spec["datasets"]["data"] == []
    assert "inf or nan are left out" in " ".join(spec["title"]["subtitle"])
