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
NOT_NATIVE = {
    COMPUTED_IN_FP32: "this CPU computes {} in fp32",
    EMULATED: "this CPU has no instructions for {}",
}


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
        self.is_control = self.group.is_control  # the baseline once more
        base, self.claims = self.baseline, dict[str, Claim]()
        if base and not (self.is_control or self.group.is_unfinished or base.is_unfinished):
            claimed = [question for question, metric in COMPARED_METRICS.items() if metric.sides]
            for question in claimed:
                # Forecasts are numbers of seeds, and more seeds in a process are no more measurements of it.
                is_forecast = not counts_processes((self.group, base), COMPARED_METRICS[question])
                spread = self.spreads.get(question) if is_forecast else None
                claim = _claim(self, base, question)
                self.claims[question] = with_forecast(claim, self.group.metric, spread)
        self.speedup = self.estimates[SPEED].value if SPEED in self.estimates else None
        self.shown = shown = frozenset(word for claim in self.claims.values() for word in claim.shown)
        self.is_faster = "faster" in shown and SAME_SPEED not in shown
        self.keeps_quality = bool({EQUIVALENT, NOT_WORSE, "better"} & shown)
        self.is_quality_lost = bool(self.degenerate_reason) or ("worse" in shown and EQUIVALENT not in shown)

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """The claims on speed and quality that more seeds may decide."""
        if (
            not self.claims
            and not self.is_control
            and not self.not_compared_reason
            and self.group.outcomes.running
        ):
            return (Claim(SPEED, None, (), NOT_FINISHED, is_open=True),)
        return tuple(
            claim
            for claim in self.claims.values()
            if claim.is_open and claim.question != MEMORY and not claim.is_by_benchmark
        )


def compare_all(
    groups: Sequence[Group], baseline: str, key: str, levels: Levels, bench: BenchResults | None = None
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
    bases = [g for g in groups if g.value == baseline and not g.is_control]
    comparisons = []
    for group in (g for g in groups if bases and g.value != baseline):
        base, not_compared_reason = _baseline_of(group, bases, key)
        if base is None:
            comparisons.append(Comparison(group, None, not_compared_reason))
            continue
        repeats = [
            g
            for g in groups
            if g.value == control_value(base.value) and not uncontrolled_settings(base, g, key)
        ]
        controls = [] if group.is_control else sorted(repeats, key=lambda g: not g.outcomes.finished)
        control = next(iter(controls), None)
        comparisons.append(
            compare(group, base, levels, control, uncontrolled_settings(group, base, key), bench)
        )
    return with_spreads(without_unresolved_differences(comparisons))


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
    return [
        replace(comparison, unresolved_reason=NOT_RESOLVED)
        if comparison.baseline in bases and not comparison.is_control
        else comparison
        for comparison in comparisons
    ]


def with_spreads(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with the pooled standard deviation of one pair, for forecasts."""
    spreads = {}
    for question in (SPEED, QUALITY):
        estimates = [c.estimates[question] for c in comparisons if question in c.estimates]
        paired = [estimate for estimate in estimates if estimate.is_paired]
        if pooled := pool_deviations(paired or estimates):
            spreads[question] = pooled
    return [replace(comparison, spreads=spreads) for comparison in comparisons]


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """Return the one baseline that differs from a group only in what is compared, or why there is none.

    Software may differ: the nearest of several baselines is taken.
    """

    def rank(base: Group) -> tuple[bool, bool, int]:
        keys = uncontrolled_settings(group, base, key)
        return not all(k.startswith(ENVIRONMENT) for k in keys), not base.n, len(keys)

    nearest = min(bases, key=rank)
    if rank(nearest)[0]:
        options = [k for k in uncontrolled_settings(group, nearest, key) if not k.startswith(ENVIRONMENT)]
        settings, base_settings = group.settings, nearest.settings
        pairs = [(k, settings.get(k, NOT_SET), base_settings.get(k, NOT_SET)) for k in options]
        differences = [f"{key} ({own} and {other})" for key, own, other in pairs]
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
    # The backend `tf32` sets this switch, so the switch is no other difference.
    is_tf32 = key == BACKEND and TF32 in (group.settings.get(key), base.settings.get(key))
    dependent = (*dependent_prefixes(key), *(("tf32", "environment.tf32") if is_tf32 else ()))
    return [k for k in keys if k != key and not k.startswith(dependent)]


def compare(
    group: Group,
    base: Group,
    levels: Levels,
    control: Group | None = None,
    uncontrolled_differences: Sequence[str] = (),
    bench: BenchResults | None = None,
) -> Comparison:
    """Compare a group with a baseline.

    Speed, memory and energy are compared on one device only. Times and energy count only for runs that had
    the machine to themselves.

    Args:
        base: The baseline.
        levels: Level of each interval by question, 0..1.
        control: The A/A control of the baseline.
        uncontrolled_differences: Settings that differ besides the compared key.
        bench: Speeds of a benchmark.
    """
    sides = [(g.display_name, g.outcomes) for g in (group, base)]
    no_claim_reason = listed(f"{o.failed} of {o.ended} {label} runs failed" for label, o in sides if o.failed)
    if not no_claim_reason and (reason := explain_degenerate(base)):
        no_claim_reason = f"{base.display_name} is {reason}"
    if not no_claim_reason and (reason := explain_placeholder(group)):
        no_claim_reason = f"{group.display_name} is {reason}"
    if not no_claim_reason and not group.metric.is_best and not has_early_stopping((base, group)):
        no_claim_reason = unequal_lengths((base, group))
    relative_to_control = {}
    if control and control.outcomes.finished:
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


def is_missing_in_bench(group: Group, base: Group, bench: BenchResults | None) -> bool:
    """Return whether a benchmark has the speed of the baseline but not that of the group."""
    return bench is not None and bool(bench.ratios(base, base)) and not bench.ratios(group, base)


def _estimates(group: Group, base: Group, levels: Levels, bench: BenchResults | None) -> dict[str, Estimate]:
    """Return the estimates of a group relative to a baseline, by question."""
    bench_ratios = bench.ratios(group, base) if bench else {}
    is_one_device = len(group.devices | base.devices) <= 1 and "" not in group.devices | base.devices
    # The runs of an A/A control are at the ends of a sweep, so they are not paired with other runs.
    is_apart = any(side.is_control and not is_chaos_control(side) for side in (group, base))
    paired_by = "" if is_apart else "seed"
    estimates = {}
    is_slow, is_missing = no_native_arithmetic((group, base)), is_missing_in_bench(group, base, bench)
    for question, run_metric in COMPARED_METRICS.items():
        if (is_slow or is_missing) and question in TIMED:
            continue
        values, base_values = group.sample(run_metric.column), base.sample(run_metric.column)
        is_scarce = base_values.empty or has_too_few_processes((group, base), run_metric)
        if question in bench_ratios and (question == SPEED or is_scarce):
            estimates[question] = bench_ratios[question]
            continue
        # Quality needs finished runs. Metrics of the machine need one device.
        if (group.is_unfinished or base.is_unfinished) if run_metric.is_of_seed else not is_one_device:
            continue
        if question == TIME and not (reaches_in_all_runs(group) and reaches_in_all_runs(base)):
            continue  # the runs that missed the target would be left out
        floor = 0.0
        if question == QUALITY:
            floor = group.metric.resolution
        elif run_metric.is_timed:
            floor = measure_speed_resolution((group, base))
        estimate = estimate_difference(
            values, base_values, log=run_metric.is_ratio, paired_by=paired_by, resolution=floor
        )
        if estimate is None:
            continue
        # Seeds, or speeds, that agree are no evidence of a spread of zero.
        if question in (QUALITY, SPEED) and not estimate.error:
            estimate = replace(estimate, error=None)
        if question == QUALITY and group.metric.is_percentage:
            estimate = replace(estimate, bounds=(-100.0, 100.0))
        estimates[question] = replace(estimate, level=levels[question])
    return estimates


def reaches_in_all_runs(group: Group) -> bool:
    """Return whether every counted run reached the target of the training time."""
    return bool(group.rows[TO_TARGET].notna().all())


def _claim(comparison: Comparison, base: Group, question: str) -> Claim:
    """Return what the interval of a question shows, or why it shows nothing."""
    estimate, metric = comparison.estimates.get(question), comparison.group.metric
    why = _no_claim_reason(comparison, base, COMPARED_METRICS[question])
    if estimate is None or why:
        return Claim(question, estimate, (), why)
    if not estimate.has_interval:
        why = too_few_values((comparison.group, base), COMPARED_METRICS[question], estimate.n)
        if isinstance(estimate, BenchEstimate):
            why = f"{estimate.basis} gave no confidence interval"
        return Claim(question, estimate, (), why, is_open=True)
    if question == QUALITY:
        return claim_quality(estimate, metric, comparison.degenerate_reason, comparison.unresolved_reason)
    control = comparison.relative_to_control.get(question)
    return claim_ratio(question, estimate, metric, comparison.has_control, control)


def _no_claim_reason(comparison: Comparison, base: Group, run_metric: RunMetric) -> str:
    """Return why nothing can be claimed about a question with any number of runs, "" otherwise."""
    question, sides = run_metric.question, (comparison.group, base)
    estimate = comparison.estimates.get(question)
    is_bench = isinstance(estimate, BenchEstimate)
    if estimate is None:
        if question != QUALITY and len(comparison.group.devices | base.devices) > 1:
            return "the runs used different devices"
        if question != QUALITY and "" in comparison.group.devices | base.devices:
            return "the device is not recorded"
        if question == SPEED and (why := no_native_arithmetic(sides)):
            return why
        if question == SPEED and comparison.is_missing_in_bench:
            return NOT_IN_BENCH
        if question == SPEED and any(side.n and is_machine_shared(side.rows).all() for side in sides):
            return "the runs overlapped on one GPU or CPU"
        empty = [side.display_name for side in sides if side.sample(run_metric.column).empty]
        return f"no value is recorded for {some(empty, 2)}"
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
    for group in groups:
        for on_cpu, dtype, arithmetic in group.rows[
            [run_table.ON_CPU, run_table.DTYPE, run_table.ARITHMETIC]
        ].itertuples(index=False):
            if on_cpu and dtype and arithmetic in NOT_NATIVE:
                return NOT_NATIVE[arithmetic].format(dtype)
    return ""
