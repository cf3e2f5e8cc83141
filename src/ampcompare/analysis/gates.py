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
GATE_KINDS = (SPEEDUP, LESS_MEMORY, EQUIVALENT, NOT_LOWER, FAILURES)
QUESTIONS = {SPEEDUP: SPEED, LESS_MEMORY: MEMORY}  # the others are of quality
GATE_PATTERN = re.compile(
    r"(?:(speed-?up *>=)|(memory *<=)|(equivalent +within)|(not +lower +by)|(failures? *<=)) *"
    r"(\d*\.?\d+(?:e[+-]?\d{1,2})?) *(?:points?|x|×)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Gate:
    """One thing that is required of a group: `kind` is one of TERMS, `text` as it was written."""

    label: str
    kind: str
    bound: float
    text: str


@dataclass(frozen=True)
class GateResult:
    """Whether a term `is_shown`, and `why` or why not: in words, with the interval it was held against."""

    gate: Gate
    is_shown: bool
    why: str

    @property
    def sentence(self) -> str:
        """`not shown: native: speedup >= 1.5: 1.43× as fast as none (95 %: 1.38 to 1.47)`."""
        start = "shown" if self.is_shown else "not shown"
        return f"{start}: {self.gate.label}: {self.gate.text}: {self.why}"


def parse_gates(texts: Sequence[str]) -> list[Gate]:
    """The terms of every `--require`: `LABEL: TERM, TERM`; a label may hold `: `. Raises UserError."""
    found = []
    for text in texts:
        label, colon, rest = text.rpartition(": ")
        if not colon or not label.strip():
            raise UserError(f"--require {text!r}: expected 'LABEL: TERM', such as 'native: speedup >= 1.5'")
        for part in map(str.strip, rest.split(",")):
            if not (match := GATE_PATTERN.fullmatch(part)):
                near = did_you_mean(part, GATE_KINDS, 0.5)
                known = f"{near and near + ' '}known: {', '.join(GATE_KINDS)}"
                raise UserError(f"--require {text!r}: {part!r} is no term; {known}")
            kind = next(kind for kind, said in zip(GATE_KINDS, match.groups(), strict=False) if said)
            bound = float(match[len(GATE_KINDS) + 1])
            if bound != int(bound) if kind == FAILURES else bound <= 0:
                expected = "a whole number" if kind == FAILURES else "a number above 0"
                raise UserError(f"--require {text!r}: {part!r}: expected {expected}")
            found.append(Gate(label.strip(), kind, bound, part))
    return found


def check_gates(findings: Findings, gates: Sequence[Gate]) -> tuple[GateResult, ...]:
    """Each term held against the comparison. Raises UserError for a label that no group has, and for what
    cannot be asked of it.
    """
    return tuple(GateResult(gate, *_check(gate, findings)) for gate in gates)


def _check(gate: Gate, findings: Findings) -> tuple[bool, str]:
    group, where = _group(findings.groups, gate), f"--require '{gate.label}: {gate.text}'"
    if gate.kind == FAILURES:
        outcomes = group.outcomes  # one that is still running may fail
        return outcomes.ended > 0 and outcomes.failed + outcomes.running <= gate.bound, outcomes.text
    if group.value == findings.baseline_value:
        only = f"what others are compared with; of it only {FAILURES} can be required"
        raise UserError(f"{where}: {gate.label} is {only}")
    comparison = findings.comparison(group.label)
    if comparison is None or comparison.not_compared_reason:
        refusal = comparison and f"not compared: {comparison.not_compared_reason}"
        return False, refusal or f"there is no run of the baseline {findings.baseline_value} to compare with"
    question, metric = QUESTIONS.get(gate.kind, QUALITY), comparison.group.metric
    if gate.kind == NOT_LOWER and metric.lower_is_better:
        better = f"{metric.key} is the better the lower it is; require '{EQUIVALENT}'"
        raise UserError(f"{where}: {better}")
    claim = comparison.claims.get(question)
    if claim is None:
        return False, "it is the control" if comparison.is_control else NOT_FINISHED
    found, is_quality = claim.estimate, question == QUALITY
    if is_quality and found and comparison.degenerate_reason:
        return False, comparison.degenerate_reason
    if found is None or found.low is None or found.high is None or claim.answer == CANNOT_TELL:
        return False, f"cannot tell: {claim.why}"
    show: Callable[[float, int], str] = formatting.signed if is_quality else formatting.number
    marks, unit, least = ((-gate.bound, gate.bound), "", 2) if is_quality else ((1.0, gate.bound), "×", 3)
    # With the digits that tell the ends from the marks.
    digits = formatting.digits_to_distinguish(found.ends, marks, show, least)
    span = formatting.interval(found.low, found.high, lambda end: show(end, digits))
    said = f"{show(found.value, least)}{unit} ({formatting.level(found.level)}: {span})"
    if is_quality:
        holds = -gate.bound < found.low and (gate.kind == NOT_LOWER or found.high < gate.bound)
        return holds, f"{metric.name} {metric.with_unit(said)}"
    # A gain must be one beside the control, too; to be no worse than so much need not.
    is_gain = gate.bound >= 1 if question == SPEED else gate.bound < 1
    holds = not (is_gain and comparison.has_control and set(GAINS).isdisjoint(claim.shown))
    if question == SPEED:
        return holds and found.low >= gate.bound, f"{said} as fast"
    return holds and found.high <= gate.bound, f"{said} the memory"


def _group(groups: Sequence[Group], gate: Gate) -> Group:
    by_label = {group.label: group for group in groups}
    alike = [group for group in groups if group.value == gate.label]
    if gate.label in by_label or len(alike) == 1:
        return by_label.get(gate.label) or alike[0]
    hint, known = did_you_mean(gate.label, by_label, 0.5), formatting.some([*map(repr, by_label)], 8)
    raise UserError(f"--require {gate.label!r}: no such group; {hint and hint + ' '}there are {known}")
