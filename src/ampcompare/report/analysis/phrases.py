"""What is claimed, in words: each with the interval that was tested and its level.

A phrase goes on from the name of the group: "trains 1.90× as fast as none (95 %: 1.88 to 1.92)".
"""

from __future__ import annotations

import math

from ampcompare.report import words
from ampcompare.report.analysis.claims import EQUIVALENCE, Claim
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.undecided import more_for_quality
from ampcompare.report.statistics.estimate import PARTLY, Estimate
from ampcompare.report.statistics.power import MOST

NBSP = "\N{NO-BREAK SPACE}"
MOST_APART = 10.0  # an interval of a ratio that reaches further says nothing
SLOWER = 0.995  # of a single run: what rounds to 1.00 is not called slower


def tested(comparison: Comparison, question: str) -> Estimate | None:
    """The estimate at the level at which it was tested; the plain one where nothing was."""
    claim = comparison.claims.get(question)
    return claim.estimate if claim else getattr(comparison, question)


def speed(
    comparison: Comparison, note: str = "", *, with_doubt: bool = True, than: str = "", mark: float = 1.0
) -> str:
    """`trains 1.90× as fast as none (95 %: 1.88 to 1.92)`, `trains 22× slower than none (95 %: 21 to 23)`.

    `with_doubt` says behind it where that is no speed-up shown; `than` names the baseline otherwise than by
    its label. The interval has the digits that it takes to tell its ends from no change and from `mark`.
    """
    found, base = tested(comparison, "speed"), comparison.baseline
    if found is None or base is None:
        return ""
    claim = comparison.claims.get("speed")
    if is_too_noisy(found):
        text = f"trains at a speed that is too noisy to tell from that of {than or base.label}"
        return f"{text}{bracket(found, '', note)}{doubt(comparison) if with_doubt else ''}"
    # A control is as fast as the baseline, whatever it came to; and 1.00× slower is nothing to say of one.
    is_shown = found.high is None or found.high < 1
    slower = claim.is_below if claim else found.value < SLOWER and is_shown and not comparison.is_control
    value, ends = found.value, [found.low, found.high]
    if slower := slower and value > 0:
        ends = [None if end is None else 1 / end if end else math.inf for end in reversed(ends)]
        value, mark = 1 / value, 1 / mark
    digits = words.precision_apart(ends, (1.0, mark), words.number, 3)
    shown = words.number(value, digits if claim and claim.rejected and digits < words.MOST_DIGITS else 3)
    text = f"{shown}× {'slower than' if slower else 'as fast as'} {than or base.label}"
    unit = "×" if slower else ""
    span = words.interval(ends[0], ends[1], lambda end: f"{words.number(end, digits)}{unit}", unit)
    return f"trains {text}{bracket(found, span, note)}{doubt(comparison) if with_doubt else ''}"


def is_too_noisy(found: Estimate) -> bool:
    """Whether a ratio may as well be ten times more, or a tenth, and is not shown to differ from 1."""
    if found.low is None or found.high is None or not found.low <= 1 <= found.high or found.value <= 0:
        return False
    return found.high > MOST_APART * found.value or found.low * MOST_APART < found.value


def doubt(comparison: Comparison) -> str:
    """What speaks against a claim of speed, to follow it: the interval holds 1, or no change does as much."""
    claim = comparison.claims.get("speed")
    if claim is None:
        return ""
    if not claim.rejected:
        return (
            f", no speed-up shown{_more(claim.more_seeds)}" if claim.p is not None else ", no speed-up shown"
        )
    if comparison.is_within_control("speed"):
        return ", no more than no change at all shows here"
    return ""


def memory(comparison: Comparison, note: str = "") -> str:
    """`needs 41 % less memory (95 %: 40 to 42 %)`."""
    if (found := tested(comparison, "memory")) is None:
        return ""
    if is_too_noisy(found):
        return "needs an amount of memory that is too noisy to tell"
    share = (1 - found.value) * 100
    digits = 0 if abs(share) >= 9.95 else 1
    claim = comparison.claims.get("memory")
    if words.amount(share, digits) == words.amount(0, digits):
        return "needs the same memory"
    ends = [None if end is None else (1 - end) * 100 for end in (found.high, found.low)]
    more = "less" if share > 0 else "more"
    text = f"needs {words.amount(share, digits)} % {more} memory"
    if ends[0] is None or ends[1] is None:
        return text
    if not claim.rejected if claim else ends[0] <= 0 <= ends[1]:
        return f"{text}, which may be no difference"
    low, high = sorted(abs(end) for end in ends if end is not None)
    digits = words.precision_apart((low, high), (0.0,), words.amount, digits)
    span = f"{words.amount(low, digits)} to {words.amount(high, digits)} %"
    if words.amount(low, digits) == words.amount(high, digits):
        span = words.half_width((high - low) / 2, " %")
    return f"{text}{bracket(found, span, note)}"


def quality(comparison: Comparison, note: str = "") -> str:
    """`its eval accuracy is 0.37 points lower (95 %: ...), less than your margin of 0.5 (90 %: ...)`."""
    text = quality_of(comparison, note)
    return f"its {comparison.metric.name} {text}" if text else ""


def quality_of(comparison: Comparison, note: str = "") -> str:
    """The same without the name of the metric, to follow it: `is equivalent within 0.5 points (...)`."""
    found, metric = tested(comparison, "quality"), comparison.metric
    if found is None:
        return ""
    value = metric.with_unit(words.signed(found.value))
    if comparison.silence or not found.has_interval:
        return f"differs by {value}{bracket(found, '', note)}"
    span = words.interval(found.low, found.high, words.signed)
    if not comparison.claims:  # a control arm: what it shows is no claim
        return f"differs by {value}{bracket(found, span, note)}"
    equal, claim = comparison.claims.get(EQUIVALENCE), comparison.claims.get("quality")
    if claim is not None and claim.rejected:
        side = "higher" if claim.is_above else "lower"
        text = f"is {metric.with_unit(metric.size(found.value))} {side}{bracket(found, span, note)}"
        if equal is not None and equal.rejected:
            text += f", less than {metric.whose_margin} ({within(equal, metric.margin or 0.0)})"
        elif comparison.is_within_control("quality"):
            text += ", no more than no change at all shows here"
        return text
    if equal is not None and equal.rejected:
        span = within(equal, metric.margin or 0.0)
        return f"is equivalent within {metric.tolerance} ({value}; {span}{note and '; '}{note})"
    more = _more(more_for_quality(comparison)) if claim is not None and claim.p is not None else ""
    if metric.margin is None:
        more = ", and no margin is set within which it would count as the same"
    return f"is undecided ({value}; {words.level(found.confidence)}: {span}{note and '; '}{note}){more}"


def within(equal: Claim, margin: float) -> str:
    """The interval of a test of equivalence, `90 %: +0.02 to +0.25`, told from the margin that it lies in."""
    low, high = equal.estimate.low, equal.estimate.high
    decimals = words.precision_apart((low, high), (-margin, margin), words.signed, 2)
    span = words.interval(low, high, lambda end: words.signed(end, decimals))
    return f"{words.level(equal.estimate.confidence)}: {span}"


def bracket(found: Estimate, span: str, note: str = "") -> str:
    """` (95 %: 1.88 to 1.92; n = 5)`; what there is of it, or nothing."""
    level = f"{words.level(found.confidence)}: {span}" if span and span != words.NO_SPREAD else span
    inside = "; ".join(part for part in (level, note) if part)
    return f" ({inside})" if inside else ""


def basis(found: Estimate) -> str:
    """What a figure rests on: `n = 3, paired by seed`."""
    text = f"n{NBSP}={NBSP}{found.n}"
    if not found.has_interval:
        return text
    how = "partly paired by seed" if found.kind == PARTLY else "paired by seed"
    return f"{text}, {how if found.paired else 'not paired'}"


def more_seeds(count: int | None) -> str:
    """`about 12 more seeds would decide it`; None: no number that is looked at would."""
    if count is None:
        return f"no number of seeds up to {MOST:,} would decide it"
    return f"about {words.plural(count, 'more seed')} would decide it"


def _more(count: int | None) -> str:
    return f"; {more_seeds(count)}"
