"""The figures of an analysis, from which its sentences are made."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ampcompare.analysis.bench_results import BenchResults
from ampcompare.analysis.best_per_value import BestPerValue
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.grouping.compared_metric import ComparedMetric, Quantities
from ampcompare.analysis.grouping.distinguishing_settings import CommonSetting
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import THROUGHPUT
from ampcompare.analysis.plan import Plan
from ampcompare.analysis.reproduction import ReproductionResult


@dataclass(eq=False, kw_only=True)
class Findings:
    """The runs and their comparison, in figures.

    `table` has a row a run, `groups` are pools of them; `keys` are those of `--group-by`, of which the first
    is compared with its value `baseline_value`. `metric` is the compared quality with margin and target.
    `level` is that of every interval, `comparisons` are of every group but the baselines.
    `said` are sentences on how other programs' runs were read, `warned` doubts about that. `is_own`: all were
    trained by this program. `meanings` has what is known of the backend of each label, else an empty text.
    `published` is what the runs say of a publication.
    """

    table: pd.DataFrame
    setting: CommonSetting
    groups: tuple[Group, ...]
    metric: ComparedMetric
    keys: tuple[str, ...]
    baseline_value: str
    plan: Plan
    level: float
    comparisons: list[Comparison]
    best: BestPerValue | None
    backend_descriptions: Mapping[str, str]
    ignored: frozenset[str]
    bench: BenchResults | None
    quantities: Quantities
    reading_notes: tuple[str, ...]
    is_own: bool
    reading_doubts: tuple[str, ...]
    reproduction: ReproductionResult | None

    def __post_init__(self) -> None:
        self.baseline = next((g for g in self.groups if g.value == self.baseline_value), None)
        # The claims of speed and quality that are open still, by label. With none, more seeds would change no
        # answer.
        self.undecided = [(c.group.label, claim) for c in self.comparisons for claim in c.open_claims]
        has_answers = any(c.estimates and not c.is_control for c in self.comparisons)
        self.is_decided = has_answers and not self.undecided

    @property
    def has_bench_speed(self) -> bool:
        """Whether any speed is from a benchmark, beside which no time of a run may stand."""
        return any(THROUGHPUT in group.bench_estimates for group in self.groups)

    @property
    def target(self) -> float | None:
        """The value of the metric, as shown, up to which training is timed."""
        return self.metric.target

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)
