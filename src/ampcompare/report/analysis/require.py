"""What somebody requires of a comparison, a gate for CI: `native: speedup >= 1.5, equivalent within 0.5`.

A requirement is met where it is *shown*: where the interval that was tested lies wholly on the required side,
not where the figure itself does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ampcompare.errors import UserError, did_you_mean
from ampcompare.report import words
from ampcompare.report.analysis import phrases
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.views import Ground, View
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.family import holm

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


@dataclass(frozen=True)
class Case:
    """What a term is held against: the runs, and the view of them at a margin (None: at that in use)."""

    ground: Ground
    at: Callable[[float | None], View]


def judge(terms: Sequence[Term], case: Case) -> tuple[Answer, ...]:
    """Each term held against the comparison. Raises UserError for a label that no group has."""
    found = []
    for term in terms:
        group = _group(case.ground.groups, term)
        shown, why = _failures(group, term) if term.kind == FAILURES else _compared(group, term, case)
        found.append(Answer(term, shown, why.replace(phrases.NBSP, " ")))
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


def _compared(group: Group, term: Term, case: Case) -> tuple[bool, str]:
    view = case.at(None)
    comparison = view.comparison(group.label)
    if comparison is None and group.value == view.baseline:
        raise UserError(
            f"--require '{term.label}: {term.text}': {term.label} is what others are compared with; "
            f"of it only {FAILURES} can be required"
        )
    if comparison is None:
        return False, f"there is no run of the baseline {view.baseline} to compare with"
    if comparison.refusal:
        return False, f"not compared, as {comparison.refusal}"
    return JUDGES[term.kind](comparison, term, case)


def _failures(group: Group, term: Term) -> tuple[bool, str]:
    outcomes = group.outcomes
    if outcomes.failures is None:
        return False, outcomes.others or "no run came to an end"
    why = outcomes.sentence or f"none of {words.plural(outcomes.failures.n, 'run')} failed"
    if going := outcomes.running:  # each of them may fail still
        runs = words.plural(len(going), "run")
        why += f", {runs} {'is' if len(going) == 1 else 'are'} still running"
    return len(outcomes.failed) + len(going) <= term.bound, why


def _speedup(comparison: Comparison, term: Term, _: Case) -> tuple[bool, str]:
    if (found := phrases.tested(comparison, "speed")) is None:
        return False, comparison.shared_machine or "no speed-up can be given"
    why = phrases.speed(comparison, mark=term.bound).removeprefix("trains ")
    if comparison.is_unfinished or not found.has_interval:
        return False, f"{why}: {_thin(comparison)}"
    if term.bound >= 1 and comparison.is_within_control("speed"):  # below 1 no speed-up is claimed
        return False, why
    return found.low is not None and found.low >= term.bound, why


def _memory(comparison: Comparison, term: Term, _: Case) -> tuple[bool, str]:
    if (found := phrases.tested(comparison, "memory")) is None:
        return False, "no memory can be compared"
    digits = words.precision_apart((found.low, found.high), (1.0, term.bound), words.number, 3)
    span = words.interval(found.low, found.high, lambda end: f"{words.number(end, digits)}×", "×")
    why = f"{words.ratio(found.value)} the memory{phrases.bracket(found, span)}"
    if comparison.is_unfinished or not found.has_interval:
        return False, f"{why}: {_thin(comparison)}"
    return found.high is not None and found.high <= term.bound, why


def _equivalent(comparison: Comparison, term: Term, case: Case) -> tuple[bool, str]:
    seen = case.at(term.bound).comparison(comparison.group.label)
    if seen is None or (silent := _silent(seen)):
        return False, silent if seen else "it is not compared"
    return seen.is_equivalent, f"{seen.metric.name} {phrases.quality_of(seen)}"


def _not_lower(comparison: Comparison, term: Term, case: Case) -> tuple[bool, str]:
    metric = comparison.metric
    if metric.falls:
        raise UserError(
            f"--require '{term.label}: {term.text}': {metric.key} is the better the lower it is; require "
            f"'{EQUIVALENT}'"
        )
    if silent := _silent(comparison):
        return False, silent
    p_values: dict[Hashable, float] = {
        c.group.label: p
        for c in case.at(None).comparisons
        if "quality" in c.claims and c.quality and (p := c.quality.p_of(-term.bound, "above")) is not None
    }
    tested = holm(p_values, case.ground.levels.one_sided).get(comparison.group.label)
    if tested is None or comparison.quality is None:
        return False, _thin(comparison)
    at = comparison.quality.at(1 - 2 * tested.level)
    decimals = words.precision_apart((at.low,), (-term.bound,), words.signed, 2)
    low = "" if at.low is None else words.signed(at.low, decimals)
    why = f"{metric.with_unit(words.signed(at.value))}, at least {low} ({words.level(1 - tested.level)})"
    return tested.rejected, f"{metric.name} {why}"


def _silent(comparison: Comparison) -> str:
    """Why nothing can be shown of quality; nothing where something can."""
    metric = comparison.metric
    if comparison.silence or comparison.is_stuck:
        return (
            comparison.silence
            or f"{metric.name} of {comparison.group.label} is that of a run that learned nothing"
        )
    if comparison.quality is None:
        return f"no {metric.name} of finished runs on both sides"
    return "" if comparison.quality.has_interval else _thin(comparison)


def _thin(comparison: Comparison) -> str:
    return "not finished" if comparison.is_unfinished else f"not enough seeds to tell (n = {comparison.n})"


JUDGES: dict[str, Callable[..., tuple[bool, str]]] = {
    SPEEDUP: _speedup,
    MEMORY: _memory,
    EQUIVALENT: _equivalent,
    NOT_LOWER: _not_lower,
}
