"""The runs of an array by their index: each a function of the sweep alone, as its jobs ask nobody."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.search import draw


@dataclass(frozen=True)
class PlannedRun:
    """One run of an array: its id, its parameters as a tree, and what of the plan is its own."""

    index: int
    run_id: str
    parameters: dict[str, Any]
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def planned_run(
    sweep: Sweep, began: Mapping[str, Any], told: Mapping[str, Any] | None, index: int, salt: str = ""
) -> PlannedRun:
    """The run of an index. `began` is the sweep's definition as it began (definition.py), `told` what of the
    plan every run is told, None: nothing of it.

    With a salt of its folder the same sweep has other ids in another one, and so other runs at W&B.
    """
    name = json.dumps([sweep.name, began])
    run_id = hashlib.sha256(json.dumps([salt or name, index]).encode()).hexdigest()[:12]
    plan = {} if told is None else {**told, "place": index}
    if not sweep.is_grid:
        return PlannedRun(index, run_id, draw(sweep, name, index, ())[0], plan)
    point = sweep.points[index]
    own = {"block": point.block, "arm": point.arm}
    plan |= {key: value for key, value in own.items() if value is not None and plan}
    return PlannedRun(index, run_id, point.parameters, plan)
