"""The comparison as seen from one baseline with one margin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ampcompare.report.analysis.best import BestOfEach, best_of_each
from ampcompare.report.analysis.cautions import cautions
from ampcompare.report.analysis.claims import Levels, levels_of
from ampcompare.report.analysis.comparison import Comparison, compare_all, with_claims
from ampcompare.report.analysis.decision import headline
from ampcompare.report.analysis.notes import about_lost, about_range, about_target, notes
from ampcompare.report.analysis.plan import Plan
from ampcompare.report.analysis.undecided import Undecided, open_questions
from ampcompare.report.analysis.verdict import Verdict, line
from ampcompare.report.runs.control import Control, controls
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.quantities import OWN, Quantities
from ampcompare.report.runs.settings import Setting
from ampcompare.report.words import capital


@dataclass(frozen=True)
class Compared:
    """The groups against one baseline, before anything is claimed: comparisons, best of each, doubts."""

    comparisons: tuple[Comparison, ...]
    best: BestOfEach | None
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Ground:
    """What every view of a set of runs stands on: their figures and groups, and what was planned.

    `metric` has the margin that is in use; `keys` are those of `--group-by`, the first is compared, with its
    `baseline_value`; `ignored`
    the settings of `--ignore`; `target` is the value of the metric, as it is shown, up to which training is
    timed. `said` and `warned` are sentences on how runs of other programs were read.
    """

    figures: tuple[RunFigures, ...]
    setting: Setting
    groups: tuple[Group, ...]
    metric: ComparedMetric
    keys: tuple[str, ...]
    baseline_value: str = "none"
    ignored: frozenset[str] = frozenset()
    plan: Plan = Plan()
    target: float | None = None
    quantities: Quantities = OWN
    said: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()

    @cached_property
    def levels(self) -> Levels:
        """The levels at which claims are tested: those of the planned looks."""
        return levels_of(self.plan.looks)

    @cached_property
    def compared(self) -> Compared:
        """What does not depend on the margin."""
        return _compared(self)

    @cached_property
    def arms(self) -> list[Control]:
        """The A/A arms."""
        return controls(self.groups, self.metric)


@dataclass(frozen=True)
class View:
    """All that depends on baseline and margin. `best` is that of each value, where another key was tuned."""

    baseline: str
    margin: float | None
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    best: BestOfEach | None = None

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The claims that are open still; more seeds may decide them."""
        return tuple(one for c in self.comparisons for one in open_questions(c))


def _compared(ground: Ground) -> Compared:
    groups, key, metric, baseline = ground.groups, ground.keys[0], ground.metric, ground.baseline_value
    comparisons = compare_all(groups, baseline, key, metric)
    best = best_of_each(groups, key, baseline, metric)
    told = [c for c in comparisons if best is None or not best.covers(c)]
    doubts = cautions(ground.figures, ground.setting, groups, told, metric, ground.ignored, ground.keys)
    return Compared(tuple(comparisons), best, (*ground.warned, *doubts))


def view_of(ground: Ground, margin: float | None) -> View:
    """The groups compared with the baseline, within `margin`; and the words for it."""
    metric, groups, arms = replace(ground.metric, margin=margin), ground.groups, ground.arms
    known, baseline = ground.compared, ground.baseline_value
    best, alike = known.best, [replace(comparison, metric=metric) for comparison in known.comparisons]
    comparisons = with_claims(alike, ground.levels, arms)
    of_group = {comparison.group.label: comparison for comparison in comparisons}
    answer = headline(groups, comparisons, ground.keys[0], baseline, metric, best)
    said = [f"{capital(what)}." for what in ground.said]
    said += [best.sentence] if best is not None and best.sentence != answer else []
    said += notes(ground.plan, comparisons, metric, ground.target, arms, ground.levels)
    said += about_target(groups, metric, ground.target) + about_lost(groups, metric)
    said += about_range(groups)
    verdict = Verdict(
        answer,
        tuple((g.label, line(g, of_group.get(g.label), metric, best, ground.quantities)) for g in groups),
        known.doubts,
        {c.group.label: c.chip for c in comparisons},
        tuple(said),
    )
    return View(baseline, margin, tuple(comparisons), verdict, best)
