"""The results of an analysis as values. `verdict`, `caveats` and `gates` make sentences of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ampcompare.analysis.bench_results import BenchResults
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.compared_metric import ComparedMetric, Quantities
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND, CommonSetting, name_of_value
from ampcompare.analysis.grouping.groups import Group, count_ended_seeds
from ampcompare.analysis.grouping.run_metrics import METRICS_BY_COLUMN, THROUGHPUT
from ampcompare.analysis.grouping.training_recipe import Recipe
from ampcompare.analysis.grouping.validity_checks import explain_chance
from ampcompare.analysis.reproduction import ReproductionResult
from ampcompare.analysis.sweep_plan import Plan


@dataclass(eq=False, kw_only=True)
class Findings:
    """The runs and their comparisons.

    Attributes:
        table: One row per run (`grouping.run_table`).
        setting: The setting that the runs have in common.
        recipe: Optimizer, schedule, length and batch size of the runs.
        groups: The groups that pool the rows of the table.
        metric: The compared quality, with margin and target.
        keys: The keys of `--group-by`. The first is compared.
        baseline_value: The value of the first key that the others are compared with.
        plan: The plan of the runs.
        level: The level of the intervals of quality, 0..1.
        levels: The level of the intervals by question. They differ where arms have identical quality.
        identical_arms: Sets of groups whose quality is bit-identical at every shared seed; each counts once.
        comparisons: A comparison for each group except the baselines.
        backend_descriptions: The description of the backend by label, "" if none is known.
        ignored: The settings that may differ within a group.
        bench: The results of `ampcompare bench` that speed is taken from.
        quantities: The units of throughput and memory.
        reading_notes: How runs of other programs were read.
        is_own: Whether this program trained all of the runs.
        reading_doubts: Doubts about how the runs were read.
        reproduction: Whether the runs reproduce a publication.
        sweep_command: The command that adds seeds to the sweep of these runs, "" if it is not known.
        baseline: The first group of the baseline, None without one.
        arms: The comparisons that have a baseline, each with its baseline; without controls.
        compared_bases: The baselines of the arms, each once.
        undecided: The open claims on speed and quality, each with its comparison. If there is none, more
            seeds change no answer.
        is_decided: Whether something was compared and no claim is open.
        ended_seeds: The smallest number of seeds with an ended run among the compared groups and their
            baselines.
    """

    table: pd.DataFrame
    setting: CommonSetting
    recipe: Recipe
    groups: tuple[Group, ...]
    metric: ComparedMetric
    keys: tuple[str, ...]
    baseline_value: str
    plan: Plan
    level: float
    levels: Mapping[str, float]
    identical_arms: tuple[tuple[Group, ...], ...]
    comparisons: list[Comparison]
    backend_descriptions: Mapping[str, str]
    ignored: frozenset[str]
    bench: BenchResults | None
    quantities: Quantities
    reading_notes: tuple[str, ...]
    is_own: bool
    reading_doubts: tuple[str, ...]
    reproduction: ReproductionResult | None
    sweep_command: str = ""

    def __post_init__(self) -> None:
        self.baseline = next((g for g in self.groups if g.value == self.baseline_value), None)
        self.arms = [(c, c.baseline) for c in self.comparisons if c.baseline and not c.is_control]
        self.compared_bases = list({base.label: base for _, base in self.arms}.values())
        self.undecided = [(c, claim) for c in self.comparisons for claim in c.open_claims]
        has_answers = any(c.estimates and not c.is_control for c in self.comparisons)
        self.is_decided = has_answers and not self.undecided
        compared = [c for c in self.comparisons if not c.is_control]
        self.ended_seeds = count_ended_seeds([side for c in compared for side in c.sides])

    @property
    def has_bench_speed(self) -> bool:
        """Return whether a speed is from a benchmark. Times of the runs must not stand beside it."""
        return any(THROUGHPUT in group.bench_estimates for group in self.groups)

    @property
    def is_baseline_at_chance(self) -> bool:
        """Return whether no baseline has learned, so that neither more seeds nor a recommendation help."""
        return bool(self.compared_bases) and all(map(explain_chance, self.compared_bases))

    @property
    def baseline_name(self) -> str:
        """The value of the baseline as people read it."""
        if self.keys[0] == BACKEND:
            return display_name(self.baseline_value)
        return name_of_value(self.keys[0], self.baseline_value)

    @property
    def missing_baseline(self) -> str:
        """Why nothing is compared where no group is the baseline."""
        if self.keys[0] == BACKEND:
            return f"no run of the baseline {self.baseline_name} to compare with"
        return f"no baseline is named: --baseline VALUE names a value of {self.keys[0]}"

    def level_of(self, column: str) -> float:
        """Return the level of the intervals of a column of the table of runs."""
        return self.levels.get(METRICS_BY_COLUMN[column].question, max(self.levels.values()))

    def comparison(self, label: str) -> Comparison | None:
        """Return the comparison of a group; None for a baseline, or if nothing was compared."""
        return next((c for c in self.comparisons if c.group.label == label), None)
