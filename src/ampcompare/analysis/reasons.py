"""Why a question about a group and its baseline has no answer, whatever its interval would show.

`CHECKS` has every such reason, in the order in which they count. Cells, gates, the recommendation and the
headline show the reason of a claim; none of them looks for one. What an interval does not show has its reason
in `claims`.
"""

from collections.abc import Callable, Sequence

from ampcompare.analysis import phrases
from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.claims import Reason
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, MEMORY, QUALITY, SPEED, RunMetric
from ampcompare.analysis.grouping.run_table import is_machine_shared
from ampcompare.analysis.grouping.training_length import has_early_stopping, unequal_lengths
from ampcompare.analysis.grouping.validity_checks import (
    explain_chance,
    explain_constant,
    explain_placeholder,
)
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.metrics import COMPUTED_IN_FP32, EMULATED
from ampcompare.runtime.formatting import listed, some

NOT_IN_BENCH = Reason("the benchmark has no matching arm")
UNRESOLVED = Reason("the baseline with changed last bits differs from the baseline, too")
Check = Callable[[Comparison, RunMetric], Reason | None]


def find_reason(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    """Return the first reason why nothing can be claimed; None if the interval decides.

    Args:
        comparison: The estimates of a group that has a baseline.
        run_metric: What is asked about.
    """
    checks = CHECKS if run_metric.question in comparison.estimates else CHECKS_WITHOUT_ESTIMATE
    reasons = (check(comparison, run_metric) for check in checks[run_metric.question])
    return next((reason for reason in reasons if reason), None)


def _no_speed_is_read(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    is_empty = all(side.sample(run_metric.column).empty for side in comparison.sides)
    if not is_empty or not _is_external(comparison):
        return None
    text = "no speed is read: name its key with --throughput KEY:per_second or --time KEY:seconds:each"
    return Reason(text)


def _is_external(comparison: Comparison) -> bool:
    """Return whether other programs trained all of the runs."""
    runs = [run for side in comparison.sides for run in side.all_rows["run"]]
    return not any(run.is_own_training or run.is_recorded for run in runs)


def _other_or_unknown_device(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    devices = comparison.devices
    if "" in devices:
        unknown = "the device of some runs is not recorded" if any(devices) else "the device is not recorded"
        is_external = _is_external(comparison)
        advice = ": if all runs had the same one, add --ignore device" if is_external else ""
        return Reason(f"{unknown}{advice}")
    return Reason("the runs used different devices") if len(devices) > 1 else None


def _memory_of_a_shared_process(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    if not is_memory_of_shared_process(comparison.sides):
        return None
    text = "the runs of a group share a process, and on a CPU its memory is that of the whole process"
    return Reason(text)


def _incomparable_speed(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    not_native = no_native_arithmetic(comparison.sides)
    if not_native:
        return Reason(not_native)
    if comparison.is_missing_in_bench:
        return NOT_IN_BENCH
    if any(side.n and is_machine_shared(side.rows).all() for side in comparison.sides):
        return Reason("the runs overlapped on one GPU or CPU")
    return None


def _no_value(comparison: Comparison, run_metric: RunMetric) -> Reason:
    empty = [side.display_name for side in comparison.sides if side.sample(run_metric.column).empty]
    return Reason(f"no value is recorded for {some(empty, 2)}")


def _too_few_processes(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    estimate = comparison.estimates[run_metric.question]
    if isinstance(estimate, BenchEstimate) or not has_too_few_processes(comparison.sides, run_metric):
        return None
    return Reason(too_few_values(comparison.sides, run_metric, estimate.n))


def _no_spread(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    """Return why runs that agree exactly have no interval: they show no spread."""
    estimate = comparison.estimates[run_metric.question]
    if isinstance(estimate, BenchEstimate) or estimate.n < MIN_RUNS or estimate.has_interval:
        return None
    name = "the throughput" if run_metric.question == SPEED else comparison.group.metric.name
    return Reason(f"{name} is the same in all runs and its resolution is unknown")


def _quality_that_says_nothing(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    return comparison.no_quality


def _degenerate_group(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    """With an interval, the group may be shown to be worse."""
    return None if comparison.estimates[QUALITY].has_interval else comparison.degenerate


def _no_interval(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    estimate = comparison.estimates[run_metric.question]
    if estimate.has_interval:
        return None
    if isinstance(estimate, BenchEstimate):
        return Reason(f"{estimate.basis} gave no confidence interval", may_pass=True)
    return Reason(too_few_values(comparison.sides, run_metric, estimate.n), may_pass=True)


CHECKS_WITHOUT_ESTIMATE: dict[str, tuple[Check, ...]] = {
    SPEED: (_no_speed_is_read, _other_or_unknown_device, _incomparable_speed, _no_value),
    MEMORY: (_other_or_unknown_device, _memory_of_a_shared_process, _no_value),
    QUALITY: (_no_value,),
}
CHECKS: dict[str, tuple[Check, ...]] = {
    SPEED: (_too_few_processes, _no_spread, _no_interval),
    MEMORY: (_too_few_processes, _no_interval),
    QUALITY: (_quality_that_says_nothing, _no_spread, _degenerate_group, _no_interval),
}


def explain_quality(group: Group, base: Group) -> Reason | None:
    """Return why nothing can be claimed about quality, whatever the values are; None if something can."""
    failures = [
        phrases.failed_runs(side, side.display_name) for side in (group, base) if side.outcomes.failed
    ]
    if failures:
        return Reason(listed(failures))
    degenerate = explain_degenerate(base)
    if degenerate:
        return Reason(f"{base.display_name} is {degenerate.text}")
    placeholder = explain_placeholder(group)
    if placeholder:
        return Reason(f"{group.display_name} is {placeholder}")
    if group.metric.is_best or has_early_stopping((base, group)):
        return None
    lengths = unequal_lengths((base, group))
    return Reason(lengths) if lengths else None


def explain_degenerate(group: Group) -> Reason | None:
    """Return why the metric of a group says nothing: it is at chance, a placeholder or constant; else None.

    One such run is enough: paired with another one it would look like perfect agreement.
    """
    if text := explain_chance(group):
        return Reason(text, badge="at chance")
    if text := explain_placeholder(group) or explain_constant(group):
        return Reason(text, badge="never changed")
    return None


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
