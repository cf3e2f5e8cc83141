"""One group against the baseline, like with like, and what is claimed of it: one interval a figure.

For each question (speed, memory, quality) the intervals of all groups that were asked for hold together in
95 %, over all looks that were planned. What an interval shows can be seen: on one side of "no change" is
faster, slower, smaller, larger, better or worse; inside the margin is equivalent. That is stricter than two
one-sided tests at 5 %, and one interval to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampcompare.metrics import EMULATED
from ampcompare.report.analysis.benched import Bench, Benched
from ampcompare.report.runs import table
from ampcompare.report.runs.checks import learned_nothing
from ampcompare.report.runs.groups import Group, again
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import NOT_SET, arm_of, differing_keys, follows
from ampcompare.report.runs.table import RUN, shares_machine
from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.statistics.family import more_seeds
from ampcompare.report.statistics.samples import FEWEST, difference
from ampcompare.report.words import listed, some

SPEED, MEMORY, QUALITY, ENERGY, TIME = "speed", "memory", "quality", "energy", "time"
QUESTIONS = (SPEED, MEMORY, QUALITY)  # of which something is claimed
COLUMNS = {
    SPEED: table.SPEED,
    MEMORY: table.MEMORY,
    QUALITY: table.QUALITY,
    ENERGY: table.ENERGY,
    TIME: table.TO_TARGET,
}
# What an interval above, and below, no change is called.
SIDES = {SPEED: ("faster", "slower"), MEMORY: ("larger", "smaller"), QUALITY: ("better", "worse")}
EQUIVALENT = "equivalent"
GAINS = ("faster", "smaller")  # which must hold against the control's runs alike
ENVIRONMENT = "environment."
MAX_KEYS = 6
FIRST, LAST = "first", "last"
NOT_FINISHED = "not finished"
HOLDS_NO_CHANGE = "the interval holds no change"
NOT_SETTLED, CANNOT_TELL, NOT_COMPARED = "not settled", "cannot tell", "not compared"
EMULATES = "this processor emulates"


@dataclass(frozen=True)
class Claim:
    """What is shown of one question, by the interval of `estimate`: words of SIDES, and EQUIVALENT; or, where
    nothing is, `why` it cannot be told. `is_open`: more seeds may tell; `more_seeds`: how many; None where no
    number is known that would.
    """

    question: str
    estimate: Estimate | None
    shown: tuple[str, ...] = ()
    why: str = ""
    more_seeds: int | None = None
    is_open: bool = False

    @property
    def answer(self) -> str:
        """What is shown, or in a word that nothing is."""
        if self.estimate is None:
            return NOT_COMPARED
        nothing = NOT_SETTLED if self.is_open and self.estimate.has_interval else CANNOT_TELL
        return ", ".join(self.shown) or nothing


@dataclass(frozen=True)
class Comparison:
    """A group against its `baseline`; None, with the reason as `refusal`, where none is like it.

    `estimates` are ratios to the baseline (speed above 1: faster, memory below 1: less, energy, time to the
    target), and of quality the difference in its shown unit; `beside_control` the same against the A/A
    control's runs. `loose` names what differs in machine or software. `drift`, of a control alone, is the
    throughput of its last runs to that of its first. `silence` is why nothing is claimed of quality, `stuck`
    why the group's own says nothing while the baseline's does: it lost, be the loss shown or not.
    """

    group: Group
    baseline: Group | None
    refusal: str = ""
    loose: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    beside_control: Mapping[str, Estimate] = field(default_factory=dict)
    drift: Estimate | None = None
    silence: str = ""
    stuck: str = ""

    @property
    def is_control(self) -> bool:
        """Whether the group is the baseline once more: what no change at all does."""
        return self.group.is_control

    @property
    def speedup(self) -> float | None:
        """The ratio of throughputs, None where it cannot be given."""
        found = self.estimates.get(SPEED)
        return found.value if found else None

    @property
    def shown(self) -> frozenset[str]:
        return frozenset(word for claim in self.claims.values() for word in claim.shown)

    @property
    def is_faster(self) -> bool:
        return "faster" in self.shown

    @property
    def keeps_quality(self) -> bool:
        """Whether nothing is lost: equivalent within the margin, or better; never with a failed run."""
        return bool({EQUIVALENT, "better"} & self.shown)

    @property
    def lost(self) -> bool:
        """Whether quality is shown to be worse by more than the margin allows, or nothing was learned."""
        return bool(self.stuck) or ("worse" in self.shown and EQUIVALENT not in self.shown)

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """What is not decided, of speed and quality: more seeds may tell."""
        if not self.claims and not self.is_control and not self.refusal and self.group.outcomes.running:
            return (Claim(SPEED, None, (), NOT_FINISHED, is_open=True),)
        return tuple(c for c in self.claims.values() if c.question != MEMORY and c.is_open)


def compare_all(
    groups: Sequence[Group],
    baseline: str,
    key: str,
    level: float,
    bench: Bench | None = None,
) -> list[Comparison]:
    """Every group but the baselines against the one baseline that fits it, each interval at this level;
    nothing without a baseline.
    """
    bases = [g for g in groups if g.value == baseline and not g.is_control]
    if not bases:
        return []
    found = []
    for group in (g for g in groups if g.value != baseline):
        base, refusal = _baseline_of(group, bases, key)
        if base is None:
            found.append(Comparison(group, None, refusal))
            continue
        repeats = [g for g in groups if g.value == again(base.value) and not gap(base, g, key)]
        control = next((g for g in repeats if g.outcomes.finished and not group.is_control), None)
        found.append(compare(group, base, level, control, gap(group, base, key), bench))
    return found


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """The one baseline that is like a group but for what is compared, or why there is none. Other software is
    no reason: of several the nearest is taken.
    """

    def options(base: Group) -> list[str]:
        return [k for k in gap(group, base, key) if not k.startswith(ENVIRONMENT)]

    def rank(base: Group) -> tuple[bool, bool, int]:
        return bool(options(base)), not base.n, len(gap(group, base, key))

    nearest = min(bases, key=rank)
    if keys := options(nearest):
        ours, theirs = group.settings, nearest.settings
        told = [f"{k} ({ours.get(k, NOT_SET)} against {theirs.get(k, NOT_SET)})" for k in keys]
        return None, f"it differs from {nearest.label} in {some(told, MAX_KEYS)}"
    found = [base for base in bases if rank(base) == rank(nearest)]
    if len(found) == 1:
        return nearest, ""
    varied = listed(differing_keys([base.settings for base in found])[:MAX_KEYS])
    return None, f"{listed(base.label for base in found)} would both do; they differ in {varied}"


def gap(group: Group, base: Group, key: str) -> list[str]:
    """Settings on which two groups differ although the comparison is not about them."""
    keys = differing_keys([group.settings, base.settings])
    return [k for k in keys if k != key and not k.startswith(follows(key))]


def compare(
    group: Group,
    base: Group,
    level: float,
    control: Group | None = None,
    loose: Sequence[str] = (),
    bench: Bench | None = None,
) -> Comparison:
    """Compare a group with a baseline: speed, memory and energy on one and the same device only, times and
    energy only of runs that had it to themselves.
    """
    ends = [(g.label, g.outcomes) for g in (group, base)]
    failed = listed(f"{o.failed} of {o.ended} {label} runs failed" for label, o in ends if o.failed)
    at_chance = learned_nothing(base)
    silence = failed or (at_chance and f"{base.label} is {at_chance}")
    found = Comparison(
        group,
        base,
        loose=tuple(k for k in loose if not k.startswith(f"{ENVIRONMENT}device_")),
        estimates=_estimates(group, base, level, bench),
        beside_control=_estimates(group, control, level, bench) if control else {},
        drift=_drift(group, level) if group.is_control else None,
        silence=silence,
        stuck="" if silence else learned_nothing(group),
    )
    if group.is_control or group.is_unfinished or base.is_unfinished:
        return found
    return replace(found, claims={question: _claim(found, question) for question in QUESTIONS})


def _estimates(group: Group, base: Group, level: float, bench: Bench | None) -> dict[str, Estimate]:
    measured = bench.ratios(group, base) if bench else {}
    is_one_device = len(group.devices | base.devices) <= 1
    # A control's runs lie at the ends of a sweep, beside no other: all of them count, in no pairs.
    by = "" if group.is_control or base.is_control else "seed"
    found = {}
    for question, column in COLUMNS.items():
        is_quality = question == QUALITY
        if column in measured and (question == SPEED or base.sample(column).empty):
            found[question] = measured[column]
            continue
        # Unfinished runs are not as far; a machine's figures are of this machine.
        if (group.is_unfinished or base.is_unfinished) if is_quality else not is_one_device:
            continue
        floor = max(group.floor, base.floor) if is_quality else 0.0
        one = difference(
            group.sample(column), base.sample(column), log=not is_quality, by=by, resolution=floor
        )
        if one is not None:
            bounds = (-100.0, 100.0) if is_quality and group.metric.is_share else one.bounds
            found[question] = replace(one, level=level, bounds=bounds)
    return found


def _drift(control: Group, level: float) -> Estimate | None:
    """The throughput of the control's last runs to that of its first; not paired: they are one machine's."""
    rows = control.rows[~shares_machine(control.rows)]
    speeds = rows[table.SPEED].dropna()
    arms = rows.loc[speeds.index, RUN].map(arm_of)
    found = difference(speeds[arms == LAST], speeds[arms == FIRST], log=True)
    return found and found.at(level)


def _claim(comparison: Comparison, question: str) -> Claim:
    """What the interval of a question shows, or why it shows nothing."""
    metric, found = comparison.group.metric, comparison.estimates.get(question)
    is_quality, beside = question == QUALITY, comparison.beside_control.get(question)
    if found is None:
        return Claim(question, None, (), _missing(comparison, question))
    if silence := _silence(comparison, question, found):
        return Claim(question, found, (), silence)
    low, high = found.ends
    if (low is None or high is None) and isinstance(found, Benched):
        return Claim(question, found, (), found.basis, is_open=True)
    if low is None or high is None:
        return Claim(question, found, (), f"n = {found.n}", max(1, FEWEST - found.n), is_open=True)
    shown = _sides(question, found, metric)
    if shown and shown[0] in GAINS and beside and shown != _sides(question, beside, metric):
        few = "" if beside.has_interval else f"the control has n = {beside.n}"
        why = few or "no more than the control, nothing changed, shows here"
        return Claim(question, found, (), why, is_open=True)
    margin, why = metric.margin if is_quality else None, HOLDS_NO_CHANGE
    if is_quality and comparison.stuck:  # what it lost may be said; equal it can never be
        return (
            Claim(question, found, shown)
            if shown == ("worse",)
            else Claim(question, found, (), comparison.stuck)
        )
    if margin is not None and -margin < low and high < margin:
        shown = (*shown, EQUIVALENT)
    if shown:
        return Claim(question, found, shown)
    ways = [more_seeds(found, null=0.0 if is_quality else 1.0)]
    if margin is not None:
        ways, why = [*ways, more_seeds(found, margin=margin)], f"{HOLDS_NO_CHANGE} and leaves the margin"
    elif is_quality:
        why = "no margin is set within which it would count as the same (--margin)"
    return Claim(question, found, (), why, min((way for way in ways if way), default=None), is_open=True)


def _silence(comparison: Comparison, question: str, found: Estimate) -> str:
    """Why nothing is claimed of a figure, however many runs there are; nothing where something may be."""
    if question == SPEED and (half := emulated([comparison.group, comparison.baseline])):
        return f"{EMULATES} {half}"
    if question != QUALITY:
        return ""
    if comparison.silence or not found.has_interval:
        return comparison.silence or comparison.stuck
    return "" if found.error else f"{comparison.group.metric.name} never varied"


def _sides(question: str, found: Estimate, metric: ComparedMetric) -> tuple[str, ...]:
    above, below = SIDES[question]
    if question == QUALITY and metric.falls:
        above, below = below, above
    null = 0.0 if question == QUALITY else 1.0
    low, high = found.ends
    if low is None or high is None:
        return ()
    return (above,) if low > null else (below,) if high < null else ()


def _missing(comparison: Comparison, question: str) -> str:
    sides = [side for side in (comparison.group, comparison.baseline) if side]
    if question != QUALITY and len(frozenset().union(*(side.devices for side in sides))) > 1:
        return "they ran on different devices"
    if question == SPEED and any(side.n and shares_machine(side.rows).all() for side in sides):
        return "their runs shared the machine"
    without = [side.label for side in sides if side.sample(COLUMNS[question]).empty]
    return f"not recorded for {some(without, 2)}"


def emulated(groups: Sequence[Group | None]) -> str:
    """The half type that a CPU emulated for a run of these (`bf16`): its speed says nothing of other
    machines; nothing where none did.
    """
    every = [group.rows for group in groups if group]
    emulating = [rows[rows[table.ON_CPU] & (rows[table.ARITHMETIC] == EMULATED)] for rows in every]
    return next((half for rows in emulating for half in rows[table.HALF]), "")
