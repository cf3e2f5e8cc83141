"""What somebody requires of a comparison, a gate for CI: `native: speedup >= 1.5, equivalent within 0.5`.

A requirement is met where it is *shown*: where the interval that was tested lies wholly on the required side,
not where the figure itself does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcompare.errors import UserError, did_you_mean
from ampcompare.report import words
from ampcompare.report.analysis.comparison import EMULATES, GAINS, NOT_FINISHED, QUALITY, SPEED, Comparison
from ampcompare.report.analysis.comparison import MEMORY as MEMORY_USED
from ampcompare.report.runs.checks import learned_nothing
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.estimate import Estimate

NUMBER = r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(?:points?|x|×)?"
SPEEDUP, MEMORY, EQUIVALENT = "speedup >= X", "memory <= X", "equivalent within X"
NOT_LOWER, FAILURES = "not lower by X", "failures <= N"
TERMS = {
    SPEEDUP: re.compile(rf"speed-?up\s*>={NUMBER}", re.IGNORECASE),
    MEMORY: re.compile(rf"memory\s*<={NUMBER}", re.IGNORECASE),
    EQUIVALENT: re.compile(rf"equivalent\s+within{NUMBER}", re.IGNORECASE),
    NOT_LOWER: re.compile(rf"not\s+lower\s+by{NUMBER}", re.IGNORECASE),
    FAILURES: re.compile(rf"failures?\s*<={NUMBER}", re.IGNORECASE),
}


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
    return [term for text in texts for term in _parsed(text)]


def _parsed(text: str) -> list[Term]:
    label, colon, rest = text.rpartition(": ")
    if not colon or not label.strip():
        raise UserError(f"--require {text!r}: expected 'LABEL: TERM', such as 'native: speedup >= 1.5'")
    return [_term(label.strip(), part.strip(), text) for part in rest.split(",")]


def _term(label: str, text: str, whole: str) -> Term:
    for kind, pattern in TERMS.items():
        if found := pattern.fullmatch(text):
            try:
                bound = float(found[1])
            except ValueError:
                break
            is_count = kind == FAILURES
            if not math.isfinite(bound) or (bound != int(bound) if is_count else bound <= 0):
                expected = "a whole number" if is_count else "a number above 0"
                raise UserError(f"--require {whole!r}: {text!r}: expected {expected}")
            return Term(label, kind, bound, text)
    near = did_you_mean(text, TERMS, 0.5)
    raise UserError(
        f"--require {whole!r}: {text!r} is no term; {near and near + ' '}known: {', '.join(TERMS)}"
    )


def judge(
    terms: Sequence[Term], groups: Sequence[Group], comparisons: Sequence[Comparison], baseline: str
) -> tuple[Answer, ...]:
    """Each term held against the comparison. Raises UserError for a label that no group has."""
    found = []
    for term in terms:
        group = _group(groups, term)
        shown, why = _judged(term, group, comparisons, baseline)
        found.append(Answer(term, shown, why))
    return tuple(found)


def _group(groups: Sequence[Group], term: Term) -> Group:
    by_label = {g.label: g for g in groups}
    if term.label in by_label:
        return by_label[term.label]
    if len(alike := [g for g in groups if g.value == term.label]) == 1:
        return alike[0]
    hint = did_you_mean(term.label, by_label, 0.5)
    known = words.some([repr(label) for label in by_label], 8)
    raise UserError(f"--require {term.label!r}: no such group; {hint and hint + ' '}there are {known}")


def _judged(term: Term, group: Group, comparisons: Sequence[Comparison], baseline: str) -> tuple[bool, str]:
    if term.kind == FAILURES:
        outcomes = group.outcomes  # one that is still running may fail
        is_shown = outcomes.ended > 0 and outcomes.failed + outcomes.running <= term.bound
        return is_shown, outcomes.words
    if group.value == baseline:
        raise UserError(
            f"--require '{term.label}: {term.text}': {term.label} is what others are compared with; "
            f"of it only {FAILURES} can be required"
        )
    comparison = next((c for c in comparisons if c.group is group), None)
    if comparison is None:
        return False, f"there is no run of the baseline {baseline} to compare with"
    if comparison.refusal:
        return False, f"not compared: {comparison.refusal}"
    question = {SPEEDUP: SPEED, MEMORY: MEMORY_USED}.get(term.kind, QUALITY)
    metric, claim = comparison.metric, comparison.claims.get(question)
    if term.kind == NOT_LOWER and metric.falls:
        raise UserError(
            f"--require '{term.label}: {term.text}': {metric.key} is the better the lower it is; require "
            f"'{EQUIVALENT}'"
        )
    if claim is None:
        return False, "it is the control" if comparison.is_control else NOT_FINISHED
    found = claim.estimate
    is_silent = comparison.silence if question == QUALITY else claim.why.startswith(EMULATES)
    if found is None or not found.has_interval or is_silent:
        return False, f"cannot tell: {claim.why}"
    low, high = found.ends
    assert low is not None
    assert high is not None
    if question != QUALITY:
        span = _span(found, words.number, (1.0, term.bound), "×")
        beside = comparison.beside_control.get(question)
        # A gain must be one beside the control, too; to be no worse than so much need not.
        is_gain = term.bound >= 1 if question == SPEED else term.bound < 1
        holds = not is_gain or beside is None or not set(GAINS).isdisjoint(claim.shown)
        if question == SPEED:
            return holds and low >= term.bound, f"{span} as fast"
        return holds and high <= term.bound, f"{span} the memory"
    said = metric.with_unit(_span(found, words.signed, (-term.bound, term.bound), ""))
    if stuck := learned_nothing(group, metric):
        return False, stuck
    if found.error == 0:
        return False, f"cannot tell: {claim.why}"
    if term.kind == NOT_LOWER:
        return low > -term.bound, f"{metric.name} {said}"
    return -term.bound < low and high < term.bound, f"{metric.name} {said}"


def _span(
    found: Estimate, show: Callable[[float | None, int], str], marks: tuple[float, ...], unit: str
) -> str:
    """`1.43× (95 %: 1.38 to 1.47)`, with the digits that tell the ends from the marks."""
    least = 3 if unit else 2
    digits = words.precision_apart(found.ends, marks, show, least)
    span = words.interval(found.low, found.high, lambda end: show(end, digits), unit)
    return f"{show(found.value, least)}{unit} ({words.level(found.level)}: {span})"
