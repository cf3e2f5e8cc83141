"""The findings in words: headline, badges, and the lines above and below the table.

The headline and the badges answer accuracy, then speed. Each answer is what is shown, or that nothing is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampcompare.analysis import phrases
from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.claims import (
    INCONCLUSIVE,
    NO_VERDICT,
    NOT_COMPARED,
    SAME_SPEED,
    SPEED_MARGIN,
    WITHIN_MARGIN,
    Claim,
    Finding,
    largest_loss,
)
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import BACKEND, Group
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, ENERGY, MEMORY, QUALITY, SPEED, TIME
from ampcompare.analysis.grouping.training_recipe import describe_recipe
from ampcompare.analysis.reasons import NOT_FINISHED, explain_degenerate
from ampcompare.analysis.scale import RATIO
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.sweep_plan import describe_plan
from ampcompare.runs.loader import ARM
from ampcompare.runtime import formatting

GOOD, BAD, OPEN, BASE = "good", "bad", "open", "base"  # tones of a part of a badge
NOT_SHOWN = (INCONCLUSIVE, NO_VERDICT)
QUESTION_NAMES = {SPEED: "speed", MEMORY: "memory", ENERGY: "energy", TIME: "time"}
MAX_LABEL_CHARS = 40  # in the headline


@dataclass(frozen=True)
class BadgePart:
    """One answer in the badge of a group: `same accuracy`, `faster`, `2 of 5 failed`.

    Attributes:
        text: The answer in a few words.
        tone: GOOD or BAD for what is decided, OPEN for what is not, BASE for what is no answer.
    """

    text: str
    tone: str


def write_badge(comparison: Comparison) -> list[BadgePart]:
    """Return the answers for one group: accuracy first, then speed."""
    if comparison.not_compared_reason:
        return [BadgePart(NOT_COMPARED, OPEN)]
    if comparison.is_control:
        return [BadgePart("control", BASE)]
    outcomes = comparison.group.outcomes
    if outcomes.failed:
        return [BadgePart(f"{outcomes.failed} of {outcomes.ended} failed", BAD)]
    if not comparison.claims:
        return [BadgePart(NOT_FINISHED.text, OPEN)]
    estimates = [comparison.claims[question].estimate for question in (QUALITY, SPEED)]
    known = [estimate for estimate in estimates if estimate is not None]
    if known and comparison.degenerate is None and not any(estimate.has_interval for estimate in known):
        return [BadgePart(INCONCLUSIVE, OPEN)]
    parts = [
        BadgePart(_brief_quality(comparison), _quality_tone(comparison)),
        BadgePart(_brief_speed(comparison.claims[SPEED]), _speed_tone(comparison.claims[SPEED])),
    ]
    return [part for part in parts if part.text]


def _quality_tone(comparison: Comparison) -> str:
    if comparison.is_quality_lost:
        return BAD
    return GOOD if comparison.keeps_quality else OPEN


def _speed_tone(claim: Claim) -> str:
    if claim.finding is Finding.NOTHING:
        return OPEN
    return BAD if claim.finding is Finding.SLOWER else GOOD


def _brief_speed(claim: Claim) -> str:
    """Return `faster`, `slower` or `as fast`; an inconclusive speed only if more runs may decide it."""
    if claim.estimate is None:
        return ""
    if claim.finding in SAME_SPEED:
        return "as fast"
    if claim.shown:
        return claim.shown[0]
    return f"speed {INCONCLUSIVE}" if claim.is_open else ""


def _brief_quality(comparison: Comparison) -> str:
    """Return `same accuracy`, `accuracy not lower`, `accuracy 1.20 lower`, or that it is inconclusive."""
    metric = comparison.group.metric
    claim = comparison.claims[QUALITY]
    if claim.estimate is None:
        return ""
    degenerate = _describe_degenerate(comparison)
    if degenerate:
        return f"{metric.noun} {degenerate}"
    if claim.answer in NOT_SHOWN:
        return f"{metric.noun} {INCONCLUSIVE}"
    if claim.finding is Finding.EQUIVALENT:
        return f"same {metric.noun}"
    if claim.finding is Finding.NOT_WORSE:
        return f"{metric.noun} not {phrases.worse(metric)}"
    difference = (
        f"{phrases.size(claim.estimate.value, claim.estimate, metric)} {phrases.side(claim.estimate)}"
    )
    if claim.finding in WITHIN_MARGIN:
        return f"same within {metric.margin or 0:g}, {difference}"
    return f"{metric.noun} {difference}"


def _describe_degenerate(comparison: Comparison) -> str:
    """Return `at chance` or `never changed` where the metric of the group says nothing, else ""."""
    if comparison.degenerate is None or comparison.claims[QUALITY].shown:
        return ""
    return comparison.degenerate.badge


def _at_most(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the largest loss that the interval allows: `at most 0.48`; "" without an interval or a loss."""
    loss = largest_loss(estimate, metric)
    if loss is None or loss <= 0:
        return ""
    return f"at most {phrases.size(loss, estimate, metric)}"


@dataclass(frozen=True)
class Answer:
    """The answer for one group to one question of the headline.

    Attributes:
        name: The name of the group.
        text: What is shown, or a word that nothing is. Groups with the same text share a clause.
        is_shown: Whether something is shown.
        detail: The estimate, where nothing is shown; "" without one.
    """

    name: str
    text: str
    is_shown: bool = True
    detail: str = ""


def write_headline(findings: Findings) -> list[str]:
    """Return the answer for each arm: accuracy, then speed, then which runs failed or have not ended.

    For example `Accuracy: native and apex_o1 the same within 0.5 points; inconclusive for fp16 (−0.20 points;
    at most 2.93 lower).`, `Speed: native 1.90× as fast; not compared for apex_o1 and fp16.`
    """
    comparisons = [c for c in findings.comparisons if not c.is_control]
    bases = [g for g in findings.groups if g.value == findings.baseline_value and not g.is_control]
    compared = [c for c in comparisons if not c.not_compared_reason]
    if not bases:
        return [f"No run of the baseline {_shorten(findings.baseline_name)} to compare with"]
    if not comparisons:
        count = sum(not group.is_control for group in findings.groups)
        if count > 1:
            value = _shorten(findings.baseline_name)
            return [f"All {count} groups are of {value}: compare them by another setting with --group-by KEY"]
        return [f"All runs are of {_shorten(bases[0].display_name)}: there is nothing to compare"]
    if all(base.is_unfinished or not base.n for base in bases):
        name = _shorten(findings.baseline_name)
        return [f"The baseline {name} has no finished run: {bases[0].outcomes.text}"]
    if not compared:
        return ["Nothing is compared: every group differs from the baseline in other settings, too"]
    claimed = [c for c in compared if c.claims]
    sentences = [
        _answer_quality(claimed, findings),
        _answer_speed(claimed, findings),
        *_describe_failures([*bases, *(c.group for c in comparisons)]),
        *_describe_unfinished(compared),
        _describe_not_compared(comparisons),
    ]
    answers = [f"{sentence}." for sentence in sentences if sentence]
    return answers or [f"No {findings.metric.noun} and no speed is recorded"]


def _answer_quality(claimed: Sequence[Comparison], findings: Findings) -> str:
    """Return what is shown of the quality of each arm; "" if no arm has a value."""
    if all(c.claims[QUALITY].estimate is None for c in claimed):
        return ""
    metric = findings.metric
    title = formatting.capital(metric.noun) if metric.is_titled else metric.noun
    degenerate = [explain_degenerate(c.baseline) if c.baseline is not None else None for c in claimed]
    if degenerate[0] is not None and all(degenerate):
        base = claimed[0].baseline
        assert base is not None
        return f"{title}: no verdict, because {_shorten(base.display_name)} is {degenerate[0].text}"
    return f"{title}: {_join_answers([_quality_answer(c, findings) for c in claimed])}"


def _quality_answer(comparison: Comparison, findings: Findings) -> Answer:
    metric = comparison.group.metric
    claim = comparison.claims[QUALITY]
    name = _arm_name(comparison, findings)
    degenerate = _describe_degenerate(comparison)
    if claim.estimate is None:
        return Answer(name, NOT_COMPARED, is_shown=False)
    if degenerate:
        return Answer(name, degenerate)
    if claim.answer in NOT_SHOWN:
        detail = "" if comparison.no_quality else _open_quality(claim.estimate, metric)
        return Answer(name, claim.answer, is_shown=False, detail=detail)
    if claim.finding is Finding.EQUIVALENT:
        return Answer(name, f"the same within {metric.tolerance}")
    if claim.finding is Finding.NOT_WORSE:
        return Answer(name, phrases.not_worse(metric))
    return Answer(name, _describe_difference(claim, claim.estimate, metric))


def _describe_difference(claim: Claim, estimate: Estimate, metric: ComparedMetric) -> str:
    """Return what is shown: `0.31 points lower, by at most 0.48`, and whether the margin allows it."""
    size = metric.with_unit(phrases.size(estimate.value, estimate, metric))
    is_worse = claim.finding in (Finding.WORSE, Finding.WORSE_WITHIN)
    at_most = _at_most(estimate, metric) if is_worse else ""
    by_at_most = f", by {at_most}" if at_most else ""
    within = f", within the margin of {metric.margin:g}" if claim.finding in WITHIN_MARGIN else ""
    return f"{size} {phrases.side(estimate)}{by_at_most}{within}"


def _open_quality(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the difference and the largest loss, `−0.14 points; at most 0.48 lower`; else `n = 2`."""
    if not estimate.has_interval:
        return f"n = {estimate.n}"
    at_most = _at_most(estimate, metric)
    difference = phrases.difference(estimate, metric)
    return f"{difference}; {at_most} {phrases.worse(metric)}" if at_most else difference


def _answer_speed(claimed: Sequence[Comparison], findings: Findings) -> str:
    """Return what is shown of the speed of each arm; "" if no speed is recorded."""
    groups = [side for c in claimed for side in (c.group, c.baseline) if side is not None]
    is_recorded = any(COMPARED_METRICS[SPEED].column in group.estimates for group in groups)
    if not is_recorded and all(c.claims[SPEED].estimate is None for c in claimed):
        return ""
    return f"Speed: {_join_answers([_speed_answer(c, findings) for c in claimed])}"


def _speed_answer(comparison: Comparison, findings: Findings) -> Answer:
    claim = comparison.claims[SPEED]
    name = _arm_name(comparison, findings)
    if claim.estimate is None:
        return Answer(name, NOT_COMPARED, is_shown=False)
    if claim.finding in SAME_SPEED:
        return Answer(name, f"the same within {100 * SPEED_MARGIN:g}%")
    if claim.shown:
        return Answer(name, f"{formatting.ratio(claim.estimate.value)} as fast")
    detail = _ratio_between(claim.estimate) if claim.estimate.has_interval else ""
    if detail and claim.no_side_reason:
        detail = f"{detail}; {claim.no_side_reason.text}"
    return Answer(name, claim.answer, is_shown=False, detail=detail)


def _ratio_between(estimate: Estimate) -> str:
    """Return `1.05×, CI 0.98 to 1.15`, with enough digits to tell the ends from 1."""
    return f"{RATIO.value(estimate)}, CI {RATIO.interval(estimate)}"


def _join_answers(answers: Sequence[Answer]) -> str:
    """Return a clause for each text, with all groups of which it is true; what is shown comes first.

    For example `native and apex_o1 the same within 0.5 points; inconclusive for fp16 (n = 2)`.
    """
    shown: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for answer in answers:
        names_by_text = shown if answer.is_shown else others
        name = f"{answer.name} ({answer.detail})" if answer.detail else answer.name
        names_by_text.setdefault(answer.text, []).append(name)
    clauses = [f"{formatting.listed(names)} {text}" for text, names in shown.items()]
    clauses += [f"{text} for {formatting.listed(names)}" for text, names in others.items()]
    return "; ".join(clauses)


def _describe_failures(groups: Sequence[Group]) -> Iterator[str]:
    """Yield which runs failed: `2 of 5 runs of fp16 failed`."""
    for group in groups:
        if group.outcomes.failed:
            yield phrases.failed_runs(group, _shorten(group.display_name))


def _describe_unfinished(compared: Sequence[Comparison]) -> Iterator[str]:
    """Yield which arms have no finished run, unless all of their runs failed."""
    for comparison in compared:
        group = comparison.group
        if not comparison.claims and not group.outcomes.failed:
            yield phrases.not_finished(group, _shorten(group.display_name))


def _describe_not_compared(comparisons: Sequence[Comparison]) -> str:
    names = [_shorten(c.group.display_name) for c in comparisons if c.not_compared_reason]
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{formatting.listed(names)} {verb} not compared"


def _arm_name(comparison: Comparison, findings: Findings) -> str:
    """Return the name of an arm, with the compared key where the name alone says nothing."""
    name = _shorten(comparison.group.display_name)
    if findings.keys[0] in (BACKEND, ARM):
        return name
    return f"{findings.keys[0].rpartition('.')[2]} {name}"


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
    if counts == [1]:
        return f"1 {noun}"
    return f"{formatting.count_range(counts[0], counts[-1])} {noun}s"


def write_caption(findings: Findings) -> str:
    """Return in one sentence what the intervals of the table are, and which of them come from a benchmark."""
    estimates = _estimates_of_runs(findings) or _with_interval(findings.comparisons)
    bench = findings.bench
    is_shown = findings.has_bench_speed and any(SPEED in c.estimates for c in findings.comparisons)
    source = f"; {bench.caption}" if bench and is_shown else ""
    if not estimates:
        return (
            f"A confidence interval needs at least {MIN_RUNS} runs per group: the ranges go from the lowest "
            f"to the highest run{source}."
        )
    level = formatting.level(findings.level)
    others = _other_levels(findings)
    if others:
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
    claimed = [c for c in findings.comparisons if not c.is_control and c.claims]
    sentences: list[str] = []
    if _estimates_of_runs(findings):
        sentences += _describe_levels(findings)
        sentences += _describe_directions(findings.metric, claimed)
    elif any(group.shares_processes for group in findings.groups):
        sentences.append(
            f"Speed, memory, energy and time need at least {MIN_RUNS} processes per group, because runs "
            "that share a process are one measurement of the machine."
        )
    if findings.bench and findings.has_bench_speed:
        sentences.append(findings.bench.text)
    return sentences


def _estimates_of_runs(findings: Findings) -> list[Estimate]:
    """Return the estimates of arms with an interval over runs, not over the rounds of a benchmark."""
    return _with_interval([c for c in findings.comparisons if not c.is_control and c.claims])


def _with_interval(comparisons: Sequence[Comparison]) -> list[Estimate]:
    estimates = [estimate for c in comparisons for estimate in c.estimates.values()]
    return [e for e in estimates if e.has_interval and not isinstance(e, BenchEstimate)]


def _describe_pairing(estimates: Sequence[Estimate]) -> str:
    if all(estimate.is_paired for estimate in estimates):
        return "paired by seed"
    if any(estimate.is_paired for estimate in estimates):
        return "paired where seeds are shared"
    return "not paired"


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
    is_as_planned = findings.plan.is_planned_look(seeds) and findings.plan.spent_until(seeds) <= 1 + 1e-9
    if numbers and is_as_planned:
        yield (
            f"The level is corrected for {formatting.listed(numbers)}, so that together the intervals of "
            f"each column have {formatting.level(1 - ALPHA)} confidence."
        )
    if _other_levels(findings):
        yield f"Groups with identical {findings.metric.noun} count as one comparison of it."


def _describe_directions(metric: ComparedMetric, claimed: Sequence[Comparison]) -> Iterator[str]:
    """Yield for each compared question which direction is which."""
    questions = {question for comparison in claimed for question in comparison.estimates}
    if SPEED in questions and any(c.claims[SPEED].finding in SAME_SPEED for c in claimed):
        yield f"Throughput: above 1× is faster. Within {100 * SPEED_MARGIN:g}% it counts as the same."
    elif SPEED in questions:
        yield "Throughput: above 1× is faster."
    if MEMORY in questions:
        yield "Memory: below 0% is less."
    if QUALITY in questions and metric.margin is not None:
        noun = formatting.capital(metric.noun) if metric.is_titled else metric.noun
        yield f"{noun}: a difference within ±{metric.tolerance} counts as the same."


def _shorten(label: str) -> str:
    """Return a label, shortened for the headline."""
    return formatting.short(label, MAX_LABEL_CHARS)
