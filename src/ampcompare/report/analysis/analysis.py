"""The analysis of a set of runs: every figure and every sentence that page, tables and terminal show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report.analysis.cautions import cautions
from ampcompare.report.analysis.comparison import Comparison, compare_all
from ampcompare.report.analysis.differences import Environment, config_differences, environments_of
from ampcompare.report.analysis.figures import RunFigures, figures_of, words_of
from ampcompare.report.analysis.groups import Group, check_keys, group_runs
from ampcompare.report.analysis.metric import ComparedMetric, choose_metric
from ampcompare.report.analysis.published import Reproduction, set_beside
from ampcompare.report.analysis.settings import Setting, describe
from ampcompare.report.analysis.statistics import T, explained
from ampcompare.report.analysis.target import baseline_target, with_seconds_to
from ampcompare.report.analysis.verdict import Verdict, headline, line
from ampcompare.report.palette import Style, styles
from ampcompare.report.words import listed

CHARTS_JOB = "ampcompare-charts"  # job type of the run that holds the charts' tables on W&B; no training


@dataclass(frozen=True)
class Analysis:
    """What every output shows: the runs' figures, groups, comparisons with the baseline, and the words.

    No output computes a figure of its own, so that all show the same. `target` is the value of the metric, as
    it is shown, up to which training is timed; `published` a published comparison to be set beside, where one
    was asked for.
    """

    figures: tuple[RunFigures, ...]
    setting: Setting
    groups: tuple[Group, ...]
    baseline: Group | None
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    metric: ComparedMetric
    keys: tuple[str, ...]
    styles: dict[str, Style]
    target: float | None = None
    published: Reproduction | None = None

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)

    def baseline_is(self, value: str) -> bool:
        """Whether the comparisons are with this value of the compared key."""
        return self.baseline is not None and self.baseline.value == value

    def group_of(self, figures: RunFigures) -> Group:
        """The group that a run is in."""
        return self._groups_of_runs[id(figures)]

    @cached_property
    def _groups_of_runs(self) -> dict[int, Group]:
        return {id(figures): group for group in self.groups for figures in group.runs}

    @cached_property
    def differences(self) -> list[list[tuple[str, str, str]]]:
        """For each run of `figures`: (key, its value, the value that most runs have)."""
        return config_differences(self.figures)

    @cached_property
    def environments(self) -> list[Environment]:
        """The machines with their software, and the runs that had each."""
        return environments_of(self.figures)

    @property
    def interval_kind(self) -> str:
        """What sort of interval the means have, in a word: `t`."""
        return listed(dict.fromkeys(e.kind for g in self.groups for e in g.means.values() if e)) or T

    @property
    def intervals(self) -> tuple[str, str]:
        """In full how the intervals are made, and that of two means that cannot be paired."""
        return explained(self.interval_kind)


def analyse_runs(
    runs: Sequence[RunRecord],
    baseline: str = "none",
    *,
    metric: str = metrics.EVAL_ACCURACY,
    margin: float | None = None,
    group_by: Sequence[str] = ("backend",),
    ignore: Sequence[str] = (),
    reproduce: str | None = None,
    target: float | None = None,
) -> Analysis:
    """Compare the runs by the first key of `group_by` with the baseline, the value `baseline` of that key.

    `metric` is the quality that is compared, `margin` what still counts as the same (0.5 points for
    accuracies), `ignore` settings that may differ within a group, `reproduce` the name of a published
    comparison to be set beside, `target` the value of the metric, as it is shown, up to which training is
    timed (what the baseline reaches). Raises UserError.

    >>> from ampcompare.records import load_runs
    >>> from ampcompare.report import analyse_runs
    >>> analysis = analyse_runs(load_runs(["runs"]), baseline="none")
    >>> [(group.label, group.seeds) for group in analysis.groups]
    [('none', 1), ('native', 1)]
    >>> analysis.comparison("native").speedup > 0  # of throughput
    True
    """
    runs = [run for run in runs if run.job_type != CHARTS_JOB]
    if not runs:
        raise UserError("the sources hold no training runs, only charts of an earlier report; name others")
    compared = choose_metric(metric, margin, runs)
    figures = [figures_of(run, metric) for run in runs]
    check_keys("--group-by", group_by, figures)
    check_keys("--ignore", ignore, figures)
    setting, keys, ignored = describe(figures), tuple(group_by), frozenset(ignore)
    first = group_runs(figures, keys, ignored)
    if target is None:
        target = baseline_target([f for g in first if g.value == baseline for f in g.runs], compared)
    figures = with_seconds_to(figures, target, compared)
    groups = group_runs(figures, keys, ignored)
    comparisons = compare_all(groups, baseline, keys[0], compared)
    of_group = {comparison.group.label: comparison for comparison in comparisons}
    verdict = Verdict(
        headline(groups, comparisons, keys[0], baseline),
        tuple((g.label, line(g, of_group.get(g.label), compared)) for g in groups),
        tuple(cautions(figures, setting, groups, comparisons, compared, ignored, keys)),
    )
    words = {g.value: words_of(f.run) for g in groups for f in g.runs}
    return Analysis(
        figures=tuple(figures),
        setting=setting,
        groups=tuple(groups),
        baseline=next((g for g in groups if g.value == baseline), None),
        comparisons=tuple(comparisons),
        verdict=verdict,
        metric=compared,
        keys=keys,
        styles={style.label: style for style in styles(((g.label, g.value) for g in groups), words)},
        target=target,
        published=None if reproduce is None else set_beside(reproduce, figures, comparisons, compared),
    )
