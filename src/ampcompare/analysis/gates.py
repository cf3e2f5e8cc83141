"""Gates for CI: what a comparison must show, such as `native: speedup >= 1.5, equivalent within 0.5`.

A gate passes only if it is shown: the whole interval must lie on the required side, not just the estimate.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcompare.analysis.claims import GAINS, NO_VERDICT, is_same_speed, largest_loss
from ampcompare.analysis.comparison import NOT_FINISHED
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runtime import formatting

SPEEDUP, LESS_MEMORY, EQUIVALENT = "speedup >= X", "memory <= X", "equivalent within X"
NOT_LOWER, NOT_HIGHER, FAILURES = "not lower by X", "not higher by X", "failures <= N"
SAME = "same speed within X%"
GATE_KINDS = (SPEEDUP, LESS_MEMORY, EQUIVALENT, NOT_LOWER, NOT_HIGHER, FAILURES, SAME)
QUESTIONS = {SPEEDUP: SPEED, SAME: SPEED, LESS_MEMORY: MEMORY}  # all other kinds ask about quality
GATE_PATTERN = re.compile(
    r"(?:(speed-?up *>=)|(memory *<=)|(equivalent +within)|(not +lower +by)|(not +higher +by)|(failures? *<=)"
    r"|(same +speed +within)) *(\d*\.?\d+(?:e[+-]?\d{1,2})?) *(?:points?|x|×|%)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Gate:
    """One requirement on a group.

    Attributes:
        label: The label of the group, or its value of the compared key.
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
        label, colon, rest = text.rpartition(": ")
        if not colon or not label.strip():
            raise UserError(f"--require {text!r}: expected 'LABEL: TERM', such as 'native: speedup >= 1.5'")
        for part in map(str.strip, rest.split(",")):
            if not (match := GATE_PATTERN.fullmatch(part)):
                hint = did_you_mean(part, GATE_KINDS, 0.5)
                known = f"{hint and hint + ' '}allowed: {', '.join(GATE_KINDS)}"
                raise UserError(f"--require {text!r}: {part!r} is not a requirement; {known}")
            kind = next(kind for kind, matched in zip(GATE_KINDS, match.groups(), strict=False) if matched)
            bound = float(match[len(GATE_KINDS) + 1])
            if bound != int(bound) if kind == FAILURES else bound <= 0:
                expected = "a whole number" if kind == FAILURES else "a number above 0"
                raise UserError(f"--require {text!r}: {part!r}: expected {expected}")
            gates.append(Gate(label.strip(), kind, bound, part))
    return gates


def check_gates(findings: Findings, gates: Sequence[Gate]) -> tuple[GateResult, ...]:
    """Check every gate against the comparison.

    Raises:
        UserError: A label that no group has, or a requirement that cannot be asked of the group.
    """
    return tuple(GateResult(gate, *_check(gate, findings)) for gate in gates)


def _check(gate: Gate, findings: Findings) -> tuple[bool, str]:
    """Return whether a gate is shown, and the reason with the interval."""
    group, source = _group(findings.groups, gate), f"--require '{gate.label}: {gate.text}'"
    if gate.kind == FAILURES:
        outcomes = group.outcomes  # a running run may still fail
        return outcomes.ended > 0 and outcomes.failed + outcomes.running <= gate.bound, outcomes.text
    if group.value == findings.baseline_value:
        explanation = f"the baseline, of which only '{FAILURES}' can be required"
        raise UserError(f"{source}: {gate.label} is {explanation}")
    comparison = findings.comparison(group.label)
    if comparison is None or comparison.not_compared_reason:
        reason = comparison and f"not compared: {comparison.not_compared_reason}"
        return False, reason or f"no run of the baseline {findings.baseline_name} to compare with"
    question, metric = QUESTIONS.get(gate.kind, QUALITY), comparison.group.metric
    if gate.kind == NOT_LOWER and metric.lower_is_better:
        raise UserError(f"{source}: lower is better for {metric.key}; use '{NOT_HIGHER}'")
    if gate.kind == NOT_HIGHER and not metric.lower_is_better:
        raise UserError(f"{source}: higher is better for {metric.key}; use '{NOT_LOWER}'")
    claim = comparison.claims.get(question)
    if claim is None:
        return False, "this group is the A/A control" if comparison.is_control else NOT_FINISHED
    estimate, is_quality = claim.estimate, question == QUALITY
    if is_quality and estimate and comparison.degenerate_reason:
        return False, comparison.degenerate_reason
    if estimate is None or estimate.low is None or estimate.high is None or claim.answer == NO_VERDICT:
        return False, f"{NO_VERDICT}: {claim.why}"
    show: Callable[[float, int], str] = formatting.signed if is_quality else formatting.number
    unit, least = ("", 2) if is_quality else ("×", 3)
    limits = [-gate.bound, gate.bound] if is_quality else [1.0, gate.bound]
    if gate.kind == SAME:
        limits = [1.0, 1 / (1 + gate.bound / 100), 1 + gate.bound / 100]
    # With enough digits to distinguish the ends from the limits.
    digits = formatting.digits_to_distinguish(estimate.ends, limits, show, least)
    span = formatting.interval(estimate.low, estimate.high, lambda end: show(end, digits))
    value_text, ci = f"{show(estimate.value, least)}{unit}", f"({formatting.level(estimate.level)} CI {span})"
    if is_quality:
        loss = largest_loss(estimate, metric)
        gain = max(-estimate.low, estimate.high) if gate.kind == EQUIVALENT else loss
        return gain is not None and gain < gate.bound, f"{metric.name} {metric.with_unit(value_text)} {ci}"
    if gate.kind == SAME:
        return is_same_speed(estimate, gate.bound / 100), f"{value_text} as fast {ci}"
    # A gain must also be shown relative to the control of the sweep or of the benchmark. "At most so much
    # worse" need not.
    is_gain = gate.bound >= 1 if question == SPEED else gate.bound < 1
    holds = not is_gain or not set(GAINS).isdisjoint(claim.shown)
    why = f" ({claim.why})" if not holds and claim.why else ""
    if question == SPEED:
        return holds and estimate.low >= gate.bound, f"{value_text} as fast {ci}{why}"
    return holds and estimate.high <= gate.bound, f"{value_text} the memory {ci}{why}"


def _group(groups: Sequence[Group], gate: Gate) -> Group:
    """Return the group that a gate is about."""
    by_label = {group.label: group for group in groups}
    with_value = [group for group in groups if group.value == gate.label]
    if gate.label in by_label or len(with_value) == 1:
        return by_label.get(gate.label) or with_value[0]
    hint, known = did_you_mean(gate.label, by_label, 0.5), formatting.some([*map(repr, by_label)], 8)
    raise UserError(f"--require {gate.label!r}: no such group; {hint and hint + ' '}known groups: {known}")
