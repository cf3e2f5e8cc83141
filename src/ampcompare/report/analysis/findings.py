"""What was found in a set of runs, before any of it is worded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ampcompare.report.analysis.benched import Bench
from ampcompare.report.analysis.best import BestOfEach, best_of_each
from ampcompare.report.analysis.comparison import Claim, Comparison, compare_all, level_of
from ampcompare.report.analysis.plan import Plan
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import Setting


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The runs and their comparison.

    `table` has a row a run, `groups` are pools of them; `keys` are those of `--group-by`, of which the first
    is compared with its value `baseline_value`. `metric` is the compared quality with its margin, `target`
    the value of it, as shown, up to which training is timed.
    """

    table: pd.DataFrame
    setting: Setting
    groups: tuple[Group, ...]
    metric: ComparedMetric
    keys: tuple[str, ...]
    baseline_value: str
    plan: Plan
    ignored: frozenset[str] = frozenset()
    target: float | None = None
    bench: Bench | None = None

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        looks = self.plan.number_of_looks
        asked = (self.groups, self.baseline_value, self.keys[0], looks, self.bench)
        return tuple(compare_all(*asked))

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)

    @property
    def level(self) -> float:
        return level_of(self.groups, self.baseline_value, self.plan.number_of_looks)

    @property
    def baseline(self) -> Group | None:
        return next((g for g in self.groups if g.value == self.baseline_value), None)

    @cached_property
    def best(self) -> BestOfEach | None:
        """The best of each value, where another key was tuned."""
        return best_of_each(self.groups, self.keys[0], self.baseline_value, self.metric, self.level)

    @property
    def undecided(self) -> tuple[tuple[str, Claim], ...]:
        """The claims of speed and quality that are open still, by label."""
        return tuple((c.group.label, claim) for c in self.comparisons for claim in c.open_claims)
