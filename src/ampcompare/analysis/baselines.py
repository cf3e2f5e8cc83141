"""Compare each group with the baseline that matches it, and state what the intervals show.

For each question (speed, memory, quality) the intervals of all groups hold together in 95%, over all planned
looks. Every claim is read from one two-sided interval: on one side of "no change" it shows faster, slower,
smaller, larger, better or worse; above the lower margin it shows "not lower by more than the margin"; within
both margins it shows "the same". This is stricter than two one-sided tests at 5%.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampcompare.analysis.bench_results import BenchResults
from ampcompare.analysis.chaos_control import is_unresolved
from ampcompare.analysis.claims import Claim, Reason, claim_quality, claim_ratio, with_forecast
from ampcompare.analysis.comparison import Comparison, pool_spreads
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    dependent_prefixes,
    differing_keys,
)
from ampcompare.analysis.grouping.groups import Group, Kind
from ampcompare.analysis.grouping.run_metrics import (
    COMPARED_METRICS,
    MEMORY,
    QUALITY,
    SCORE,
    SPEED,
    TIME,
    TO_TARGET,
    RunMetric,
)
from ampcompare.analysis.grouping.validity_checks import estimate_control_drift, measure_speed_resolution
from ampcompare.analysis.reasons import (
    UNRESOLVED,
    counts_processes,
    explain_degenerate,
    explain_quality,
    find_reason,
    is_memory_of_shared_process,
    no_native_arithmetic,
)
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import estimate_difference, seed_correlation
from ampcompare.config.schema import TF32
from ampcompare.runs.loader import ARM
from ampcompare.runtime.formatting import listed, some

ENVIRONMENT = "environment."
DEVICE_KEYS = f"{ENVIRONMENT}device_"
MAX_KEYS = 6  # settings that a sentence names
Levels = Mapping[str, float]
TIMED = (SPEED, TIME)  # not compared on a CPU without instructions for the dtype


def compare_all(
    groups: Sequence[Group], baseline: str, key: str, levels: Levels, bench: BenchResults | None
) -> list[Comparison]:
    """Compare every group except the baselines with the baseline that matches it.

    Args:
        groups: All groups.
        baseline: The value of the baseline.
        key: The compared key.
        levels: Level of each interval by question, 0..1.
        bench: Speeds of a benchmark.

    Returns:
        The comparisons; none without a baseline.
    """
    bases = [group for group in groups if group.value == baseline and not group.is_control]
    if not bases:
        return []
    comparisons = []
    for group in groups:
        if group.value == baseline:
            continue
        base, not_compared_reason = _baseline_of(group, bases, key)
        if base is None:
            comparisons.append(Comparison(group, None, not_compared_reason))
            continue
        control = None if group.is_control else _control_of(base, groups, key)
        uncontrolled = _uncontrolled_settings(group, base, key)
        comparisons.append(_compare(group, base, levels, control, uncontrolled, bench))
    spreads = pool_spreads(comparisons)
    unresolved = [
        comparison.baseline
        for comparison in comparisons
        if comparison.group.kind is Kind.CHAOS and is_unresolved(comparison.estimates.get(QUALITY))
    ]
    for comparison in comparisons:
        is_compared = comparison.baseline is not None and not comparison.is_control
        if is_compared and not any(side.is_unfinished for side in comparison.sides):
            reason = UNRESOLVED if comparison.baseline in unresolved else None
            comparison.claims = _make_claims(comparison, reason, spreads)
    return comparisons


def _control_of(base: Group, groups: Sequence[Group], key: str) -> Group | None:
    """Return the A/A control of a baseline, one with finished runs if there are several; None without one."""
    controls = [
        group
        for group in groups
        if (group.kind, group.base_value) == (Kind.AA, base.value)
        and not _uncontrolled_settings(base, group, key)
    ]
    return max(controls, key=lambda control: control.outcomes.finished > 0, default=None)


def _make_claims(
    comparison: Comparison, unresolved: Reason | None, spreads: Mapping[str, tuple[float, float]]
) -> dict[str, Claim]:
    """Return the claims on all questions, with forecasts of the seeds that would decide the open ones.

    Args:
        unresolved: Why no difference in quality may be claimed; None if it may.
        spreads: As `pool_spreads` returns them.
    """
    claims = {}
    metric = comparison.group.metric
    for question, run_metric in COMPARED_METRICS.items():
        if not run_metric.sides:
            continue
        estimate = comparison.estimates.get(question)
        reason = find_reason(comparison, run_metric)
        if estimate is None or reason:
            claim = Claim(question, estimate, reason=reason)
        elif question == QUALITY:
            claim = claim_quality(estimate, metric, comparison.degenerate, unresolved)
        else:
            control = comparison.relative_to_control.get(question)
            claim = claim_ratio(question, estimate, metric, comparison.has_control, control)
        # Forecasts are numbers of seeds, and more seeds in a process are no more measurements of it.
        is_forecast = not counts_processes(comparison.sides, run_metric)
        claims[question] = with_forecast(claim, metric, spreads.get(question) if is_forecast else None)
    return claims


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """Return the one baseline that differs from a group only in what is compared, or why there is none.

    Software may differ: the nearest of several baselines is taken.
    """

    def rank(base: Group) -> tuple[bool, bool, int]:
        keys = _uncontrolled_settings(group, base, key)
        has_other_options = not all(name.startswith(ENVIRONMENT) for name in keys)
        return has_other_options, not base.n, len(keys)

    nearest = min(bases, key=rank)
    has_other_options, *_ = rank(nearest)
    if has_other_options:
        differences = [
            f"{name} ({group.settings.get(name, NOT_SET)} and {nearest.settings.get(name, NOT_SET)})"
            for name in _uncontrolled_settings(group, nearest, key)
            if not name.startswith(ENVIRONMENT)
        ]
        names = f"{group.display_name} and {nearest.display_name}"
        return None, f"{names} also differ in {some(differences, MAX_KEYS)}"
    candidates = [base for base in bases if rank(base) == rank(nearest)]
    if len(candidates) == 1:
        return nearest, ""
    varied = listed(differing_keys([base.settings for base in candidates])[:MAX_KEYS])
    names = listed(base.display_name for base in candidates)
    return None, f"{names} are equally good baselines, but differ in {varied}"


def _uncontrolled_settings(group: Group, base: Group, key: str) -> list[str]:
    """Return the settings that differ between two groups and are not what is compared."""
    keys = differing_keys([group.settings, base.settings])
    dependent = dependent_prefixes(key)
    # The backend `tf32` sets this switch, so the switch is no other difference.
    if key == BACKEND and TF32 in (group.settings.get(key), base.settings.get(key)):
        dependent = (*dependent, "tf32", "environment.tf32")
    # Recorder(backend=args.mode): the recorded backend is the compared setting under another name.
    if all(one.base_value == one.settings.get(BACKEND) for one in (group, base)):
        dependent = (*dependent, *dependent_prefixes(ARM))
    return [name for name in keys if name != key and not name.startswith(dependent)]


def _compare(
    group: Group,
    base: Group,
    levels: Levels,
    control: Group | None,
    uncontrolled_differences: Sequence[str],
    bench: BenchResults | None,
) -> Comparison:
    """Return a group relative to a baseline, without claims.

    Speed, memory and energy are compared on one device only. Times and energy count only for runs that had
    the machine to themselves.

    Args:
        base: The baseline.
        levels: Level of each interval by question, 0..1.
        control: The A/A control of the baseline, None without one.
        uncontrolled_differences: Settings that differ besides the compared key.
        bench: Speeds of a benchmark, None without one.
    """
    no_quality = explain_quality(group, base)
    relative_to_control = {}
    if control is not None and control.outcomes.finished:
        relative_to_control = _estimates(group, control, levels, bench)
    return Comparison(
        group,
        base,
        uncontrolled_differences=tuple(k for k in uncontrolled_differences if not k.startswith(DEVICE_KEYS)),
        estimates=_estimates(group, base, levels, bench),
        relative_to_control=relative_to_control,
        has_control=control is not None,
        drift=estimate_control_drift(group, levels[SPEED]) if group.is_control else None,
        no_quality=no_quality,
        degenerate=None if no_quality else explain_degenerate(group),
        is_missing_in_bench=_is_missing_in_bench(group, base, bench),
        seed_correlation=seed_correlation(group.sample(SCORE), base.sample(SCORE)),
    )


def _is_missing_in_bench(group: Group, base: Group, bench: BenchResults | None) -> bool:
    """Return whether a benchmark has the speed of the baseline but not that of the group."""
    return bench is not None and bool(bench.ratios(base, base)) and not bench.ratios(group, base)


def _estimates(group: Group, base: Group, levels: Levels, bench: BenchResults | None) -> dict[str, Estimate]:
    """Return the estimates of a group relative to a baseline, by question."""
    sides = (group, base)
    bench_ratios = bench.ratios(group, base) if bench else {}
    leaves_out_times = bool(no_native_arithmetic(sides)) or _is_missing_in_bench(group, base, bench)
    estimates = {}
    for question, run_metric in COMPARED_METRICS.items():
        if leaves_out_times and question in TIMED:
            continue
        if run_metric.column in base.bench_estimates:  # then the values of the runs are not shown, either
            if question in bench_ratios:
                estimates[question] = bench_ratios[question]
        elif _is_comparable(group, base, run_metric):
            estimate = _estimate_from_runs(group, base, run_metric)
            if estimate is not None:
                estimates[question] = replace(estimate, level=levels[question])
    return estimates


def _is_comparable(group: Group, base: Group, run_metric: RunMetric) -> bool:
    """Return whether two groups can be compared by a metric of their runs.

    Quality needs finished runs. Metrics of the machine need one device. The time to a target needs runs that
    all reached it: the runs that missed it would be left out.
    """
    sides = (group, base)
    if run_metric.is_of_seed:
        return not any(side.is_unfinished for side in sides)
    devices = group.devices | base.devices
    if len(devices) > 1 or "" in devices:
        return False
    if run_metric.question == MEMORY and is_memory_of_shared_process(sides):
        return False
    return run_metric.question != TIME or all(side.rows[TO_TARGET].notna().all() for side in sides)


def _estimate_from_runs(group: Group, base: Group, run_metric: RunMetric) -> Estimate | None:
    """Return the estimate of a metric of the runs; None where one of the groups has no value."""
    question = run_metric.question
    resolution = 0.0
    if question == QUALITY:
        resolution = group.metric.resolution
    elif run_metric.is_timed:
        resolution = measure_speed_resolution((group, base))
    # The runs of an A/A control are at the ends of a sweep, so they are not paired with other runs.
    is_unpaired = any(side.kind is Kind.AA for side in (group, base))
    estimate = estimate_difference(
        group.sample(run_metric.column),
        base.sample(run_metric.column),
        log=run_metric.is_ratio,
        paired_by="" if is_unpaired else "seed",
        resolution=resolution,
    )
    if estimate is None:
        return None
    # Seeds, or speeds, that agree are no evidence of a spread of zero.
    if question in (QUALITY, SPEED) and not estimate.error:
        estimate = replace(estimate, error=None)
    if question == QUALITY and group.metric.is_percentage:
        estimate = replace(estimate, bounds=(-100.0, 100.0))
    return estimate
