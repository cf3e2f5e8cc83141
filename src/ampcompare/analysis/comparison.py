"""Compare one group with the baseline, and state what the intervals show.

For each question (speed, memory, quality) the intervals of all groups hold together in 95%, over all planned
looks. Every claim is read from one two-sided interval: on one side of "no change" it shows faster, slower,
smaller, larger, better or worse; above the lower margin it shows "not lower by more than the margin"; within
both margins it shows "the same". This is stricter than two one-sided tests at 5%.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampcompare.analysis.bench_results import BenchEstimate, BenchResults
from ampcompare.analysis.chaos_control import is_chaos_control, is_unresolved
from ampcompare.analysis.claims import (
    EQUIVALENT,
    NOT_WORSE,
    SAME_SPEED,
    Claim,
    claim_quality,
    claim_ratio,
    with_forecast,
)
from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.backend_info import repeated_value
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    dependent_prefixes,
    differing_keys,
)
from ampcompare.analysis.grouping.groups import Group, control_value
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
from ampcompare.analysis.grouping.run_table import is_machine_shared
from ampcompare.analysis.grouping.training_length import has_early_stopping, unequal_lengths
from ampcompare.analysis.grouping.validity_checks import (
    estimate_control_drift,
    explain_degenerate,
    explain_placeholder,
    measure_speed_resolution,
)
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS, estimate_difference, seed_correlation
from ampcompare.analysis.statistics.sample_size import pool_deviations
from ampcompare.metrics import COMPUTED_IN_FP32, EMULATED
from ampcompare.runs.loader import ARM
from ampcompare.runs.migrations import TF32
from ampcompare.runtime.formatting import listed, some

ENVIRONMENT = "environment."
DEVICE_KEYS = f"{ENVIRONMENT}device_"
MAX_KEYS = 6
NOT_FINISHED = "not finished"
NOT_RESOLVED = "the baseline with changed last bits differs from the baseline, too"
NOT_IN_BENCH = "the benchmark has no matching arm"
Levels = Mapping[str, float]
TIMED = (SPEED, TIME)  # not compared on a CPU without instructions for the dtype


@dataclass(eq=False)
class Comparison:
    """A group relative to its baseline.

    Attributes:
        group: The compared group.
        baseline: The baseline group. None if no baseline matches the group.
        not_compared_reason: Why no baseline matches.
        uncontrolled_differences: Settings of machine and software that differ.
        estimates: By question: ratios to the baseline (speed above 1 is faster, memory below 1 is less), and
            the difference in quality in its shown unit.
        relative_to_control: The same estimates relative to the runs of the A/A control.
        has_control: Whether there is an A/A control.
        drift: For a control, the throughput of its last runs relative to its first.
        no_claim_reason: Why nothing is claimed about quality.
        degenerate_reason: Why the group's metric is uninformative although the baseline's is not. The group
            then lost quality, whether the interval shows it or not.
        is_missing_in_bench: Whether a benchmark has the speed of other groups and no arm for this one.
        unresolved_reason: Why no difference in quality may be claimed, "" if it may.
        spreads: By question: the standard deviation of one pair, pooled over all groups, and its degrees of
            freedom. Only forecasts of further seeds use it.
        seed_correlation: The correlation of the quality with that of the baseline over the shared seeds; None
            if it is not defined.
        claims: The claims by question.
        speedup: The ratio of speeds, None if speeds are not compared.
        shown: Every word that is shown.
        is_faster: Whether the group is shown to be faster.
        keeps_quality: Whether quality is shown to be equivalent, better, or not lower by more than the
            margin. Never with a failed run.
        is_quality_lost: Whether quality is shown to be worse beyond the margin, or nothing was learned.
        is_control: Whether the group is the A/A control: the baseline once more.
    """

    group: Group
    baseline: Group | None
    not_compared_reason: str = ""
    uncontrolled_differences: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    relative_to_control: Mapping[str, Estimate] = field(default_factory=dict)
    has_control: bool = False
    drift: Estimate | None = None
    no_claim_reason: str = ""
    degenerate_reason: str = ""
    is_missing_in_bench: bool = False
    unresolved_reason: str = ""
    spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed_correlation: float | None = None

    def __post_init__(self) -> None:
        self.is_control = self.group.is_control
        self.speedup = self.estimates[SPEED].value if SPEED in self.estimates else None
        self.claims = self._make_claims()
        self.shown = frozenset(word for claim in self.claims.values() for word in claim.shown)

        shown = self.shown
        self.is_faster = "faster" in shown and SAME_SPEED not in shown
        self.keeps_quality = not shown.isdisjoint({EQUIVALENT, NOT_WORSE, "better"})
        is_worse = "worse" in shown and EQUIVALENT not in shown
        self.is_quality_lost = is_worse or bool(self.degenerate_reason)

    def _make_claims(self) -> dict[str, Claim]:
        """Return the claims; none for a control, and before both groups have finished runs."""
        base = self.baseline
        if base is None or self.is_control or self.group.is_unfinished or base.is_unfinished:
            return {}
        claims = {}
        for question, run_metric in COMPARED_METRICS.items():
            if not run_metric.sides:
                continue
            # Forecasts are numbers of seeds, and more seeds in a process are no more measurements of it.
            is_forecast = not counts_processes((self.group, base), run_metric)
            spread = self.spreads.get(question) if is_forecast else None
            claims[question] = with_forecast(_claim(self, base, question), self.group.metric, spread)
        return claims

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """The claims on speed and quality that more seeds may decide."""
        may_be_claimed = not self.is_control and not self.not_compared_reason
        if may_be_claimed and not self.claims and self.group.outcomes.running:
            return (Claim(SPEED, None, (), NOT_FINISHED, is_open=True),)
        return tuple(
            claim
            for claim in self.claims.values()
            if claim.is_open and claim.question != MEMORY and not claim.is_by_benchmark
        )


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
        uncontrolled = uncontrolled_settings(group, base, key)
        comparisons.append(compare(group, base, levels, control, uncontrolled, bench))
    return with_spreads(without_unresolved_differences(comparisons))


def _control_of(base: Group, groups: Sequence[Group], key: str) -> Group | None:
    """Return the A/A control of a baseline, one with finished runs if there are several; None without one."""
    controls = [
        group
        for group in groups
        if group.value == control_value(base.value) and not uncontrolled_settings(base, group, key)
    ]
    return min(controls, key=lambda control: not control.outcomes.finished, default=None)


def without_unresolved_differences(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons without a difference in quality where the baseline differs from itself.

    If the chaos control of a baseline differs from it, the runs do not resolve such differences.
    """
    unresolved = [
        comparison
        for comparison in comparisons
        if is_chaos_control(comparison.group) and is_unresolved(comparison.estimates.get(QUALITY))
    ]
    bases = [comparison.baseline for comparison in unresolved]
    resolved = []
    for comparison in comparisons:
        if comparison.baseline in bases and not comparison.is_control:
            comparison = replace(comparison, unresolved_reason=NOT_RESOLVED)
        resolved.append(comparison)
    return resolved


def with_spreads(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with the pooled standard deviation of one pair, for forecasts."""
    spreads = {}
    for question in (SPEED, QUALITY):
        estimates = [c.estimates[question] for c in comparisons if question in c.estimates]
        paired = [estimate for estimate in estimates if estimate.is_paired]
        pooled = pool_deviations(paired or estimates)
        if pooled is not None:
            spreads[question] = pooled
    return [replace(comparison, spreads=spreads) for comparison in comparisons]


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """Return the one baseline that differs from a group only in what is compared, or why there is none.

    Software may differ: the nearest of several baselines is taken.
    """

    def rank(base: Group) -> tuple[bool, bool, int]:
        keys = uncontrolled_settings(group, base, key)
        has_other_options = not all(name.startswith(ENVIRONMENT) for name in keys)
        return has_other_options, not base.n, len(keys)

    nearest = min(bases, key=rank)
    has_other_options, *_ = rank(nearest)
    if has_other_options:
        differences = []
        for name in uncontrolled_settings(group, nearest, key):
            if not name.startswith(ENVIRONMENT):
                own = group.settings.get(name, NOT_SET)
                other = nearest.settings.get(name, NOT_SET)
                differences.append(f"{name} ({own} and {other})")
        names = f"{group.display_name} and {nearest.display_name}"
        return None, f"{names} also differ in {some(differences, MAX_KEYS)}"
    candidates = [base for base in bases if rank(base) == rank(nearest)]
    if len(candidates) == 1:
        return nearest, ""
    varied = listed(differing_keys([base.settings for base in candidates])[:MAX_KEYS])
    names = listed(base.display_name for base in candidates)
    return None, f"{names} are equally good baselines, but differ in {varied}"


def uncontrolled_settings(group: Group, base: Group, key: str) -> list[str]:
    """Return the settings that differ between two groups and are not what is compared."""
    keys = differing_keys([group.settings, base.settings])
    dependent = dependent_prefixes(key)
    # The backend `tf32` sets this switch, so the switch is no other difference.
    if key == BACKEND and TF32 in (group.settings.get(key), base.settings.get(key)):
        dependent = (*dependent, "tf32", "environment.tf32")
    # Recorder(backend=args.mode): the recorded backend is the compared setting under another name.
    if all(repeated_value(one.value) == one.settings.get(BACKEND) for one in (group, base)):
        dependent = (*dependent, *dependent_prefixes(ARM))
    return [name for name in keys if name != key and not name.startswith(dependent)]


def compare(
    group: Group,
    base: Group,
    levels: Levels,
    control: Group | None,
    uncontrolled_differences: Sequence[str],
    bench: BenchResults | None,
) -> Comparison:
    """Compare a group with a baseline.

    Speed, memory and energy are compared on one device only. Times and energy count only for runs that had
    the machine to themselves.

    Args:
        base: The baseline.
        levels: Level of each interval by question, 0..1.
        control: The A/A control of the baseline, None without one.
        uncontrolled_differences: Settings that differ besides the compared key.
        bench: Speeds of a benchmark, None without one.
    """
    no_claim_reason = _no_quality_claim_reason(group, base)
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
        no_claim_reason=no_claim_reason,
        degenerate_reason="" if no_claim_reason else explain_degenerate(group),
        is_missing_in_bench=is_missing_in_bench(group, base, bench),
        seed_correlation=seed_correlation(group.sample(SCORE), base.sample(SCORE)),
    )


def _no_quality_claim_reason(group: Group, base: Group) -> str:
    """Return why nothing can be claimed about quality, whatever the values are; "" otherwise."""
    failures = [
        f"{side.outcomes.failed} of {side.outcomes.ended} {side.display_name} runs failed"
        for side in (group, base)
        if side.outcomes.failed
    ]
    if failures:
        return listed(failures)
    degenerate = explain_degenerate(base)
    if degenerate:
        return f"{base.display_name} is {degenerate}"
    placeholder = explain_placeholder(group)
    if placeholder:
        return f"{group.display_name} is {placeholder}"
    if group.metric.is_best or has_early_stopping((base, group)):
        return ""
    return unequal_lengths((base, group))


def is_missing_in_bench(group: Group, base: Group, bench: BenchResults | None) -> bool:
    """Return whether a benchmark has the speed of the baseline but not that of the group."""
    return bench is not None and bool(bench.ratios(base, base)) and not bench.ratios(group, base)


def _estimates(group: Group, base: Group, levels: Levels, bench: BenchResults | None) -> dict[str, Estimate]:
    """Return the estimates of a group relative to a baseline, by question."""
    sides = (group, base)
    bench_ratios = bench.ratios(group, base) if bench else {}
    leaves_out_times = bool(no_native_arithmetic(sides)) or is_missing_in_bench(group, base, bench)
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
    if run_metric.is_of_seed:
        return not group.is_unfinished and not base.is_unfinished
    devices = group.devices | base.devices
    if len(devices) > 1 or "" in devices:
        return False
    if run_metric.question == MEMORY and is_memory_of_shared_process((group, base)):
        return False
    return run_metric.question != TIME or (reaches_in_all_runs(group) and reaches_in_all_runs(base))


def _estimate_from_runs(group: Group, base: Group, run_metric: RunMetric) -> Estimate | None:
    """Return the estimate of a metric of the runs; None where one of the groups has no value."""
    question = run_metric.question
    resolution = 0.0
    if question == QUALITY:
        resolution = group.metric.resolution
    elif run_metric.is_timed:
        resolution = measure_speed_resolution((group, base))
    # The runs of an A/A control are at the ends of a sweep, so they are not paired with other runs.
    is_unpaired = any(side.is_control and not is_chaos_control(side) for side in (group, base))
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


def reaches_in_all_runs(group: Group) -> bool:
    """Return whether every counted run reached the target of the training time, and after its start-up."""
    return bool(group.rows[TO_TARGET].notna().all())


def _claim(comparison: Comparison, base: Group, question: str) -> Claim:
    """Return what the interval of a question shows, or why it shows nothing."""
    estimate = comparison.estimates.get(question)
    metric = comparison.group.metric
    reason = _no_claim_reason(comparison, base, COMPARED_METRICS[question])
    if estimate is None or reason:
        return Claim(question, estimate, (), reason)
    if not estimate.has_interval:
        sides = (comparison.group, base)
        reason = too_few_values(sides, COMPARED_METRICS[question], estimate.n)
        if isinstance(estimate, BenchEstimate):
            reason = f"{estimate.basis} gave no confidence interval"
        return Claim(question, estimate, (), reason, is_open=True)
    if question == QUALITY:
        return claim_quality(estimate, metric, comparison.degenerate_reason, comparison.unresolved_reason)
    control = comparison.relative_to_control.get(question)
    return claim_ratio(question, estimate, metric, comparison.has_control, control)


def _no_claim_reason(comparison: Comparison, base: Group, run_metric: RunMetric) -> str:
    """Return why nothing can be claimed about a question with any number of runs, "" otherwise."""
    question = run_metric.question
    estimate = comparison.estimates.get(question)
    if estimate is None:
        return _no_estimate_reason(comparison, base, run_metric)
    sides = (comparison.group, base)
    is_bench = isinstance(estimate, BenchEstimate)
    if not is_bench and has_too_few_processes(sides, run_metric):
        return too_few_values(sides, run_metric, estimate.n)
    is_constant = estimate.n >= MIN_RUNS and not estimate.has_interval and not is_bench
    if question == SPEED and is_constant:
        return "the throughput is the same in all runs and its resolution is unknown"
    if question != QUALITY:
        return ""
    if comparison.no_claim_reason:
        return comparison.no_claim_reason
    if is_constant:
        return f"{comparison.group.metric.name} is the same in all runs and its resolution is unknown"
    return "" if estimate.has_interval else comparison.degenerate_reason


def _no_estimate_reason(comparison: Comparison, base: Group, run_metric: RunMetric) -> str:
    """Return why a question has no estimate."""
    sides = (comparison.group, base)
    runs = [run for side in sides for run in side.all_rows["run"]]
    is_external = not any(run.is_own_training or run.is_recorded for run in runs)
    is_empty = all(side.sample(run_metric.column).empty for side in sides)
    if run_metric.question == SPEED and is_external and is_empty:
        return "no speed is read: name its key with --throughput KEY:per_second or --time KEY:seconds"
    devices = comparison.group.devices | base.devices
    if run_metric.question != QUALITY and "" in devices:
        unknown = "the device of some runs is not recorded" if any(devices) else "the device is not recorded"
        return f"{unknown}: if all runs had the same one, add --ignore device" if is_external else unknown
    if run_metric.question != QUALITY and len(devices) > 1:
        return "the runs used different devices"
    if run_metric.question == MEMORY and is_memory_of_shared_process(sides):
        return "the runs of a group share a process, and on a CPU its memory is that of the whole process"
    if run_metric.question == SPEED:
        not_native = no_native_arithmetic(sides)
        if not_native:
            return not_native
        if comparison.is_missing_in_bench:
            return NOT_IN_BENCH
        if any(side.n and is_machine_shared(side.rows).all() for side in sides):
            return "the runs overlapped on one GPU or CPU"
    empty = [side.display_name for side in sides if side.sample(run_metric.column).empty]
    return f"no value is recorded for {some(empty, 2)}"


def is_memory_of_shared_process(sides: Sequence[Group]) -> bool:
    """Return whether memory is that of one process on a CPU that trained several runs: no result of a run."""
    on_cpu = any(side.rows[run_table.ON_CPU].any() for side in sides)
    return on_cpu and has_too_few_processes(sides, COMPARED_METRICS[MEMORY])


def has_too_few_values(group: Group, run_metric: RunMetric) -> bool:
    """Return whether the runs of a group lack a metric, or share too few processes for an interval of it."""
    return group.sample(run_metric.column).empty or has_too_few_processes([group], run_metric)


def has_too_few_processes(sides: Sequence[Group], run_metric: RunMetric) -> bool:
    """Return whether a metric of the machine has fewer than MIN_RUNS values, as runs share a process."""
    is_counted = counts_processes(sides, run_metric)
    return is_counted and min(len(side.sample(run_metric.column)) for side in sides) < MIN_RUNS


def counts_processes(sides: Sequence[Group], run_metric: RunMetric) -> bool:
    """Return whether an estimate counts processes rather than runs, because runs of a side share one."""
    return any(side.counts_processes(run_metric.column) for side in sides)


def too_few_values(sides: Sequence[Group], run_metric: RunMetric, n: int) -> str:
    """Return that n values give no interval: runs, or processes where several runs share one."""
    if not counts_processes(sides, run_metric):
        return f"a confidence interval needs at least {MIN_RUNS} runs (n = {n})"
    if run_metric.sides:
        return (
            f"a confidence interval needs at least {MIN_RUNS} processes (n = {n}); runs that share a process "
            "are one measurement of the machine; measure speed and memory with ampcompare bench"
        )
    return (
        f"a confidence interval needs at least {MIN_RUNS} processes (n = {n}); runs that share a process are "
        "one measurement of the machine"
    )


def no_native_arithmetic(groups: Sequence[Group]) -> str:
    """Return that a CPU has no instructions for the 16-bit dtype of a run, "" if none lacks them.

    The speed of such a run says nothing about machines that have the instructions, so it is not compared. The
    reason says what the CPU did instead, as recorded: our training computes in fp32, others leave the dtype
    to PyTorch.
    """
    columns = [run_table.ON_CPU, run_table.DTYPE, run_table.ARITHMETIC]
    for group in groups:
        for on_cpu, dtype, arithmetic in group.rows[columns].itertuples(index=False):
            if not on_cpu or not dtype:
                continue
            if arithmetic == COMPUTED_IN_FP32:
                return f"this CPU computes {dtype} in fp32"
            if arithmetic == EMULATED:
                return f"this CPU has no instructions for {dtype}"
    return ""
