"""Why a question about a group and its baseline has no answer, whatever its interval would show.

`find_reason` has every such reason, in the order in which they count. Cells, gates, the recommendation and
the headline show the reason of a claim; none of them looks for one. What an interval does not show has its
reason in `claims`.
"""

from collections.abc import Sequence

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


def find_reason(comparison: Comparison, run_metric: RunMetric) -> Reason | None:
    """Return the first reason why nothing can be claimed; None if the interval decides.

    Args:
        comparison: The estimates of a group that has a baseline.
        run_metric: What is asked about.
    """
    estimate = comparison.estimates.get(run_metric.question)
    if estimate is None:
        return _why_not_estimated(comparison, run_metric)
    if run_metric.question == QUALITY and comparison.no_quality:
        return comparison.no_quality
    is_of_runs = not isinstance(estimate, BenchEstimate)
    if is_of_runs and has_too_few_processes(comparison.sides, run_metric):
        return Reason(too_few_values(comparison.sides, run_metric, estimate.n))
    if estimate.has_interval:  # at chance, the group may be shown to be worse
        return None
    # Runs that agree exactly show no spread.
    if is_of_runs and estimate.n >= MIN_RUNS and run_metric.question != MEMORY:
        name = "the throughput" if run_metric.question == SPEED else comparison.group.metric.name
        return Reason(f"{name} is the same in all runs and its resolution is unknown")
    if run_metric.question == QUALITY and comparison.degenerate:
        return comparison.degenerate
    if isinstance(estimate, BenchEstimate):
        return Reason(f"{estimate.basis} gave no confidence interval", may_pass=True)
    return Reason(too_few_values(comparison.sides, run_metric, estimate.n), may_pass=True)


def _why_not_estimated(comparison: Comparison, run_metric: RunMetric) -> Reason:
    """Return the first reason why there is no estimate."""
    sides = comparison.sides
    question = run_metric.question
    empty = [side.display_name for side in sides if side.sample(run_metric.column).empty]
    if question == SPEED and len(empty) == len(sides) and _is_external(comparison):
        text = "no speed is read: name its key with --throughput KEY:per_second or --time KEY:seconds:each"
        return Reason(text)
    if question != QUALITY and (devices := _other_or_unknown_device(comparison)):
        return Reason(devices)
    if question == MEMORY and is_memory_of_shared_process(sides):
        text = "the runs of a group share a process, and on a CPU its memory is that of the whole process"
        return Reason(text)
    if question == SPEED:
        not_native = no_native_arithmetic(sides)
        if not_native:
            return Reason(not_native)
        if comparison.is_missing_in_bench:
            return NOT_IN_BENCH
        if any(side.n and is_machine_shared(side.rows).all() for side in sides):
            return Reason("the runs overlapped on one GPU or CPU")
    return Reason(f"no value is recorded for {some(empty, 2)}")


def _is_external(comparison: Comparison) -> bool:
    """Return whether other programs trained all of the runs."""
    runs = [run for side in comparison.sides for run in side.all_rows["run"]]
    return not any(run.is_own_training or run.is_recorded for run in runs)


def _other_or_unknown_device(comparison: Comparison) -> str:
    """Return why the machine of the runs may differ, "" if they had one known device."""
    devices = comparison.devices
    if "" not in devices:
        return "the runs used different devices" if len(devices) > 1 else ""
    unknown = "the device of some runs is not recorded" if any(devices) else "the device is not recorded"
    advice = ": if all runs had the same one, add --ignore device" if _is_external(comparison) else ""
    return f"{unknown}{advice}"


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
    advice = "; measure speed and memory with ampcompare bench" if run_metric.sides else ""
    return (
        f"a confidence interval needs at least {MIN_RUNS} processes (n = {n}); runs that share a process are "
        f"one measurement of the machine{advice}"
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
