"""The finding in words: the heading, a group's badge, what the table's caption and the line below it say.

The answer has a fixed order: speed, memory, quality; each yes, no, or cannot tell because.
"""

from collections.abc import Sequence

from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.comparison import (
    CANNOT_TELL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_COMPARED,
    NOT_FINISHED,
    Claim,
    Comparison,
)
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.groups import BACKEND, Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.analysis.plan import describe_plan
from ampcompare.analysis.statistics.estimate import ALPHA
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.runs.loader import ARM
from ampcompare.runtime import formatting

GOOD, BAD, OPEN, BASE = "good", "bad", "open", "base"  # tones of a badge
NOT_SHOWN = (INCONCLUSIVE, CANNOT_TELL)
MANY_FAILED = 1 / 3  # of a group's runs failed: that belongs into the heading
MAX_LABEL_CHARS = 40  # characters of a label in the heading


def badge(comparison: Comparison) -> str:
    """Return what is known of a group: `faster · same accuracy`, `inconclusive`, `2 of 5 failed`."""
    if comparison.not_compared_reason or comparison.is_control:
        return NOT_COMPARED if comparison.not_compared_reason else "control"
    if not comparison.claims or comparison.group.outcomes.failed:
        return _failed(comparison.group) or NOT_FINISHED
    known = [e for q in (SPEED, QUALITY) if (e := comparison.claims[q].estimate) is not None]
    if known and not comparison.degenerate_reason and not any(estimate.has_interval for estimate in known):
        return INCONCLUSIVE
    return " · ".join(brief for brief, _ in _describe_claims(comparison) if brief)


def tone(comparison: Comparison) -> str:
    if comparison.is_control:
        return BASE
    if comparison.is_quality_lost or comparison.group.outcomes.failed:
        return BAD
    return GOOD if comparison.keeps_quality and "slower" not in comparison.shown else OPEN


def _failed(group: Group) -> str:
    """`3 of 5 failed`; nothing where none did."""
    outcomes = group.outcomes
    return f"{outcomes.failed} of {outcomes.ended} failed" if outcomes.failed else ""


def _describe_claims(comparison: Comparison) -> list[tuple[str, str]]:
    """What is said of speed, memory and quality, briefly for the badge and in full for the heading; nothing of
    what is not compared.
    """
    claims = comparison.claims
    return [
        _describe_speed(claims[SPEED]),
        ("", _describe_memory(claims[MEMORY])),
        _describe_quality(comparison),
    ]


def _describe_speed(claim: Claim) -> tuple[str, str]:
    """`faster` and `1.77× as fast`; an inconclusive speed only where more runs may decide it."""
    if claim.estimate and claim.shown:
        return claim.shown[0], f"{formatting.ratio(claim.estimate.value)} as fast"
    return (f"speed {INCONCLUSIVE}" if claim.estimate and claim.is_open else "",) * 2


def _describe_memory(claim: Claim) -> str:
    """`11 % less memory`, `the same memory`."""
    found = claim.estimate
    if found is None or not (claim.shown or found.value - 1 == found.error == 0):
        return ""
    if found.value - 1 == found.error == 0:
        return "the same memory"
    share = (found.value - 1) * 100
    amount = formatting.amount(share, 0 if abs(share) >= 9.95 else 1)
    return f"{amount} % {'less' if share < 0 else 'more'} memory"


def _describe_quality(comparison: Comparison) -> tuple[str, str]:
    """`same accuracy` and `accuracy the same within 1 point`."""
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
        return brief, f"{brief} at n = {claim.estimate.n}{_interval(claim)}"
    size = metric.size(claim.estimate.value)
    side = "higher" if claim.estimate.value > 0 else "lower"
    if claim.shown == (EQUIVALENT,):
        return f"same {noun}", f"{noun} the same within {metric.tolerance}"
    if EQUIVALENT in claim.shown:
        margin = f"{metric.margin or 0:g}"
        return f"same within {margin}, {size} {side}", f"{noun} {size} {side}, within {margin}"
    return f"{noun} {size} {side}", f"{noun} {metric.with_unit(size)} {side}"


def headline(findings: Findings) -> tuple[str, str]:
    """Return the strongest finding in a line, and the label that it is about ("" where it is of all)."""
    held = [c for c in findings.comparisons if not c.is_control]
    bases = [g for g in findings.groups if g.value == findings.baseline_value and not g.is_control]
    compared = [c for c in held if not c.not_compared_reason]
    claimed = [c for c in compared if c.claims]
    if not bases:
        return f"No run of {_shorten(findings.baseline_value)} to compare with", ""
    if not held:
        return f"Only {_shorten(bases[0].label)}: nothing to compare it with", ""
    if all(base.is_unfinished or not base.n for base in bases):
        what = f"The baseline {_shorten(findings.baseline_value)} has no finished run"
        return f"{what}: {bases[0].outcomes.text}", ""
    if not compared and findings.best:
        return findings.best.headline, findings.best.label
    if not compared:
        return "Nothing is compared: no two groups differ in the compared setting alone", ""
    if not claimed:
        first = compared[0].group
        return f"{_shorten(first.label)} has not finished: {first.outcomes.text}", first.label
    told = _headline_comparison(claimed)
    label = told.group.label
    if _mostly_failed(told):
        return f"{_shorten(label)}: {_failed(told.group)}", label
    if not any(c.shown or c.no_claim_reason or c.degenerate_reason for c in claimed):
        return _inconclusive_headline(told)
    said = (
        ", ".join(full for _, full in _describe_claims(told) if full)
        or f"no {findings.metric.noun} and no speed to compare"
    )
    failing = [c.group for c in claimed if c is not told and _mostly_failed(c)][:1]
    tail = "".join(f"; {_failed(g).removesuffix(' failed')} {_shorten(g.label)} runs failed" for g in failing)
    prefix = "" if findings.keys[0] in (BACKEND, ARM) else f"{findings.keys[0].rpartition('.')[2]} "
    return f"{prefix}{_shorten(label)}: {said}{tail}", label


def _headline_comparison(claimed: Sequence[Comparison]) -> Comparison:
    """Return the group that the heading is about, by the strongest claim that is shown of it.

    The fastest that keeps its quality, else the fastest, else one that keeps its quality or needs less memory
    and is not shown to be slower. To be shown slower is never a reason to stand in the heading: among groups
    without a gain it is the one with the highest speed. Of groups whose speeds are shown as the same number
    it is the first in the order of the table.
    """

    def rank(c: Comparison) -> tuple[bool, bool, bool, int, float]:
        whole, gains = not _mostly_failed(c), c.keeps_quality + ("smaller" in c.shown)
        gains = 0 if "slower" in c.shown or c.is_quality_lost else gains
        return (whole, c.is_faster and c.keeps_quality, c.is_faster, gains, float(f"{c.speedup or 0.0:.3g}"))

    return max(claimed, key=rank)


def _mostly_failed(comparison: Comparison) -> bool:
    outcomes = comparison.group.outcomes
    return outcomes.failed > 0 and outcomes.failed >= MANY_FAILED * outcomes.ended


def _inconclusive_headline(comparison: Comparison) -> tuple[str, str]:
    """Return the heading where nothing is shown of any group, and the label that it is about.

    `Inconclusive at n = 3: accuracy of native +0.12 points (95 % CI −0.91 to +1.15)`.
    """
    found = [claim for claim in comparison.claims.values() if claim.estimate is not None]
    known = [claim for claim in found if claim.estimate and claim.estimate.has_interval]
    if not known:
        n = min((claim.estimate.n for claim in found if claim.estimate), default=0)
        if 0 < n < MIN_RUNS:
            each = formatting.plural(n, "seed" if comparison.group.seeds else "run")
            return f"Inconclusive: {each} of each, and an interval needs at least {MIN_RUNS}", ""
        claims = sorted(comparison.claims.values(), key=lambda claim: claim.question != QUALITY)
        reasons = [claim.why for claim in claims if claim.why]
        return f"Inconclusive: {reasons[0]}" if reasons else "Inconclusive: nothing was recorded", ""
    claim = max(known, key=lambda claim: (claim.question == QUALITY, claim.question == SPEED))
    label, metric, estimate = comparison.group.label, comparison.group.metric, claim.estimate
    assert estimate is not None
    if claim.question == QUALITY:
        told = f"{metric.noun} of {_shorten(label)} {metric.with_unit(formatting.signed(estimate.value))}"
    else:
        told = f"{claim.question} of {_shorten(label)} {formatting.ratio(estimate.value)}"
    return f"Inconclusive at n = {estimate.n}: {told}{_interval(claim)}", label


def _interval(claim: Claim) -> str:
    """` (95 % CI −0.91 to +1.15)`, with the digits that tell its ends from no change; "" without one."""
    found = claim.estimate
    if found is None or found.low is None or found.high is None:
        return ""
    is_quality = claim.question == QUALITY
    show, least = (formatting.signed, 2) if is_quality else (formatting.number, 3)
    digits = formatting.digits_to_distinguish(found.ends, (0.0 if is_quality else 1.0,), show, least)
    span = formatting.interval(found.low, found.high, lambda end: show(end, digits))
    return f" ({formatting.level(found.level)} CI {span})"


def basis(findings: Findings) -> str:
    """Setting, number of runs, machine and margin or plan, in one line."""
    shown = [g for g in findings.groups if g.n and not g.is_control]
    seeds, runs = sorted({g.seeds for g in shown}), sorted({g.n for g in shown})
    counts, unit = (seeds, "seed") if seeds and seeds[0] else (runs or [0], "run")
    span = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    margin = f"margin {findings.metric.tolerance}" if findings.metric.margin is not None else ""
    told = f"{findings.setting.text}, {span} {unit}{'' if counts == [1] else 's'} of each"
    parts = [told, findings.setting.machine, describe_plan(findings.plan, findings.metric) or margin]
    return " · ".join(part for part in parts if part)


def caption(findings: Findings) -> str:
    """What the table's intervals are, once for all."""
    metric, looks = findings.metric, len(findings.plan.looks)
    held = [c for c in findings.comparisons if not c.is_control and c.claims]
    every = [e for c in held for e in c.estimates.values()]
    kinds = {e.is_paired for e in every if e.has_interval and not isinstance(e, BenchEstimate)}
    more = ""
    if findings.bench:
        none = "None of the arms of --bench has backend, settings and device of these runs."
        more = f" {findings.bench.text if findings.has_bench_speed else none}"
    if not kinds:
        none = f"Below {MIN_RUNS} runs a side there is no interval: each line is the range that was seen."
        return none + more
    how = "paired where seeds are shared"
    if len(kinds) == 1:
        how = "paired by seed" if True in kinds else "not paired"
    joint = ""
    if len(held) > 1 or looks > 1:
        over = f", over {looks} planned looks" if looks > 1 else ""
        joint = f": each question's intervals hold together in {formatting.level(1 - ALPHA)}{over}"
    there = {question for c in held for question in c.estimates}
    reading = {SPEED: "right of 1× is faster", MEMORY: "left of 0 is less memory"}
    if metric.margin is not None:
        reading[QUALITY] = f"inside the zone ({metric.tolerance}) the {metric.noun} counts as the same"
    parts = formatting.capital("; ".join(said for question, said in reading.items() if question in there))
    level = formatting.level(findings.level)
    return f"Each line is an interval at {level} ({how}){joint}.{parts and f' {parts}.'}{more}"


def _shorten(label: str) -> str:
    return formatting.short(label, MAX_LABEL_CHARS)
