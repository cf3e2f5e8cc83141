"""The findings in words: headline, badges, and the lines above and below the table.

The answer has a fixed order: speed, memory, quality. Each is yes, no, or cannot tell because of a reason.
"""

from collections.abc import Sequence

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
    if comparison.not_compared_reason or comparison.is_control:
        return NOT_COMPARED if comparison.not_compared_reason else "control"
    if not comparison.claims or comparison.group.outcomes.failed:
        return _failed(comparison.group) or NOT_FINISHED
    known = [e for q in (SPEED, QUALITY) if (e := comparison.claims[q].estimate) is not None]
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
    claims = comparison.claims
    return [
        _describe_speed(claims[SPEED]),
        ("", "" if _is_memory_of_process(comparison) else _describe_memory(claims[MEMORY])),
        _describe_quality(comparison),
    ]


def _describe_speed(claim: Claim) -> tuple[str, str]:
    """Return `faster` and `1.77× as fast`; an inconclusive speed only if more runs may decide it."""
    if claim.estimate and SAME_SPEED in claim.shown:
        return "as fast", f"the same speed within {100 * SPEED_MARGIN:g}%"
    if claim.estimate and claim.shown:
        return claim.shown[0], f"{formatting.ratio(claim.estimate.value)} as fast"
    return (f"speed {INCONCLUSIVE}" if claim.estimate and claim.is_open else "",) * 2


def _is_memory_of_process(comparison: Comparison) -> bool:
    """Return whether the memory is that of a whole process on a CPU, which makes no headline."""
    return bool(comparison.group.rows[ON_CPU].any())


def _describe_memory(claim: Claim) -> str:
    """Return `11% less memory` or `the same memory`, "" if nothing is shown."""
    estimate = claim.estimate
    if estimate is None or not (claim.shown or estimate.value - 1 == estimate.error == 0):
        return ""
    if estimate.value - 1 == estimate.error == 0:
        return "the same memory"
    percent = (estimate.value - 1) * 100
    amount = formatting.amount(percent, 0 if abs(percent) >= 9.95 else 1)
    return f"{amount}% {'less' if percent < 0 else 'more'} memory"


def _describe_quality(comparison: Comparison) -> tuple[str, str]:
    """Return `same accuracy` and `accuracy the same within 1 point`, or what else is shown."""
    metric, claim = comparison.group.metric, comparison.claims[QUALITY]
    noun = metric.noun
    if claim.estimate is None:
        return "", ""
    if comparison.degenerate_reason and not claim.shown:
        return (
            f"{noun} {'at chance' if 'at chance' in comparison.degenerate_reason else 'never changed'}",
        ) * 2
    if claim.answer in NOT_SHOWN:
        brief = f"{noun} {INCONCLUSIVE}"
        if comparison.no_claim_reason:
            return brief, brief
        at_n = f"{brief} at n = {claim.estimate.n}"
        if not claim.estimate.has_interval:
            return brief, at_n
        return brief, f"{at_n}: {_bounded(claim.estimate, metric)}"
    size = metric.size(claim.estimate.value)
    side = "higher" if claim.estimate.value > 0 else "lower"
    if claim.shown == (EQUIVALENT,):
        return f"same {noun}", f"{noun} the same within {metric.tolerance}"
    if claim.shown == (NOT_WORSE,):
        worse = "higher" if metric.lower_is_better else "lower"
        return f"{noun} not {worse}", f"{noun} not {worse} by more than {metric.tolerance}"
    at_most = _at_most(claim.estimate, metric) if "worse" in claim.shown else ""
    if EQUIVALENT in claim.shown:
        margin = f"{metric.margin or 0:g}"
        within = f"{noun} {size} {side}{at_most and ', by '}{at_most}, within {margin}"
        return f"same within {margin}, {size} {side}", within
    return f"{noun} {size} {side}", f"{noun} {metric.with_unit(size)} {side}{at_most and ', by '}{at_most}"


def _at_most(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the largest loss that the interval allows: `at most 0.48`; "" without an interval or a loss."""
    loss = largest_loss(estimate, metric)
    return f"at most {metric.size(loss)}" if loss is not None and loss > 0 else ""


def _bounded(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the difference and the largest loss: `−0.14 points; at most 0.48 lower`."""
    at_most = _at_most(estimate, metric)
    worse = "higher" if metric.lower_is_better else "lower"
    difference = metric.with_unit(formatting.signed(estimate.value))
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
        reason = f"The baseline {_shorten(findings.baseline_name)} has no finished run"
        return f"{reason}: {bases[0].outcomes.text}", ""
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
    texts = (
        ", ".join(full for _, full in _describe_claims(subject) if full)
        or f"no {findings.metric.noun} and no speed to compare"
    )
    failing = [c.group for c in claimed if c is not subject and _mostly_failed(c)][:1]
    tail = "".join(
        f"; {_failed(g).removesuffix(' failed')} {_shorten(g.display_name)} runs failed" for g in failing
    )
    prefix = "" if findings.keys[0] in (BACKEND, ARM) else f"{findings.keys[0].rpartition('.')[2]} "
    return f"{prefix}{_shorten(label)}: {texts}{tail}", label


def _headline_without_quality(subject: Comparison) -> tuple[str, str]:
    """Return the headline if the metric of the baseline says nothing, and its label.

    For example `No verdict on accuracy: fp32 (none) is at chance level in 3 of 3 runs (39.5% by always
    guessing the commonest class); native: 1.90× as fast`.
    """
    base, label = subject.baseline, subject.group.display_name
    assert base is not None
    reason = f"{_shorten(base.display_name)} is {explain_degenerate(base)}"
    text = f"No verdict on {subject.group.metric.noun}: {reason}"
    _, speed = _describe_speed(subject.claims[SPEED])
    if not speed or not subject.claims[SPEED].shown:
        return text, ""
    return f"{text}; {_shorten(label)}: {speed}", label


def _headline_comparison(claimed: Sequence[Comparison]) -> Comparison:
    """Return the comparison that the headline is about: the one with the strongest claim.

    First come groups that are faster and keep their quality, then faster groups, then groups that keep their
    quality or need less memory and are not shown to be slower. A slower group is never chosen for being
    slower: among groups without a gain, the one with the highest speed is chosen. Groups with the same
    displayed speed are chosen in the order of the table.
    """

    def rank(c: Comparison) -> tuple[bool, bool, bool, int, float]:
        whole, gains = not _mostly_failed(c), int(c.keeps_quality)
        gains += "smaller" in c.shown and not _is_memory_of_process(c)
        gains = 0 if "slower" in c.shown or c.is_quality_lost else gains
        return (whole, c.is_faster and c.keeps_quality, c.is_faster, gains, float(f"{c.speedup or 0.0:.3g}"))

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
    label, metric, estimate = comparison.group.display_name, comparison.group.metric, claim.estimate
    assert estimate is not None
    subject = f"Inconclusive at n = {estimate.n}: "
    if claim.question == QUALITY:
        return f"{subject}{metric.noun} of {_shorten(label)} {_bounded(estimate, metric)}", label
    ratio = formatting.ratio(estimate.value)
    return f"{subject}{QUESTION_NAMES[claim.question]} of {_shorten(label)} {ratio}{_interval(claim)}", label


def _interval(claim: Claim) -> str:
    """Return ` (95% CI 0.98 to 1.15)` with enough digits to tell the ends of a ratio from 1, or ""."""
    estimate = claim.estimate
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    digits = formatting.digits_to_distinguish(estimate.ends, (1.0,), formatting.number, 3)
    span = formatting.interval(estimate.low, estimate.high, lambda end: formatting.number(end, digits))
    return f" ({formatting.level(estimate.level)} CI {span})"


def write_basis(findings: Findings) -> str:
    """Return setting, sample size, recipe, machine and margin or plan, in one line."""
    counted = [g for g in findings.groups if g.n and not g.is_control]
    seeds, runs = sorted({g.seeds for g in counted}), sorted({g.n for g in counted})
    counts, unit = (seeds, "seed") if seeds and seeds[0] else (runs or [0], "run")
    span = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    margin = f"margin {findings.metric.tolerance}" if findings.metric.margin is not None else ""
    setting = f"{findings.setting.text}, {span} {unit}{'' if counts == [1] else 's'} each"
    recipe = describe_recipe(findings.recipe)
    parts = [
        setting,
        recipe,
        findings.setting.machine,
        describe_plan(findings.plan, findings.metric) or margin,
    ]
    return " · ".join(part for part in parts if part)


def write_caption(findings: Findings) -> str:
    """Return what the intervals of the table are."""
    metric, looks = findings.metric, len(findings.plan.looks)
    claimed = [c for c in findings.comparisons if not c.is_control and c.claims]
    estimates = [e for c in claimed for e in c.estimates.values()]
    kinds = {e.is_paired for e in estimates if e.has_interval and not isinstance(e, BenchEstimate)}
    bench_text = ""
    if findings.bench:
        no_match = "No arm of --bench has the backend, settings and device of these runs."
        bench_text = f" {findings.bench.text if findings.has_bench_speed else no_match}"
    if not kinds:
        processes_text = ""
        if any(group.shares_processes for group in findings.groups):
            processes_text = (
                f" Speed, memory, energy and time need at least {MIN_RUNS} processes per group, because runs "
                "that share a process are one measurement of the machine."
            )
        return (
            f"A confidence interval needs at least {MIN_RUNS} runs per group. With fewer, the table shows "
            f"the range from the lowest to the highest run.{processes_text}{bench_text}"
        )
    pairing = "paired where seeds are shared"
    if len(kinds) == 1:
        pairing = "paired by seed" if True in kinds else "not paired"
    count = sum(g.value != findings.baseline_value and not g.is_control for g in findings.groups)
    numbers = [formatting.plural(count, "comparison")] if count > 1 else []
    numbers += [formatting.plural(looks, "planned look")] if looks > 1 else []
    joint = ""
    is_as_planned = findings.plan.is_planned_look(findings.ended_seeds)
    if numbers and is_as_planned and findings.plan.spent_until(findings.ended_seeds) <= 1 + 1e-9:
        joint = (
            f" The level is corrected for {formatting.listed(numbers)}, so that together the intervals of "
            f"each column have {formatting.level(1 - ALPHA)} confidence."
        )
    other = sorted({level for level in findings.levels.values() if level != findings.level})
    if other:
        level = formatting.level(other[0])
        joint += (
            f" Speed, memory and energy: {level}, because groups with identical {metric.noun} differ there."
        )
    questions = {question for c in claimed for question in c.estimates}
    directions = {SPEED: "Throughput: above 1× is faster.", MEMORY: "Memory: below 0% is less."}
    if metric.margin is not None:
        noun = formatting.capital(metric.noun) if metric.is_titled else metric.noun
        directions[QUALITY] = f"{noun}: a difference within ±{metric.tolerance} counts as the same."
    if any(SAME_SPEED in c.shown for c in claimed):
        directions[SPEED] += f" Within {100 * SPEED_MARGIN:g}% it counts as the same."
    parts = "".join(f" {text}" for question, text in directions.items() if question in questions)
    return f"CI: {formatting.level(findings.level)} confidence interval, {pairing}.{joint}{parts}{bench_text}"


def _shorten(label: str) -> str:
    """Return a label, shortened for the headline."""
    return formatting.short(label, MAX_LABEL_CHARS)
