"""What somebody requires of a comparison, a gate for CI: `native: speedup >= 1.5, equivalent within 0.5`.

A requirement is met where it is *shown*: where the interval that was tested lies wholly on the required side,
not where the figure itself does.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcompare.analysis.comparison import CANNOT_TELL, GAINS, NOT_FINISHED
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runtime import formatting

SPEEDUP, LESS_MEMORY, EQUIVALENT = "speedup >= X", "memory <= X", "equivalent within X"
NOT_LOWER, FAILURES = "not lower by X", "failures <= N"
TERMS = (SPEEDUP, LESS_MEMORY, EQUIVALENT, NOT_LOWER, FAILURES)
QUESTIONS = {SPEEDUP: SPEED, LESS_MEMORY: MEMORY}  # the others are of quality
TERM = re.compile(
    r"(?:(speed-?up *>=)|(memory *<=)|(equivalent +within)|(not +lower +by)|(failures? *<=)) *"
    r"(\d*\.?\d+(?:e[+-]?\d{1,2})?) *(?:points?|x|×)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Term:
    """One thing that is required of a group: `kind` is one of TERMS, `text` as it was written."""

    label: str
    kind: str
    bound: float
    text: str


@dataclass(frozen=True)
class Answer:
    """Whether a term `is_shown`, and `why` or why not: in words, with the interval it was held against."""

    term: Term
    is_shown: bool
    why: str

    @property
    def sentence(self) -> str:
        """`not shown: native: speedup >= 1.5: 1.43× as fast as none (95 %: 1.38 to 1.47)`."""
        start = "shown" if self.is_shown else "not shown"
        return f"{start}: {self.term.label}: {self.term.text}: {self.why}"


def parse(texts: Sequence[str]) -> list[Term]:
    """The terms of every `--require`: `LABEL: TERM, TERM`; a label may hold `: `. Raises UserError."""
    found = []
    for text in texts:
        label, colon, rest = text.rpartition(": ")
        if not colon or not label.strip():
            raise UserError(f"--require {text!r}: expected 'LABEL: TERM', such as 'native: speedup >= 1.5'")
        for part in map(str.strip, rest.split(",")):
            if not (match := TERM.fullmatch(part)):
                near = did_you_mean(part, TERMS, 0.5)
                known = f"{near and near + ' '}known: {', '.join(TERMS)}"
                raise UserError(f"--require {text!r}: {part!r} is no term; {known}")
            kind = next(kind for kind, said in zip(TERMS, match.groups(), strict=False) if said)
            bound = float(match[len(TERMS) + 1])
            if bound != int(bound) if kind == FAILURES else bound <= 0:
                expected = "a whole number" if kind == FAILURES else "a number above 0"
                raise UserError(f"--require {text!r}: {part!r}: expected {expected}")
            found.append(Term(label.strip(), kind, bound, part))
    return found


def judge(of: Findings, required: Sequence[Term]) -> tuple[Answer, ...]:
    """Each term held against the comparison. Raises UserError for a label that no group has, and for what
    cannot be asked of it.
    """
    return tuple(Answer(term, *_judged(term, of)) for term in required)


def _judged(term: Term, of: Findings) -> tuple[bool, str]:
    group, where = _group(of.groups, term), f"--require '{term.label}: {term.text}'"
    if term.kind == FAILURES:
        outcomes = group.outcomes  # one that is still running may fail
        return outcomes.ended > 0 and outcomes.failed + outcomes.running <= term.bound, outcomes.words
    if group.value == of.baseline_value:
        only = f"what others are compared with; of it only {FAILURES} can be required"
        raise UserError(f"{where}: {term.label} is {only}")
    comparison = of.comparison(group.label)
    if comparison is None or comparison.refusal:
        refusal = comparison and f"not compared: {comparison.refusal}"
        return False, refusal or f"there is no run of the baseline {of.baseline_value} to compare with"
    question, metric = QUESTIONS.get(term.kind, QUALITY), comparison.group.metric
    if term.kind == NOT_LOWER and metric.falls:
        better = f"{metric.key} is the better the lower it is; require '{EQUIVALENT}'"
        raise UserError(f"{where}: {better}")
    claim = comparison.claims.get(question)
    if claim is None:
        return False, "it is the control" if comparison.is_control else NOT_FINISHED
    found, is_quality = claim.estimate, question == QUALITY
    if is_quality and found and comparison.stuck:
        return False, comparison.stuck
    if found is None or found.low is None or found.high is None or claim.answer == CANNOT_TELL:
        return False, f"cannot tell: {claim.why}"
    show: Callable[[float, int], str] = formatting.signed if is_quality else formatting.number
    marks, unit, least = ((-term.bound, term.bound), "", 2) if is_quality else ((1.0, term.bound), "×", 3)
    # With the digits that tell the ends from the marks.
    digits = formatting.digits_to_distinguish(found.ends, marks, show, least)
    span = formatting.interval(found.low, found.high, lambda end: show(end, digits))
    said = f"{show(found.value, least)}{unit} ({formatting.level(found.level)}: {span})"
    if is_quality:
        holds = -term.bound < found.low and (term.kind == NOT_LOWER or found.high < term.bound)
        return holds, f"{metric.name} {metric.with_unit(said)}"
    # A gain must be one beside the control, too; to be no worse than so much need not.
    is_gain = term.bound >= 1 if question == SPEED else term.bound < 1
    holds = not (is_gain and comparison.has_control and set(GAINS).isdisjoint(claim.shown))
    if question == SPEED:
        return holds and found.low >= term.bound, f"{said} as fast"
    return holds and found.high <= term.bound, f"{said} the memory"


def _group(groups: Sequence[Group], term: Term) -> Group:
    by_label = {group.label: group for group in groups}
    alike = [group for group in groups if group.value == term.label]
    if term.label in by_label or len(alike) == 1:
        return by_label.get(term.label) or alike[0]
    hint, known = did_you_mean(term.label, by_label, 0.5), formatting.some([*map(repr, by_label)], 8)
    raise UserError(f"--require {term.label!r}: no such group; {hint and hint + ' '}there are {known}")
