"""Analyse a set of runs: every number and every sentence that page, tables and terminal show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ampcompare.analysis import verdict
from ampcompare.analysis.baselines import compare_all
from ampcompare.analysis.bench_results import BenchResults, read_bench
from ampcompare.analysis.caveats import CAVEATS, NOTES
from ampcompare.analysis.costs import describe_work
from ampcompare.analysis.distinct_arms import find_identical_arms, interval_levels
from ampcompare.analysis.external.inferred_grouping import BASELINE
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.gates import Gate, check_gates, parse_gates
from ampcompare.analysis.grouping.backend_info import describe_backend
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    describe_setting,
)
from ampcompare.analysis.grouping.groups import Group, count_ended_seeds, group_runs
from ampcompare.analysis.grouping.run_metrics import (
    COMPARED_METRICS,
    MEMORY,
    QUALITY,
)
from ampcompare.analysis.grouping.run_table import GROUP, ON_CPU, RUN, build_run_table
from ampcompare.analysis.grouping.training_recipe import read_recipe
from ampcompare.analysis.grouping.validity_checks import measure_resolution
from ampcompare.analysis.methods import write_basis, write_caption, write_methods
from ampcompare.analysis.next_step import write_next_step
from ampcompare.analysis.numerics import describe_numerics
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.analysis.reasons import has_too_few_values
from ampcompare.analysis.recommendation import Recommendation, recommend
from ampcompare.analysis.reproduction import assess_reproduction
from ampcompare.analysis.sweep_plan import OLD_RULE
from ampcompare.analysis.task import resolve_task
from ampcompare.errors import UserError, did_you_mean
from ampcompare.publications.publication import load_publication
from ampcompare.runs import RunRecord
from ampcompare.runtime.formatting import capital

CHARTS_JOB = "ampcompare-charts"  # job type of the W&B run that holds a report; it is no training
DEFAULT_OPTIONS = AnalysisOptions()


@dataclass(eq=False, kw_only=True)
class Analysis(Findings):
    """The findings, and the sentences that every output shows.

    Attributes:
        gates: The required gates of `--require`.
        answers: The answer for each group: accuracy, then speed, then failed and unfinished runs.
        headline: The answers in one line.
        basis: Setting, sample size, machine and margin or plan, in one line.
        caption: What the intervals of the table are, in one sentence.
        methods: How the intervals were made, a sentence each.
        gate_results: Whether each gate is shown.
    """

    gates: tuple[Gate, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers = tuple(verdict.write_headline(self))
        self.headline = " ".join(self.answers)
        self.basis = write_basis(self)
        self.caption = write_caption(self)
        self.methods = write_methods(self)
        self.gate_results = check_gates(self, self.gates)

    def badge(self, group: Group) -> str:
        """Return the verdict on a group in a few words."""
        return " · ".join(part.text for part in self.badge_parts(group))

    def badge_parts(self, group: Group) -> list[verdict.BadgePart]:
        """Return the answers of a group's badge, each with its tone: `good`, `bad`, `open` or `base`."""
        comparison = self.comparison(group.label)
        if comparison is not None:
            return verdict.write_badge(comparison)
        is_baseline = group.value == self.baseline_value
        return [verdict.BadgePart("baseline", verdict.BASE)] if is_baseline else []

    @cached_property
    def numerics(self) -> dict[str, str]:
        """Return a sentence on each numerical phenomenon; under "" a sentence if nothing happened."""
        option = ""
        if self.is_own:
            option = "diagnostics.every"
        elif any(run.is_recorded for run in self.table[RUN]):
            option = "Recorder(diagnostics=N)"
        return describe_numerics([g for g in self.groups if not g.is_control], option)

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """The reasons for doubt, gravest first, one sentence for each cause."""
        return tuple(sentence for rule in CAVEATS for sentence in rule(self))

    @property
    def how_read(self) -> list[str]:
        """Return how runs of other programs were read."""
        return [f"{capital(note)}." for note in self.reading_notes]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Return how the runs were read, notes on controls, and the limits of the size."""
        return (*self.how_read, *(sentence for rule in NOTES for sentence in rule(self)))

    @cached_property
    def recommendation(self) -> Recommendation:
        """Return the backend that the evidence speaks for, or what is missing."""
        return recommend(self)

    @cached_property
    def costs(self) -> str:
        """Return the time and energy of an epoch where the speed is decided; "" elsewhere."""
        return " ".join(describe_work(self))

    @cached_property
    def advice(self) -> str:
        """Return what would decide the open claims, "" if every claim is decided."""
        return write_next_step(self)


def analyse_runs(
    runs: Sequence[RunRecord],
    baseline: str | None = None,
    *,
    options: AnalysisOptions = DEFAULT_OPTIONS,
    sweep_command: str = "",
    **named: Any,
) -> Analysis:
    """Compare runs with the baseline, grouped by the first key of `group_by`.

    Our own runs need no options: their backends are compared with the backend `none` by the metric of their
    task. For runs of other programs, name the metric with its direction unless their format declares it. Also
    name either the arms (`load_runs(["fp32=logs/a", "bf16=logs/b"])`) or `group_by` and `baseline`.

    Args:
        runs: What `load_runs` returned.
        baseline: The value of the compared key that the others are compared with.
        sweep_command: The command that adds seeds to the sweep of these runs, "" if it is not known.
        **named: Fields of `AnalysisOptions` by name, in place of those in `options`: `metric`, `margin`,
            `group_by`, `bench` and others.

    Raises:
        UserError: An option names something that no run has.
        MissingInput: Runs of other programs need more options. The error lists them with candidates.

    >>> from ampcompare import analyse_runs, load_runs
    >>> analysis = analyse_runs(load_runs(["runs"]), baseline="none")
    >>> [(group.label, group.seeds) for group in analysis.groups]
    [('none', 1), ('native', 1)]
    >>> analysis.comparison("native").estimates["memory"].value > 0  # ratio of peak memory
    True
    """
    runs = [run for run in runs if run.job_type != CHARTS_JOB]
    if not runs:
        raise UserError("the sources contain no training runs, only an earlier report; name other sources")
    if baseline is not None:
        named["baseline"] = baseline
    options = replace(options, **named)
    task = resolve_task(runs, options)
    plan = task.plan
    grouping = task.grouping
    keys = grouping.keys
    value = grouping.baseline
    ignored = frozenset(options.ignore)

    rows = build_run_table(task.runs, task.metric, grouping.seeds, grouping.settings)
    metric = replace(task.metric, resolution=measure_resolution(rows, task.metric))

    groups = group_runs(rows, metric, keys, ignored)
    if options.baseline is not None:
        _check_baseline(value, groups)
    bench = read_bench(options.bench, groups) if options.bench else None
    if bench is not None:
        groups = _with_bench_values(groups, value, bench)
    group_of = {index: group.label for group in groups for index in group.all_rows.index}

    bases = [group for group in groups if group.value == value]
    arms = [group for group in groups if group.value != value and not group.is_control]
    identical_arms = [] if plan.rule == OLD_RULE else find_identical_arms(arms)
    share = plan.share_at(count_ended_seeds([*bases, *arms]))
    levels = interval_levels(arms, identical_arms, share)

    reproduction = None
    if options.reproduce is not None:
        publication = load_publication(options.reproduce)
        reproduction = assess_reproduction(publication, rows, metric, ignored, options.within, plan.rule)
    return Analysis(
        table=rows.assign(**{GROUP: rows.index.map(group_of)}),
        setting=describe_setting(rows),
        recipe=read_recipe(list(rows[RUN])),
        groups=tuple(groups),
        metric=metric,
        keys=keys,
        baseline_value=value,
        plan=plan,
        level=levels[QUALITY],
        levels=levels,
        identical_arms=tuple(tuple(members) for members in identical_arms),
        comparisons=compare_all(groups, value, keys[0], levels, bench),
        backend_descriptions=_describe_backends(groups, keys[0]),
        ignored=ignored,
        bench=bench,
        quantities=task.quantities,
        reading_notes=tuple(task.notes),
        is_own=task.is_own,
        reading_doubts=tuple(task.doubts),
        reproduction=reproduction,
        gates=tuple(parse_gates(options.require)),
        sweep_command=sweep_command,
    )


def _with_bench_values(groups: list[Group], baseline: str, bench: BenchResults) -> list[Group]:
    """Return the groups with the speed of a benchmark, if it measured the training of their baseline.

    The memory of all groups is from the benchmark, too, if the runs of one of them have too few values. The
    memory of a process on a CPU is no result of a benchmark: PyTorch itself is most of it.
    """
    if not any(bench.ratios(base, base) for base in groups if base.value == baseline):
        return groups
    arms = [group for group in groups if not group.is_control]
    on_cpu = any(group.rows[ON_CPU].any() for group in arms)
    has_memory = not on_cpu and any(has_too_few_values(group, COMPARED_METRICS[MEMORY]) for group in arms)
    return [
        replace(group, bench_estimates=bench.group_estimates(group, has_memory=has_memory))
        for group in groups
    ]


def _check_baseline(baseline: str, groups: Sequence[Group]) -> None:
    """Refuse a baseline that no run has. A sweep may not have reached the baseline `none` yet.

    Raises:
        UserError: No run has the value.
    """
    known = list(dict.fromkeys(group.value for group in groups if not group.is_control))
    if baseline not in (*known, BASELINE):
        hint = did_you_mean(baseline, known, 0.5, end=" ")
        raise UserError(
            f"--baseline {baseline!r}: no run has this value; {hint}known values: {', '.join(known)}"
        )


def _describe_backends(groups: Sequence[Group], compared_key: str) -> dict[str, str]:
    """Return the description of the backend of each group by label, "" if none is known."""
    descriptions: dict[str, str] = {}
    # A precision `bf16` of another program need not be our backend `bf16`.
    if compared_key == BACKEND:
        descriptions = {group.value: describe_backend(run) for group in groups for run in group.all_rows[RUN]}
    return {group.label: descriptions.get(group.value, "") for group in groups}
