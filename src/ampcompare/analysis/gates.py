"""Gates for CI: what a comparison must show, such as `native: speedup >= 1.5, equivalent within 0.5`.

A gate passes only if it is shown: the whole interval must lie on the required side, not just the estimate.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.analysis import phrases
from ampcompare.analysis.claims import GAINS, NO_VERDICT, NOT_FINISHED, Claim, is_same_speed, largest_loss
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.analysis.scale import DIFFERENCE, RATIO
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runtime import formatting

SPEEDUP, LESS_MEMORY, EQUIVALENT = "speedup >= X", "memory <= X", "equivalent within X"
NOT_LOWER, NOT_HIGHER = "not lower by X", "not higher by X"
FAILURES = "failures <= N"
SAME = "same speed within X%"
GATE_KINDS = (SPEEDUP, LESS_MEMORY, EQUIVALENT, NOT_LOWER, NOT_HIGHER, FAILURES, SAME)
QUESTIONS = {SPEEDUP: SPEED, SAME: SPEED, LESS_MEMORY: MEMORY}  # all other kinds ask about quality
GATE_PATTERN = re.compile(
    r"(?:(speed-?up *>=)|(memory *<=)|(equivalent +within)|(not +lower +by)|(not +higher +by)|(failures? *<=)"
    r"|(same +speed +within)) *(\d*\.?\d+(?:e[+-]?\d{1,2})?) *(points?|x|×|%)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Gate:
    """One requirement on a group.

    Attributes:
        label: The label of the group, its value of the compared key, or its name in the report.
        kind: One of GATE_KINDS.
        bound: The number of the requirement.
        text: The requirement as it was written.
    """

    label: str
    kind: str
    bound: float
    text: str


@dataclass(frozen=True)
class GateResult:
    """The result of a gate: whether it is shown, and why."""

    gate: Gate
    is_shown: bool
    why: str

    @property
    def sentence(self) -> str:
        """The result in words: `not passed: native: speedup >= 1.5: 1.43× as fast (95% CI ...)`."""
        start = "passed" if self.is_shown else "not passed"
        return f"{start}: {self.gate.label}: {self.gate.text}: {self.why}"


def parse_gates(texts: Sequence[str]) -> list[Gate]:
    """Return the gates of every `--require 'LABEL: TERM, TERM'`. A label may contain `: `.

    Raises:
        UserError: A text has another form, or an unknown term.
    """
    gates = []
    for text in texts:
        label, colon, terms = text.rpartition(": ")
        if not colon or not label.strip():
            raise UserError(f"--require {text!r}: expected 'LABEL: TERM', such as 'native: speedup >= 1.5'")
        gates += [_parse_term(term.strip(), label.strip(), text) for term in terms.split(",")]
    return gates


def _parse_term(term: str, label: str, text: str) -> Gate:
    match = GATE_PATTERN.fullmatch(term)
    if match is None:
        hint = did_you_mean(term, GATE_KINDS, 0.5, end=" ")
        raise UserError(
            f"--require {text!r}: {term!r} is not a requirement; {hint}allowed: {', '.join(GATE_KINDS)}"
        )
    kind = next(kind for kind, matched in zip(GATE_KINDS, match.groups(), strict=False) if matched)
    bound = float(match[len(GATE_KINDS) + 1])
    if kind == FAILURES and not bound.is_integer():
        raise UserError(f"--require {text!r}: {term!r}: expected a whole number")
    if kind != FAILURES and bound <= 0:
        raise UserError(f"--require {text!r}: {term!r}: expected a number above 0")
    unit = match[len(GATE_KINDS) + 2]
    if kind in (SPEEDUP, LESS_MEMORY) and unit == "%":
        raise UserError(f"--require {text!r}: {term!r}: expected a factor, such as 1.5 for 150%")
    return Gate(label, kind, bound, term)


def check_gates(findings: Findings, gates: Sequence[Gate]) -> tuple[GateResult, ...]:
    """Check every gate against the comparison.

    Raises:
        UserError: A label that no group has, or a requirement that cannot be asked of the group.
    """
    return tuple(GateResult(gate, *_check(gate, findings)) for gate in gates)


def _check(gate: Gate, findings: Findings) -> tuple[bool, str]:
    """Return whether a gate is shown, and the reason with the interval."""
    group = _group(findings.groups, gate)
    if gate.kind == FAILURES:
        outcomes = group.outcomes
        return outcomes.ended > 0 and outcomes.failed + outcomes.running <= gate.bound, outcomes.text
    if group.value == findings.baseline_value:
        raise UserError(
            f"--require '{gate.label}: {gate.text}': {gate.label} is the baseline, of which only "
            f"'{FAILURES}' can be required"
        )
    comparison = findings.comparison(group.label)
    if comparison is None:
        return False, findings.missing_baseline
    if comparison.not_compared_reason:
        return False, f"not compared: {comparison.not_compared_reason}"
    question = QUESTIONS.get(gate.kind, QUALITY)
    _check_direction(gate, group.metric)
    claim = comparison.claims.get(question)
    if claim is None:
        return False, "this group is the A/A control" if comparison.is_control else NOT_FINISHED.text
    if question == QUALITY and claim.estimate and comparison.degenerate:
        return False, comparison.degenerate.text
    if claim.estimate is None or not claim.estimate.has_interval or claim.answer == NO_VERDICT:
        return False, f"{NO_VERDICT}: {claim.why}"
    return _check_interval(gate, claim.estimate, claim, group.metric)


def _check_direction(gate: Gate, metric: ComparedMetric) -> None:
    """Refuse a gate for the other direction of the metric.

    Raises:
        UserError: It is one.
    """
    right = NOT_HIGHER if metric.lower_is_better else NOT_LOWER
    if gate.kind in {NOT_HIGHER, NOT_LOWER} - {right}:
        raise UserError(
            f"--require '{gate.label}: {gate.text}': {metric.better} is better for {metric.key}; use "
            f"'{right}'"
        )


def _check_interval(gate: Gate, estimate: Estimate, claim: Claim, metric: ComparedMetric) -> tuple[bool, str]:
    """Return whether the interval of a claim lies on the required side of the bound of a gate."""
    if claim.question != QUALITY:
        return _check_ratio(gate, estimate, claim)
    low, high = estimate.span
    worst = largest_loss(estimate, metric)
    if gate.kind == EQUIVALENT:
        worst = max(-low, high)
    bounds = (-gate.bound, gate.bound)
    difference = phrases.difference(estimate, metric, *bounds)
    interval = DIFFERENCE.confidence_interval(estimate, (*metric.zone, *bounds))
    return worst is not None and worst < gate.bound, f"{metric.name} {difference} ({interval})"


def _check_ratio(gate: Gate, estimate: Estimate, claim: Claim) -> tuple[bool, str]:
    """Return whether the interval of a ratio of speed or memory lies on the required side of the bound."""
    low, high = estimate.span
    within = gate.bound / 100
    limits = [1 / (1 + within), 1 + within] if gate.kind == SAME else [gate.bound]
    ci = f"({RATIO.confidence_interval(estimate, limits)})"
    ratio = RATIO.value(estimate, limits)
    if gate.kind == SAME:
        return is_same_speed(estimate, within), f"{ratio} as fast {ci}"
    # A gain must also be shown relative to the control of the sweep or of the benchmark. "At most so much
    # worse" need not.
    is_gain = gate.bound >= 1 if gate.kind == SPEEDUP else gate.bound < 1
    holds = not is_gain or claim.finding in GAINS
    noun = "as fast" if gate.kind == SPEEDUP else "the memory"
    is_beyond = low >= gate.bound if gate.kind == SPEEDUP else high <= gate.bound
    reason = claim.reason or claim.no_side_reason
    if not holds and reason:
        return False, f"{ratio} {noun} {ci}, but {reason.text}"
    return holds and is_beyond, f"{ratio} {noun} {ci}"


def _group(groups: Sequence[Group], gate: Gate) -> Group:
    """Return the group that a gate is about."""
    by_label = {group.label: group for group in groups}
    if gate.label in by_label:
        return by_label[gate.label]
    named = [group for group in groups if gate.label in (group.value, group.display_name)]
    if len(named) == 1:
        return named[0]
    hint = did_you_mean(gate.label, by_label, 0.5, end=" ")
    known = formatting.some([*map(repr, by_label)], 8)
    raise UserError(f"--require {gate.label!r}: no such group; {hint}known groups: {known}")
