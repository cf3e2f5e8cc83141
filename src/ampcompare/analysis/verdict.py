"""The findings in words: headline, badges, and the lines above and below the table.

The answer has a fixed order: speed, memory, quality. Each is yes, no, or cannot tell because of a reason.
"""

from collections.abc import Iterator, Sequence

from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.claims import (
    EQUIVALENT,
    INCONCLUSIVE,
    NO_VERDICT,
    NOT_COMPARED,
    NOT_WORSE,
    SAME_SPEED,
    SPEED_MARGIN,
    Claim,
    largest_loss,
)
from ampcompare.analysis.comparison import NOT_FINISHED, Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import BACKEND, Group
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, MEMORY, QUALITY, SPEED
from ampcompare.analysis.grouping.run_table import ON_CPU
from ampcompare.analysis.grouping.training_recipe import describe_recipe
from ampcompare.analysis.grouping.validity_checks import explain_degenerate
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.sweep_plan import describe_plan
from ampcompare.runs.loader import ARM
from ampcompare.runtime import formatting

GOOD, BAD, OPEN, BASE = "good", "bad", "open", "base"  # tones of a badge
NOT_SHOWN = (INCONCLUSIVE, NO_VERDICT)
MANY_FAILED = 1 / 3  # fraction of failed runs from which the headline mentions them
QUESTION_NAMES = {SPEED: "throughput", MEMORY: "peak memory", QUALITY: "quality"}
MAX_LABEL_CHARS = 40  # in the headline


def write_badge(comparison: Comparison) -> str:
    """Return the verdict on a group: `faster · same accuracy`, `inconclusive`, `2 of 5 failed`."""
    if comparison.not_compared_reason:
        return NOT_COMPARED
    if comparison.is_control:
        return "control"
    if not comparison.claims or comparison.group.outcomes.failed:
        return _failed(comparison.group) or NOT_FINISHED
    estimates = [comparison.claims[question].estimate for question in (SPEED, QUALITY)]
    known = [estimate for estimate in estimates if estimate is not None]
    if known and not comparison.degenerate_reason and not any(estimate.has_interval for estimate in known):
        return INCONCLUSIVE
    return " · ".join(brief for brief, _ in _describe_claims(comparison) if brief)


def choose_tone(comparison: Comparison) -> str:
    """Return the tone of a group's badge: GOOD, BAD, OPEN or BASE."""
    if comparison.is_control:
        return BASE
    if comparison.is_quality_lost or comparison.group.outcomes.failed:
        return BAD
    is_slower = "slower" in comparison.shown and SAME_SPEED not in comparison.shown
    return GOOD if comparison.keeps_quality and not is_slower else OPEN


def _failed(group: Group) -> str:
    """Return `3 of 5 failed`, or "" if no run failed."""
    outcomes = group.outcomes
    return f"{outcomes.failed} of {outcomes.ended} failed" if outcomes.failed else ""


def _describe_claims(comparison: Comparison) -> list[tuple[str, str]]:
    """Return for speed, memory and quality a short text for the badge and a long one for the headline."""
    memory = "" if _is_memory_of_process(comparison) else _describe_memory(comparison.claims[MEMORY])
    return [_describe_speed(comparison.claims[SPEED]), ("", memory), _describe_quality(comparison)]


def _describe_speed(claim: Claim) -> tuple[str, str]:
    """Return `faster` and `1.77× as fast`; an inconclusive speed only if more runs may decide it."""
    if claim.estimate is None:
        return "", ""
    if SAME_SPEED in claim.shown:
        return "as fast", f"the same speed within {100 * SPEED_MARGIN:g}%"
    if claim.shown:
        return claim.shown[0], f"{formatting.ratio(claim.estimate.value)} as fast"
    text = f"speed {INCONCLUSIVE}" if claim.is_open else ""
    return text, text


def _is_memory_of_process(comparison: Comparison) -> bool:
    """Return whether the memory is that of a whole process on a CPU, which makes no headline."""
    return bool(comparison.group.rows[ON_CPU].any())


def _describe_memory(claim: Claim) -> str:
    """Return `11% less memory` or `the same memory`, "" if nothing is shown."""
    estimate = claim.estimate
    if estimate is None:
        return ""
    if estimate.value == 1 and estimate.error == 0:
        return "the same memory"
    if not claim.shown:
        return ""
    percent = (estimate.value - 1) * 100
    amount = formatting.amount(percent, 0 if abs(percent) >= 9.95 else 1)
    return f"{amount}% {'less' if percent < 0 else 'more'} memory"


def _describe_quality(comparison: Comparison) -> tuple[str, str]:
    """Return `same accuracy` and `accuracy the same within 1 point`, or what else is shown."""
    metric = comparison.group.metric
    claim = comparison.claims[QUALITY]
    noun = metric.noun
    if claim.estimate is None:
        return "", ""
    if comparison.degenerate_reason and not claim.shown:
        text = f"{noun} at chance" if "at chance" in comparison.degenerate_reason else f"{noun} never changed"
        return text, text
    if claim.answer in NOT_SHOWN:
        brief = f"{noun} {INCONCLUSIVE}"
        n = claim.estimate.n
        if comparison.no_claim_reason:
            return brief, brief
        if not claim.estimate.has_interval:
            return brief, f"{brief} at n = {n}"
        return brief, f"{brief} at n = {n}: {_bounded(claim.estimate, metric)}"
    if claim.shown == (EQUIVALENT,):
        return f"same {noun}", f"{noun} the same within {metric.tolerance}"
    if claim.shown == (NOT_WORSE,):
        worse = "higher" if metric.lower_is_better else "lower"
        return f"{noun} not {worse}", f"{noun} not {worse} by more than {metric.tolerance}"
    return _describe_difference(claim, claim.estimate, metric)


def _describe_difference(claim: Claim, estimate: Estimate, metric: ComparedMetric) -> tuple[str, str]:
    """Return `accuracy 0.31 lower` and `accuracy 0.31 points lower, by at most 0.48`, if that is shown."""
    size = formatting.amount(estimate.value, metric.decimals(estimate.low, estimate.high))
    side = "higher" if estimate.value > 0 else "lower"
    at_most = _at_most(estimate, metric) if "worse" in claim.shown else ""
    by_at_most = f", by {at_most}" if at_most else ""
    if EQUIVALENT in claim.shown:
        margin = f"{metric.margin or 0:g}"
        return (
            f"same within {margin}, {size} {side}",
            f"{metric.noun} {size} {side}{by_at_most}, within {margin}",
        )
    return f"{metric.noun} {size} {side}", f"{metric.noun} {metric.with_unit(size)} {side}{by_at_most}"


def _at_most(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the largest loss that the interval allows: `at most 0.48`; "" without an interval or a loss."""
    loss = largest_loss(estimate, metric)
    if loss is None or loss <= 0:
        return ""
    return f"at most {formatting.amount(loss, metric.decimals(estimate.low, estimate.high))}"


def _bounded(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the difference and the largest loss: `−0.14 points; at most 0.48 lower`."""
    at_most = _at_most(estimate, metric)
    worse = "higher" if metric.lower_is_better else "lower"
    decimals = metric.decimals(estimate.low, estimate.high)
    difference = metric.with_unit(formatting.signed_fixed(estimate.value, decimals))
    return f"{difference}; {at_most} {worse}" if at_most else difference


def write_headline(findings: Findings) -> tuple[str, str]:
    """Return the strongest finding in one line, and the label that it is about ("" for all groups)."""
    comparisons = [c for c in findings.comparisons if not c.is_control]
    bases = [g for g in findings.groups if g.value == findings.baseline_value and not g.is_control]
    compared = [c for c in comparisons if not c.not_compared_reason]
    claimed = [c for c in compared if c.claims]
    if not bases:
        return f"No run of the baseline {_shorten(findings.baseline_name)} to compare with", ""
    if not comparisons:
        return f"All runs are of {_shorten(bases[0].display_name)}: there is nothing to compare", ""
    if all(base.is_unfinished or not base.n for base in bases):
        name = _shorten(findings.baseline_name)
        return f"The baseline {name} has no finished run: {bases[0].outcomes.text}", ""
    if not compared and findings.best:
        return findings.best.headline, findings.best.label
    if not compared:
        return "Nothing is compared: every group differs from the baseline in other settings, too", ""
    if not claimed:
        first = compared[0].group
        return f"{_shorten(first.display_name)} has not finished: {first.outcomes.text}", first.display_name
    subject = _headline_comparison(claimed)
    label = subject.group.display_name
    if all(c.baseline is not None and explain_degenerate(c.baseline) for c in claimed):
        return _headline_without_quality(subject)
    if _mostly_failed(subject):
        return f"{_shorten(label)}: {_failed(subject.group)}", label
    if not any(c.shown or c.no_claim_reason or c.degenerate_reason for c in claimed):
        return _inconclusive_headline(subject)
    texts = ", ".join(full for _, full in _describe_claims(subject) if full)
    name = _shorten(label)
    if findings.keys[0] not in (BACKEND, ARM):
        name = f"{findings.keys[0].rpartition('.')[2]} {name}"
    headline = f"{name}: {texts or f'no {findings.metric.noun} and no speed to compare'}"
    failing = next((c.group for c in claimed if c is not subject and _mostly_failed(c)), None)
    if failing is None:
        return headline, label
    outcomes = failing.outcomes
    failed = f"{outcomes.failed} of {outcomes.ended} {_shorten(failing.display_name)} runs failed"
    return f"{headline}; {failed}", label


def _headline_without_quality(subject: Comparison) -> tuple[str, str]:
    """Return the headline if the metric of the baseline says nothing, and its label.

    For example `No verdict on accuracy: fp32 (none) is at chance level in 3 of 3 runs (39.5% by always
    guessing the commonest class); native: 1.90× as fast`.
    """
    base = subject.baseline
    assert base is not None
    noun = subject.group.metric.noun
    text = f"No verdict on {noun}: {_shorten(base.display_name)} is {explain_degenerate(base)}"
    _, speed = _describe_speed(subject.claims[SPEED])
    if not speed or not subject.claims[SPEED].shown:
        return text, ""
    label = subject.group.display_name
    return f"{text}; {_shorten(label)}: {speed}", label


def _headline_comparison(claimed: Sequence[Comparison]) -> Comparison:
    """Return the comparison that the headline is about: the one with the strongest claim.

    First come groups that are faster and keep their quality, then faster groups, then groups that keep their
    quality or need less memory and are not shown to be slower. A slower group is never chosen for being
    slower: among groups without a gain, the one with the highest speed is chosen. Groups with the same
    displayed speed are chosen in the order of the table.
    """

    def count_gains(c: Comparison) -> int:
        if "slower" in c.shown or c.is_quality_lost:
            return 0
        is_smaller = "smaller" in c.shown and not _is_memory_of_process(c)
        return int(c.keeps_quality) + int(is_smaller)

    def rank(c: Comparison) -> tuple[bool, bool, bool, int, float]:
        displayed_speed = float(f"{c.speedup or 0.0:.3g}")
        is_best = c.is_faster and c.keeps_quality
        return not _mostly_failed(c), is_best, c.is_faster, count_gains(c), displayed_speed

    return max(claimed, key=rank)


def _mostly_failed(comparison: Comparison) -> bool:
    """Return whether a third of a group's runs or more failed."""
    outcomes = comparison.group.outcomes
    return outcomes.failed > 0 and outcomes.failed >= MANY_FAILED * outcomes.ended


def _inconclusive_headline(comparison: Comparison) -> tuple[str, str]:
    """Return the headline if nothing is shown about any group, and its label.

    For example `Inconclusive at n = 5: accuracy of native −0.14 points; at most 0.62 lower`.
    """
    estimated = [claim for claim in comparison.claims.values() if claim.estimate is not None]
    with_interval = [claim for claim in estimated if claim.estimate and claim.estimate.has_interval]
    if not with_interval:
        # Runs that share a process are fewer measurements of speed than of quality.
        shown = [claim for claim in estimated if claim.question == QUALITY] or estimated
        n, question = min(
            ((claim.estimate.n, claim.question) for claim in shown if claim.estimate), default=(0, "")
        )
        if 0 < n < MIN_RUNS:
            each = formatting.plural(n, "seed" if comparison.group.seeds else "run")
            if comparison.group.counts_processes(COMPARED_METRICS[question].column):
                each = "1 process" if n == 1 else f"{n} processes"
            return f"Inconclusive: {each} per group, and a confidence interval needs at least {MIN_RUNS}", ""
        claims = sorted(comparison.claims.values(), key=lambda claim: claim.question != QUALITY)
        reasons = [claim.why for claim in claims if claim.why]
        return f"Inconclusive: {reasons[0]}" if reasons else "Inconclusive: nothing was recorded", ""
    claim = max(with_interval, key=lambda claim: (claim.question == QUALITY, claim.question == SPEED))
    estimate = claim.estimate
    assert estimate is not None
    label = comparison.group.display_name
    metric = comparison.group.metric
    name = QUESTION_NAMES[claim.question]
    value = _ratio_between(estimate)
    if claim.question == QUALITY:
        name = metric.noun
        value = _bounded(estimate, metric)
    return f"Inconclusive at n = {estimate.n}: {name} of {_shorten(label)} {value}", label


def _ratio_between(estimate: Estimate) -> str:
    """Return `1.05× (95% CI 0.98 to 1.15)`, with enough digits to tell the ends from 1."""
    digits = formatting.digits_to_distinguish(estimate.ends, (1.0,), formatting.number, 3)
    span = formatting.interval(estimate.low, estimate.high, lambda end: formatting.number(end, digits))
    return f"{formatting.number(estimate.value, digits)}× ({formatting.level(estimate.level)} CI {span})"


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
    """Return what the intervals of the table are."""
    claimed = [c for c in findings.comparisons if not c.is_control and c.claims]
    estimates = [estimate for c in claimed for estimate in c.estimates.values()]
    of_runs = [e for e in estimates if e.has_interval and not isinstance(e, BenchEstimate)]
    sentences = []
    if of_runs:
        level = formatting.level(findings.level)
        sentences.append(f"CI: {level} confidence interval, {_describe_pairing(of_runs)}.")
        sentences += _describe_levels(findings)
        sentences += _describe_directions(findings.metric, claimed)
    else:
        sentences.append(
            f"A confidence interval needs at least {MIN_RUNS} runs per group. With fewer, the table shows "
            "the range from the lowest to the highest run."
        )
        if any(group.shares_processes for group in findings.groups):
            sentences.append(
                f"Speed, memory, energy and time need at least {MIN_RUNS} processes per group, because runs "
                "that share a process are one measurement of the machine."
            )
    if findings.bench and findings.has_bench_speed:
        sentences.append(findings.bench.text)
    elif findings.bench:
        sentences.append("No arm of --bench has the backend, settings and device of these runs.")
    return " ".join(sentences)


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
    other = sorted({level for level in findings.levels.values() if level != findings.level})
    if other:
        yield (
            f"Speed, memory and energy: {formatting.level(other[0])}, because groups with identical "
            f"{findings.metric.noun} differ there."
        )


def _describe_directions(metric: ComparedMetric, claimed: Sequence[Comparison]) -> Iterator[str]:
    """Yield for each compared question which direction is which."""
    questions = {question for comparison in claimed for question in comparison.estimates}
    if SPEED in questions and any(SAME_SPEED in comparison.shown for comparison in claimed):
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
