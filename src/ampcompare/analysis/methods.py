"""Says how a comparison was made: below the headline, in the caption of the table, and in the methods."""

from collections.abc import Iterator, Sequence

from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.claims import SAME_SPEED, SPEED_MARGIN
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import ENERGY, MEMORY, QUALITY, SPEED, TIME
from ampcompare.analysis.grouping.training_recipe import describe_recipe
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.sweep_plan import describe_plan
from ampcompare.runtime import formatting

QUESTION_NAMES = {SPEED: "speed", MEMORY: "memory", ENERGY: "energy", TIME: "time"}


def write_basis(findings: Findings) -> str:
    """Return setting, sample size, recipe, machine and margin or plan, in one line."""
    margin = f"margin {findings.metric.tolerance}" if findings.metric.margin is not None else ""
    parts = [
        f"{findings.setting.text}, {_describe_size(findings.groups)} each",
        describe_recipe(findings.recipe),
        findings.setting.machine,
        describe_plan(findings.plan, findings.metric) or margin,
    ]
    return " · ".join(part for part in parts if part)


def _describe_size(groups: Sequence[Group]) -> str:
    """Return the number of seeds per group, or of runs where a group has no seed: `3 to 5 seeds`."""
    counted = [group for group in groups if group.n and not group.is_control]
    counts = sorted({group.seeds for group in counted})
    noun = "seed"
    if not counts or counts[0] == 0:
        counts = sorted({group.n for group in counted}) or [0]
        noun = "run"
    plural = "" if counts == [1] else "s"
    return f"{formatting.count_range(counts[0], counts[-1])} {noun}{plural}"


def write_caption(findings: Findings) -> str:
    """Return in one sentence what the intervals of the table are, and which of them come from a benchmark."""
    claimed = [c for c in findings.comparisons if c.claims]
    estimates = _with_interval(claimed) or _with_interval(findings.comparisons)
    bench = findings.bench
    is_shown = findings.has_bench_speed and any(SPEED in c.estimates for c in findings.comparisons)
    source = f"; {bench.caption}" if bench and is_shown else ""
    if not estimates:
        return (
            f"A confidence interval needs at least {MIN_RUNS} runs per group: the ranges go from the lowest "
            f"to the highest run{source}."
        )
    level = formatting.level(findings.level)
    if others := _other_levels(findings):
        names = formatting.listed(QUESTION_NAMES[question] for question in others)
        level = f"{level} ({findings.metric.noun}) or {formatting.level(max(others.values()))} ({names})"
    return f"CI: {level} confidence interval, {_describe_pairing(estimates)}{source}."


def _other_levels(findings: Findings) -> dict[str, float]:
    """Return the questions whose intervals have another level than those of quality, with that level.

    Groups with identical quality count once there, and each by itself in every other question. The speed of a
    benchmark has a level of its own, and no time is shown beside it.
    """
    compared = {question for c in findings.comparisons for question in c.estimates}
    if findings.has_bench_speed:
        compared -= {SPEED, TIME}
    return {
        question: level
        for question, level in findings.levels.items()
        if question in compared and level != findings.level
    }


def write_methods(findings: Findings) -> list[str]:
    """Return how the intervals were made and what counts as a difference, a sentence each."""
    claimed = [c for c in findings.comparisons if c.claims]
    sentences: list[str] = []
    if _with_interval(claimed):
        sentences = [*_describe_levels(findings), *_describe_directions(findings.metric, claimed)]
    if findings.bench and findings.has_bench_speed:
        sentences.append(findings.bench.text)
    return sentences


def _with_interval(comparisons: Sequence[Comparison]) -> list[Estimate]:
    """Return the estimates with an interval over runs, not over the rounds of a benchmark."""
    estimates = [estimate for c in comparisons for estimate in c.estimates.values()]
    return [e for e in estimates if e.has_interval and not isinstance(e, BenchEstimate)]


def _describe_pairing(estimates: Sequence[Estimate]) -> str:
    pairing = {estimate.is_paired for estimate in estimates}
    if len(pairing) > 1:
        return "paired where seeds are shared"
    return "paired by seed" if True in pairing else "not paired"


def _describe_levels(findings: Findings) -> Iterator[str]:
    """Yield for what the level of the intervals is corrected, and which questions have another one."""
    count = sum(g.value != findings.baseline_value and not g.is_control for g in findings.groups)
    looks = len(findings.plan.looks)
    numbers = []
    if count > 1:
        numbers.append(formatting.plural(count, "comparison"))
    if looks > 1:
        numbers.append(formatting.plural(looks, "planned look"))
    seeds = findings.ended_seeds
    is_planned = not findings.plan.looks or seeds in findings.plan.looks
    if numbers and is_planned and findings.plan.spent_until(seeds) <= 1 + 1e-9:
        yield (
            f"The level is corrected for {formatting.listed(numbers)}, so that together the intervals of "
            f"each column have {formatting.level(1 - ALPHA)} confidence."
        )
    if _other_levels(findings):
        yield f"Groups with identical {findings.metric.noun} count as one comparison of it."


def _describe_directions(metric: ComparedMetric, claimed: Sequence[Comparison]) -> Iterator[str]:
    """Yield for each compared question which direction is which."""
    questions = {question for comparison in claimed for question in comparison.estimates}
    if SPEED in questions:
        is_same = any(c.claims[SPEED].finding in SAME_SPEED for c in claimed)
        within = f" Within {100 * SPEED_MARGIN:g}% it counts as the same." if is_same else ""
        yield f"Throughput: above 1× is faster.{within}"
    if MEMORY in questions:
        yield "Memory: below 0% is less."
    if QUALITY in questions and metric.margin is not None:
        yield f"{metric.noun_title}: a difference within ±{metric.tolerance} counts as the same."
