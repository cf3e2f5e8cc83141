"""The runs of an array by their index: each a function of the sweep alone, as its jobs ask nobody."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.file import Sweep

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class PlannedRun:
    """One run of an array: its id, its parameters as a tree, and what of the plan is its own."""

    index: int
    run_id: str
    parameters: dict[str, Any]
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Draws:
    """The values of one point of a random search, in place of an Optuna trial.

    >>> Draws("mine", 3).suggest_int("x", 1, 6) == Draws("mine", 3).suggest_int("x", 1, 6)
    True
    """

    def __init__(self, seed: str, index: int) -> None:
        self._seed, self._index = seed, index

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return choices[min(int(self._uniform(name) * len(choices)), len(choices) - 1)]

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return min(low + int(self._uniform(name) * (high - low + 1)), high)

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        u = self._uniform(name)
        if log:
            u, low, high = u, math.log(low), math.log(high)
            return math.exp(low + u * (high - low))
        return low + u * (high - low)

    def _uniform(self, name: str) -> float:
        """From 0 to below 1: a hash of sweep, index and parameter, the same on every machine."""
        text = json.dumps([self._seed, self._index, name])
        return random.Random(int(hashlib.sha256(text.encode()).hexdigest(), 16)).random()  # noqa: S311


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
        draws = cast("Trial", Draws(name, index))
        values = [parameter.suggest(draws) for parameter in sweep.parameters]
        return PlannedRun(index, run_id, nested(sweep.parameters, values), plan)
    point = sweep.points[index]
    own = {"block": point.block, "arm": point.arm}
    plan |= {key: value for key, value in own.items() if value is not None and plan}
    return PlannedRun(index, run_id, point.parameters, plan)
