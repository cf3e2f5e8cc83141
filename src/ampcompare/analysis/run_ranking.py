"""The runs of a search, best first: what a sweep reports where there is no baseline to compare with.

A ranking claims nothing. The best of many runs is partly the luckiest one.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import plural


@dataclass(frozen=True)
class RankedRun:
    """A run of a search.

    Attributes:
        run_id: W&B's id of the run.
        state: How the run ended.
        value: The last value of the metric; None if the run logged none.
        parameters: What the search chose for the run, by dotted key. A value may be a list or a mapping.
    """

    run_id: str
    state: RunState
    value: float | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class RunRanking:
    """The runs of a search in their order.

    Attributes:
        name: The name of the search.
        metric: The metric that orders the runs; "" if the search has none.
        maximize: Whether a greater value is better.
        keys: The parameters that the search varied.
        runs: The runs: first the finished ones, best first, then the others, best first.
        reason: Why the runs are not compared with a baseline.
    """

    name: str
    metric: str
    maximize: bool
    keys: tuple[str, ...]
    runs: tuple[RankedRun, ...]
    reason: str

    @property
    def direction(self) -> str:
        """The direction in words."""
        return "higher is better" if self.maximize else "lower is better"

    @property
    def heading(self) -> str:
        """The number of runs and the order in one line."""
        runs = plural(len(self.runs), "run")
        if not self.metric:
            return f"{self.name}: {runs}, in the order of the sweep, because the file names no metric"
        if not any(run.value is not None for run in self.runs):
            return f"{self.name}: {runs}, in the order of the sweep, because none logged {self.metric}"
        return f"{self.name}: {runs} by {self.metric} ({self.direction})"


def rank_runs(
    name: str,
    metric: str,
    runs: Iterable[RankedRun],
    keys: Sequence[str],
    *,
    maximize: bool,
    reason: str = "",
) -> RunRanking:
    """Return the runs, best first. Runs without a finite value of the metric come last in their group.

    Args:
        name: The name of the search.
        metric: The metric that orders the runs, or "".
        runs: The runs in the order of the search.
        keys: The parameters that the search varied.
        maximize: Whether a greater value is better.
        reason: Why the runs are not compared with a baseline.
    """

    def order(run: RankedRun) -> tuple[bool, bool, float]:
        is_ranked = run.value is not None and math.isfinite(run.value)
        value = run.value if is_ranked and run.value is not None else 0.0
        return run.state is not RunState.FINISHED, not is_ranked, -value if maximize else value

    ordered = sorted(runs, key=order) if metric else runs
    return RunRanking(name, metric, maximize, tuple(keys), tuple(ordered), reason)


def parameter_text(value: Any) -> str:
    """Return the value of a parameter as text, a mapping or list as JSON.

    >>> parameter_text(0.1), parameter_text(None), parameter_text(True), parameter_text({"a": [1, None]})
    ('0.1', 'null', 'true', '{"a": [1, null]}')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False, default=str)
