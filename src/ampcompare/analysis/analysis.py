"""The analysis of a set of runs: every figure and every sentence that page, tables and terminal show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ampcompare.analysis import verdict
from ampcompare.analysis.bench_results import read_bench
from ampcompare.analysis.best_per_value import find_best_per_value
from ampcompare.analysis.caveats import find_caveats, find_deviations
from ampcompare.analysis.comparison import compare_all
from ampcompare.analysis.external.grouping import BASELINE
from ampcompare.analysis.external.reader import ReadingOptions, interpret_runs
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.gates import Gate, check_gates, parse_gates
from ampcompare.analysis.grouping.backend_info import describe_backend
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    control_position,
    describe_setting,
)
from ampcompare.analysis.grouping.groups import Group, group_runs
from ampcompare.analysis.grouping.outcome import outcome_of
from ampcompare.analysis.grouping.run_metrics import BY_COLUMN, CHANCE
from ampcompare.analysis.grouping.run_table import GROUP, RUN, build_run_table
from ampcompare.analysis.grouping.validity_checks import measure_resolution
from ampcompare.analysis.numerics import describe_numerics
from ampcompare.analysis.plan import read_plan
from ampcompare.analysis.reproduction import WITHIN, assess_reproduction
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.multiplicity import joint_level
from ampcompare.errors import UserError, did_you_mean
from ampcompare.publications.publication import load_publication
from ampcompare.runs import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import between, capital, change, listed, plural, some

CHARTS_JOB = "ampcompare-charts"  # job type of the run that holds a report on W&B; no training


@dataclass(eq=False, kw_only=True)
class Analysis(Findings):
    """The findings in words as well, as every output shows them; `required` is what is to be shown."""

    gates: tuple[Gate, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.headline, self.accent = verdict.headline(self)
        self.basis, self.caption = verdict.basis(self), verdict.caption(self)
        self.gate_results = check_gates(self, self.gates)

    def badge(self, group: Group) -> str:
        found = self.comparison(group.label)
        return verdict.badge(found) if found else "baseline" if group.value == self.baseline_value else ""

    def tone(self, group: Group) -> str:
        found = self.comparison(group.label)
        return verdict.tone(found) if found else verdict.BASE

    @cached_property
    def numerics(self) -> dict[str, str]:
        """What happened to the numbers, by phenomenon; under "" what is said where nothing did."""
        is_recorded = any(run.is_recorded for run in self.table[RUN])
        looking = "diagnostics.every" if self.is_own else "Recorder(diagnostics=N)" if is_recorded else ""
        return describe_numerics([g for g in self.groups if not g.is_control], looking)

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """The reasons for doubt, gravest first, a sentence for each cause."""
        drifts = [c.drift for c in self.comparisons if c.drift and c.drift.side_of(1.0)]
        drifted = [f"From its first to its last runs the control changed by {_change(d)}." for d in drifts]
        off = find_deviations(self)
        differs = [f"Not as planned: {listed(off)}."] if off else []
        stale = self.bench.caveats(self.groups) if self.bench else []
        return (*stale, *drifted[:1], *differs, *self.plan.doubts, *self.reading_doubts, *find_caveats(self))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How the runs were read, the best of each, what no change at all did."""
        said = [f"{capital(what)}." for what in self.reading_notes]
        said += [self.best.sentence] if self.best else []
        for control in (c for c in self.comparisons if c.is_control and c.baseline):
            found = {q: control.estimates[q] for q in ("speed", "memory") if q in control.estimates}
            parts = listed(f"{q} {_change(one)}" for q, one in found.items()) or "nothing to tell"
            drift = f"; from its first to its last runs {_change(control.drift)}" if control.drift else ""
            said.append(f"No change at all ({control.group.label}): {parts}{drift}.")
        return tuple(said)

    @property
    def advice(self) -> str:
        """Return how many more seeds would decide what is inconclusive, "" where no number would.

        Where the runs' plan allows fewer seeds than that, it says so instead.
        """
        names, limit = {"speed": "speed", "quality": self.metric.noun}, self.plan.max_seeds
        within, beyond = [], []
        for label, claim in self.undecided:
            if not claim.more_seeds or claim.estimate is None:
                continue
            what = f"the {names[claim.question]} of {label}"
            if limit is None or claim.estimate.n + claim.more_seeds <= limit:
                within.append(f"about {claim.more_seeds:,} for {what}")
            else:
                beyond.append(what)
        told = []
        if within and not self.is_own:  # which no sweep of ours has to have made
            told.append(f"Inconclusive: more runs of each arm would decide, {some(within)}.")
        elif within:
            how = "`ampcompare sweep FILE --until-decided` adds them, and counts each look."
            told.append(f"Inconclusive: more seeds per backend would decide, {some(within)}. {how}")
        if beyond:
            told.append(f"The plan's limit of {plural(limit or 0, 'seed')} would not decide {some(beyond)}.")
        return " ".join(told)


def _change(found: Estimate) -> str:
    return f"{change(found.value)}{between(found.low, found.high, change)}"


def analyse_runs(
    runs: Sequence[RunRecord],
    baseline: str | None = None,
    *,
    metric: str | None = None,
    best: bool = False,
    margin: float | None = None,
    group_by: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    split_by: Sequence[str] = (),
    seed: str | None = None,
    throughput: str | None = None,
    time: str | None = None,
    memory: str | None = None,
    reproduce: str | None = None,
    within: float = WITHIN,
    target: float | None = None,
    require: Sequence[str] = (),
    bench: str | None = None,
) -> Analysis:
    """Compare the runs by the first key of `group_by` with the baseline, the value `baseline` of that key.

    Runs of our own need nothing else: the backend is compared with `none` by the metric of their task. Of
    other programs' runs `metric` with its direction has to be named, unless their format declares it, and
    either arms (`load_runs(["fp32=logs/a", "bf16=logs/b"])`) or `group_by` and `baseline`.

    Args:
        runs: The runs, as `load_runs` returns them.
        baseline: The value of the compared key that the others are compared with.
        metric: `KEY:min` or `KEY:max`, with `:percent` or `:fraction` where it is an accuracy.
        best: Whether each run's best value of the metric counts, and not its last.
        margin: The difference that still counts as the same (0.5 points for accuracies).
        group_by: Settings in the labels, of which the first is compared.
        ignore: Settings that may differ within a group; `device` where none is recorded and it was one.
        split_by: Settings that make groups of an arm's runs.
        seed: The key of the seed by which runs are paired.
        throughput: `KEY:per_second`.
        time: `KEY:seconds` or `KEY:ms` of a step or an epoch; with `:cumulative` it counts from the start.
        memory: `KEY:MiB`, `KEY:GiB` or `KEY:bytes`.
        reproduce: A publication, by name or file, of which the runs tell whether it is reproduced.
        within: The fraction by which a ratio may differ from a published one.
        target: The value of the metric, as logged or as shown, up to which training is timed (by default what
            the baseline reaches).
        require: What is to be shown, such as `native: speedup >= 1.5`.
        bench: A file of `ampcompare bench --json` that speed is taken from.

    Margin and target that are not given are those of the runs' own plan, if they have one.

    Raises:
        UserError: What an option names is not there; for other programs' runs a `MissingInput` lists what has
            to be named, with candidates.

    >>> from ampcompare import analyse_runs, load_runs
    >>> analysis = analyse_runs(load_runs(["runs"]), baseline="none")
    >>> [(group.label, group.seeds) for group in analysis.groups]
    [('none', 1), ('native', 1)]
    >>> analysis.comparison("native").estimates["memory"].value > 0  # ratio of peak memory
    True
    """
    runs = [run for run in runs if run.job_type != CHARTS_JOB]
    if not runs:
        raise UserError("the sources hold no training runs, only an earlier report; name others")
    plan = read_plan(runs)
    options = ReadingOptions(
        baseline=baseline,
        metric=metric,
        best=best,
        margin=plan.margin if margin is None else margin,
        group_by=group_by,
        split_by=split_by,
        seed=seed,
        ignore=ignore,
        throughput=throughput,
        time=time,
        memory=memory,
    )
    reading = interpret_runs(runs, options)
    grouping, ignored = reading.grouping, frozenset(ignore)
    keys, value = grouping.keys, grouping.baseline
    values = [one.get(keys[0], NOT_SET) for one in grouping.settings]
    of_baseline = [run for run, own in zip(reading.runs, values, strict=True) if own == value]
    target = _target(target, plan.target, of_baseline, reading.metric)
    compared = replace(reading.metric, target=target, is_best=best)
    rows = build_run_table(reading.runs, compared, grouping.seeds, grouping.settings)
    compared = replace(compared, resolution=measure_resolution(rows, compared))
    groups = group_runs(rows, compared, keys, ignored)
    there = list(dict.fromkeys(group.value for group in groups if not group.is_control))
    if baseline is not None and value not in (*there, BASELINE):  # which a sweep may not have come to
        hint = did_you_mean(value, there, 0.5)
        known = f"{hint and hint + ' '}there are {', '.join(there)}"
        raise UserError(f"--baseline {value!r}: no run has it; {known}")
    measured = read_bench(bench, groups) if bench else None
    bases = [group for group in groups if group.value == value and not group.is_control]
    if measured and any(measured.ratios(base, base) for base in bases):
        groups = [replace(group, bench_estimates=measured.group_estimates(group)) for group in groups]
    # `bf16` of another program's precision need not be our backend of that name.
    of_backends = groups if keys[0] == BACKEND else []
    descriptions = {
        group.value: describe_backend(run) for group in of_backends for run in group.all_rows[RUN]
    }
    group_of = {place: group.label for group in groups for place in group.all_rows.index}
    # Of each interval: of all groups that were asked for, comparable or not, times the looks.
    others = sum(group.value != value and not group.is_control for group in groups)
    level = joint_level(others, len(plan.looks) or 1)
    reproduction = None
    if reproduce is not None:
        reproduction = assess_reproduction(load_publication(reproduce), rows, compared, ignored, within)
    return Analysis(
        table=rows.assign(**{GROUP: rows.index.map(group_of)}),
        setting=describe_setting(rows),
        groups=tuple(groups),
        metric=compared,
        keys=keys,
        baseline_value=value,
        plan=plan,
        level=level,
        comparisons=compare_all(groups, value, keys[0], level, measured),
        best=find_best_per_value(groups, keys[0], value, compared, level),
        backend_descriptions={group.label: descriptions.get(group.value, "") for group in groups},
        ignored=ignored,
        bench=measured,
        quantities=reading.quantities,
        reading_notes=tuple(reading.notes),
        is_own=reading.is_own,
        reading_doubts=tuple(reading.doubts),
        reproduction=reproduction,
        gates=tuple(parse_gates(require)),
    )


def _target(
    asked: float | None, planned: float | None, bases: Sequence[RunRecord], metric: ComparedMetric
) -> float | None:
    """The value of the metric, as shown, up to which training is timed: as given or planned; else what every
    finished run of the baseline reaches, rounded to the easier side, where that is no guessing.
    """
    if (wanted := planned if asked is None else asked) is not None:
        shown = metric.as_shown(wanted)
        if asked is not None and metric.is_percentage and not 0 < shown <= 100:
            raise UserError(f"--target {asked:g}: {metric.name} lies between 0 and 100 %, such as 0.93 or 93")
        return shown
    ended = [run for run in bases if outcome_of(run, metric.key)[0] is RunState.FINISHED]
    finished = [run for run in ended if not control_position(run)]
    every = [run.values(metric.key) for run in finished]
    known = [values[np.isfinite(values)] * metric.factor for values in every]
    best = [
        float(values.min() if metric.lower_is_better else values.max()) for values in known if len(values)
    ]
    worst = max(best, default=0.0) if metric.lower_is_better else min(best, default=0.0)
    guessing = max((BY_COLUMN[CHANCE].value_of(run, metric) for run in bases), default=0.0)
    if not best or (not metric.lower_is_better and worst <= 100 * guessing + 1):
        return None
    step = 1.0 if metric.factor > 1 and worst >= 2 else 10.0 ** math.floor(math.log10(abs(worst) or 1) - 1)
    rounded = (math.ceil if metric.lower_is_better else math.floor)(round(worst / step, 9)) * step
    return float(f"{rounded:.6g}")
