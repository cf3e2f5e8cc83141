"""The analysis of a set of runs: every figure and every sentence that page, tables and terminal show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ampcompare.errors import UserError
from ampcompare.published.publication import load
from ampcompare.records import RunRecord
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.lead import lead
from ampcompare.report.analysis.plan import plan_of
from ampcompare.report.analysis.published import POINTS, WITHIN, Reproduction, set_beside
from ampcompare.report.analysis.require import Answer, Case, Term, judge, parse
from ampcompare.report.analysis.undecided import Undecided
from ampcompare.report.analysis.verdict import Verdict
from ampcompare.report.analysis.views import Ground, View, view_of
from ampcompare.report.foreign.names import says_precision
from ampcompare.report.foreign.reading import Wanted, read
from ampcompare.report.palette import Style, styles
from ampcompare.report.runs.differences import Environment, config_differences, environments_of
from ampcompare.report.runs.figures import RunFigures, words_of
from ampcompare.report.runs.groups import BACKEND, Group, check_keys, group_runs
from ampcompare.report.runs.settings import describe
from ampcompare.report.runs.shared import with_overlap
from ampcompare.report.runs.target import baseline_target, with_seconds_to
from ampcompare.report.statistics.samples import T, explained
from ampcompare.report.words import listed, printable

CHARTS_JOB = "ampcompare-charts"  # job type of the run that holds the charts' tables on W&B; no training


@dataclass(frozen=True)
class Analysis(Ground):
    """What every output shows: the runs' figures, groups, comparisons with the baseline, and the words.

    No output computes a figure of its own, so that all show the same. `comparisons` and `verdict` are those
    within the margin that was planned or asked for; `view` gives those within others. `styles` has the
    colour of each label; `reproduce` names a publication that the runs are to judge, ratios of it `within` a
    margin; `required` is what the comparison is held against.
    """

    styles: Mapping[str, Style] = field(default_factory=dict)
    reproduce: str | None = None
    within: float = WITHIN
    required: tuple[Term, ...] = ()

    @cached_property
    def _views(self) -> dict[float | None, View]:
        return {}

    def view(self, margin: float | None = None) -> View:
        """The comparison within another margin; that in use where none is given."""
        margin = margin or self.metric.margin
        if margin not in self._views:
            self._views[margin] = view_of(self, margin)
        return self._views[margin]

    @property
    def lead(self) -> str:
        """The first sentence, for who knows nothing of the project."""
        is_others = all(f.settings is not None for f in self.figures)
        quality = self.metric.name if is_others else self.metric.noun
        return lead(self.groups, self.setting, self.keys[0], quality)

    @property
    def question(self) -> str:
        """What the page is headed by."""
        key = self.keys[0]
        is_precise = key == BACKEND or any(f.settings is None for f in self.figures) or says_precision(key)
        return "What does mixed precision buy?" if is_precise else f"What does {printable(key)} change?"

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every group but the baselines against the one that fits it."""
        return self.view().comparisons

    @property
    def verdict(self) -> Verdict:
        """The answer in words."""
        return self.view().verdict

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The claims that are open still."""
        return self.view().undecided

    @property
    def is_decided(self) -> bool:
        """Whether each claim is decided, one way or the other: more seeds would change no answer."""
        compared = any((c.speed or c.quality) and not c.is_control for c in self.comparisons)
        return compared and not self.undecided

    @property
    def baseline(self) -> Group | None:
        """The first group of the baseline's value."""
        return next((g for g in self.groups if g.value == self.baseline_value), None)

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return self.view().comparison(label)

    def baseline_is(self, value: str) -> bool:
        """Whether the comparisons are with this value of the compared key."""
        return self.baseline is not None and self.baseline.value == value

    def group_of(self, figures: RunFigures) -> Group:
        """The group that a run is in."""
        return self._groups_of_runs[id(figures)]

    @cached_property
    def _groups_of_runs(self) -> dict[int, Group]:
        return {id(figures): group for group in self.groups for figures in group.runs}

    def check(self) -> None:
        """Raise UserError for what was asked for and is not there: an unknown name, a label of no group."""
        _ = self.published, self.requirements

    @cached_property
    def requirements(self) -> tuple[Answer, ...]:
        """Whether each requirement is shown to be met. Raises UserError for a group that is not here."""
        return judge(self.required, Case(self, self.view))

    @cached_property
    def published(self) -> Reproduction | None:
        """The publication of that name or file, and what these runs say of its figures. Raises UserError
        where none of them is of its model and its data.
        """
        if self.reproduce is None:
            return None
        points = self.metric.margin if self.metric.is_share and self.metric.margin else POINTS
        publication = load(self.reproduce)
        return set_beside(publication, self.figures, ignored=self.ignored, within=self.within, points=points)

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
    baseline: str | None = None,
    *,
    metric: str | None = None,
    margin: float | None = None,
    group_by: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    throughput: str | None = None,
    memory: str | None = None,
    unit: str | None = None,
    goal: str | None = None,
    reproduce: str | None = None,
    within: float = WITHIN,
    target: float | None = None,
    require: Sequence[str] = (),
) -> Analysis:
    """Compare the runs by the first key of `group_by` with the baseline, the value `baseline` of that key.

    `metric` is the quality that is compared, `margin` what still counts as the same (0.5 points for
    accuracies), `throughput` and `memory` the keys of these, `unit` how the metric is logged (percent,
    fraction, plain), `goal` maximize or minimize. What is not given is that of our own runs (the backend
    against `none` by the metric of their task); of other programs' it is guessed from what they logged, and
    said. `ignore` are settings that may differ within a group, `reproduce` a publication, by name or file,
    of which the runs are to tell whether it is reproduced, its ratios `within` 0.1 (10 %); `target` the value
    of the metric, as logged or as shown, up to which training is timed (by default what the baseline
    reaches), `require` what is to be shown, such as `native: speedup >= 1.5`. Margin and target that are not
    given are those of the runs' own plan, if they have one. Raises UserError.

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
    plan = plan_of(runs)
    asked = Wanted(baseline, metric, margin, group_by, ignore, throughput, memory, unit, goal)
    reading = read(runs, asked, plan.margin)
    compared, keys, baseline = reading.metric, reading.keys, reading.baseline
    figures = with_overlap(reading.figures)
    if all(f.settings is None for f in figures):
        check_keys("--group-by", keys, figures)
        check_keys("--ignore", ignore, figures)
    setting, ignored = describe(figures), frozenset(ignore)
    first = group_runs(figures, keys, ignored)
    baseline = _meant(baseline, first, keys[0])
    if (wanted := plan.target if target is None else target) is None:
        shown = baseline_target([f for g in first if g.value == baseline for f in g.runs], compared)
    else:
        shown = compared.as_shown(wanted)
        if target is not None and compared.is_share and not 0 < shown <= 100:
            raise UserError(
                f"--target {target:g}: {compared.name} lies between 0 and 100 %, such as 0.93 or 93"
            )
    figures = with_seconds_to(figures, shown, compared)
    groups = group_runs(figures, keys, ignored)
    words = {g.value: words_of(f.run) for g in groups for f in g.runs}
    looks = styles(((g.label, g.value) for g in groups), words)
    if keys[0] != BACKEND:  # `bf16` of another program's precision need not be our backend of that name
        looks = [replace(style, meaning="") for style in looks]
    analysis = Analysis(
        figures=tuple(figures),
        setting=setting,
        groups=tuple(groups),
        metric=compared,
        keys=keys,
        ignored=ignored,
        plan=plan,
        target=shown,
        quantities=reading.quantities,
        said=reading.said,
        warned=reading.cautions,
        baseline_value=baseline,
        styles={style.label: style for style in looks},
        reproduce=reproduce,
        within=within,
        required=tuple(parse(require)),
    )
    analysis.check()
    return analysis


def _meant(baseline: str, groups: Sequence[Group], key: str) -> str:
    """The value that a baseline is shown as: `native_bf16` for `native`, where all its runs are that."""
    if key != BACKEND or any(group.value == baseline for group in groups):
        return baseline
    runs = [(g.value, f.run.option(BACKEND)) for g in groups if not g.is_control for f in g.runs]
    shown = {value for value, backend in runs if backend == baseline}
    return shown.pop() if len(shown) == 1 else baseline
