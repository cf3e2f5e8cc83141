"""The findings in words: headline and badges.

The headline and the badges answer accuracy, then speed. Each answer is what is shown, or that nothing is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.analysis import phrases
from ampcompare.analysis.claims import (
    INCONCLUSIVE,
    NO_VERDICT,
    NOT_COMPARED,
    NOT_FINISHED,
    SAME_SPEED,
    SPEED_MARGIN,
    WITHIN_MARGIN,
    Claim,
    Finding,
)
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, QUALITY, SPEED
from ampcompare.analysis.reasons import explain_degenerate
from ampcompare.analysis.scale import RATIO
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.runtime import formatting

GOOD, BAD, OPEN, BASE = "good", "bad", "open", "base"  # tones of a part of a badge
NOT_SHOWN = (INCONCLUSIVE, NO_VERDICT)
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
    badges = [_answer_quality(comparison).badge, _answer_speed(comparison.claims[SPEED]).badge]
    return [part for part in badges if part is not None]


@dataclass(frozen=True)
class Answer:
    """The answer for one group to one question.

    Attributes:
        text: For the headline: what is shown, or a word that nothing is. Groups with the same text share a
            clause.
        badge: The same in a few words for the badge of the group; None: the badge leaves it out.
        is_shown: Whether something is shown.
        detail: The estimate for the headline, where nothing is shown; "" without one.
    """

    text: str
    badge: BadgePart | None = None
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
        return [formatting.capital(findings.missing_baseline)]
    if not comparisons and len(bases) > 1:
        value = _shorten(findings.baseline_name)
        return [
            f"All {len(bases)} groups are of {value}: compare them by another setting with --group-by KEY"
        ]
    if not comparisons:
        return [f"All runs are of {_shorten(bases[0].display_name)}: there is nothing to compare"]
    if all(base.is_unfinished or not base.n for base in bases):
        name = _shorten(findings.baseline_name)
        return [f"The baseline {name} has no finished run: {bases[0].outcomes.text}"]
    if not compared:
        return ["Nothing is compared: every group differs from the baseline in other settings, too"]
    claimed = [c for c in compared if c.claims]
    failed = [group for group in (*bases, *(c.group for c in comparisons)) if group.outcomes.failed]
    unfinished = [c.group for c in compared if not c.claims and not c.group.outcomes.failed]
    sentences = [
        _write_quality(claimed, findings),
        _write_speed(claimed, findings),
        *(phrases.failed_runs(group, _shorten(group.display_name)) for group in failed),
        *(phrases.not_finished(group, _shorten(group.display_name)) for group in unfinished),
        _describe_not_compared(comparisons),
    ]
    answers = [f"{sentence}." for sentence in sentences if sentence]
    return answers or [f"No {findings.metric.noun} and no speed is recorded"]


def _write_quality(claimed: Sequence[Comparison], findings: Findings) -> str:
    """Return what is shown of the quality of each arm; "" if no arm has a value."""
    if all(c.claims[QUALITY].estimate is None for c in claimed):
        return ""
    title = findings.metric.noun_title
    bases = [c.baseline for c in claimed if c.baseline is not None]
    degenerate = [reason for base in bases if (reason := explain_degenerate(base))]
    if bases and len(degenerate) == len(bases):
        return f"{title}: no verdict, because {_shorten(bases[0].display_name)} is {degenerate[0].text}"
    return f"{title}: {_join_answers([(c.group, _answer_quality(c)) for c in claimed])}"


def _answer_quality(comparison: Comparison) -> Answer:
    metric = comparison.group.metric
    claim = comparison.claims[QUALITY]
    estimate = claim.estimate
    tone = GOOD if comparison.keeps_quality else OPEN
    if comparison.is_quality_lost:
        tone = BAD
    if estimate is None:
        return Answer(NOT_COMPARED, is_shown=False)
    if comparison.degenerate is not None and not claim.shown:
        text = comparison.degenerate.badge
        return Answer(text, BadgePart(f"{metric.noun} {text}", tone))
    if claim.answer in NOT_SHOWN:
        detail = "" if comparison.no_quality else _open_quality(estimate, metric)
        badge = BadgePart(f"{metric.noun} {INCONCLUSIVE}", tone)
        return Answer(claim.answer, badge, is_shown=False, detail=detail)
    if claim.finding is Finding.EQUIVALENT:
        return Answer(f"the same within {metric.tolerance}", BadgePart(f"same {metric.noun}", tone))
    if claim.finding is Finding.NOT_WORSE:
        badge = BadgePart(f"{metric.noun} not {metric.worse}", tone)
        return Answer(phrases.not_worse(metric), badge)
    size = phrases.size(estimate.value, estimate, metric)
    side = phrases.side(estimate)
    text = f"{metric.with_unit(size)} {side}"
    is_worse = claim.finding in (Finding.WORSE, Finding.WORSE_WITHIN)
    if is_worse and (loss := phrases.allowed_loss(estimate, metric)):
        text = f"{text}, by at most {loss}"
    if claim.finding in WITHIN_MARGIN:
        margin = f"{metric.margin:g}"
        badge = BadgePart(f"same within {margin}, {size} {side}", tone)
        return Answer(f"{text}, within the margin of {margin}", badge)
    return Answer(text, BadgePart(f"{metric.noun} {size} {side}", tone))


def _open_quality(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the difference and the largest loss, `−0.14 points; at most 0.48 lower`; else `n = 2`."""
    if not estimate.has_interval:
        return f"n = {estimate.n}"
    loss = phrases.allowed_loss(estimate, metric)
    difference = phrases.difference(estimate, metric)
    return f"{difference}; at most {loss} {metric.worse}" if loss else difference


def _write_speed(claimed: Sequence[Comparison], findings: Findings) -> str:
    """Return what is shown of the speed of each arm; "" if no speed is recorded."""
    column = COMPARED_METRICS[SPEED].column
    is_recorded = any(column in side.estimates for c in claimed for side in c.sides)
    if not is_recorded and all(c.claims[SPEED].estimate is None for c in claimed):
        return ""
    return f"Speed: {_join_answers([(c.group, _answer_speed(c.claims[SPEED])) for c in claimed])}"


def _answer_speed(claim: Claim) -> Answer:
    estimate = claim.estimate
    if estimate is None:
        return Answer(NOT_COMPARED, is_shown=False)
    if claim.finding in SAME_SPEED:
        return Answer(f"the same within {100 * SPEED_MARGIN:g}%", BadgePart("as fast", GOOD))
    if claim.shown:
        tone = BAD if claim.finding is Finding.SLOWER else GOOD
        return Answer(f"{formatting.ratio(estimate.value)} as fast", BadgePart(claim.answer, tone))
    detail = ""
    if estimate.has_interval:  # `1.05×, CI 0.98 to 1.15`
        detail = f"{RATIO.value(estimate)}, CI {RATIO.interval(estimate)}"
        if estimate.side_of(1.0):
            detail = f"{detail}; {claim.why}"
    # More runs would not decide the others, so their badges do not mention the speed.
    badge = BadgePart(f"speed {INCONCLUSIVE}", OPEN) if claim.is_open else None
    return Answer(claim.answer, badge, is_shown=False, detail=detail)


def _join_answers(answers: Sequence[tuple[Group, Answer]]) -> str:
    """Return a clause for each text, with the names of all groups of which it is true, what is shown first.

    For example `native and apex_o1 the same within 0.5 points; inconclusive for fp16 (n = 2)`.
    """
    names_by_text: dict[tuple[bool, str], list[str]] = {}
    for group, answer in sorted(answers, key=lambda pair: not pair[1].is_shown):
        name = _shorten(group.display_name)
        detailed = f"{name} ({answer.detail})" if answer.detail else name
        names_by_text.setdefault((answer.is_shown, answer.text), []).append(detailed)
    return "; ".join(
        f"{formatting.listed(names)} {text}" if is_shown else f"{text} for {formatting.listed(names)}"
        for (is_shown, text), names in names_by_text.items()
    )


def _describe_not_compared(comparisons: Sequence[Comparison]) -> str:
    names = [_shorten(c.group.display_name) for c in comparisons if c.not_compared_reason]
    verb = "is" if len(names) == 1 else "are"
    return f"{formatting.listed(names)} {verb} not compared" if names else ""


def _shorten(label: str) -> str:
    """Return a label, shortened for the headline."""
    return formatting.short(label, MAX_LABEL_CHARS)
