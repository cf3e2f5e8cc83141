"""One group against the baseline, like with like, and what is claimed of it: one interval a figure.

For each question (speed, memory, quality) the intervals of all groups that were asked for hold together in
95 %, over all looks that were planned. What an interval shows can be seen: on one side of "no change" is
faster, slower, smaller, larger, better or worse; inside the margin is equivalent. That is stricter than two
one-sided tests at 5 %, and one interval to look at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampcompare.analysis.bench_results import BenchEstimate, BenchResults
from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    dependent_prefixes,
    differing_keys,
)
from ampcompare.analysis.grouping.groups import Group, control_value
from ampcompare.analysis.grouping.run_metrics import COMPARED, MEMORY, QUALITY, SPEED, TIME, RunMetric
from ampcompare.analysis.grouping.run_table import is_machine_shared
from ampcompare.analysis.grouping.training_length import has_early_stopping, unequal_lengths
from ampcompare.analysis.grouping.validity_checks import estimate_control_drift, explain_degenerate
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS, difference
from ampcompare.analysis.statistics.multiplicity import more_seeds
from ampcompare.metrics import COMPUTED_IN_FP32, EMULATED
from ampcompare.runs.migrations import TF32
from ampcompare.runtime.formatting import listed, some

EQUIVALENT = "equivalent"
GAINS = ("faster", "smaller")  # which must hold against the control's runs alike
ENVIRONMENT = "environment."
DEVICE_KEYS = f"{ENVIRONMENT}device_"
MAX_KEYS = 6
NOT_FINISHED = "not finished"
HOLDS_NO_CHANGE = "the interval holds no change"
INCONCLUSIVE, CANNOT_TELL, NOT_COMPARED = "inconclusive", "cannot tell", "not compared"
TIMED = (SPEED, TIME)  # questions that a CPU without instructions for the dtype leaves without an answer
NOT_NATIVE = {
    COMPUTED_IN_FP32: "this CPU computes {} in fp32",
    EMULATED: "this CPU has no instructions for {}",
}


@dataclass(frozen=True)
class Claim:
    """What is shown of one question, by the interval of `estimate`: `sides` of its figure, and EQUIVALENT;
    or, where nothing is, `why` it cannot be told. `is_open`: more seeds may tell; `more_seeds`: how many,
    None where no number is known that would.
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
        nothing = INCONCLUSIVE if self.is_open and self.estimate.has_interval else CANNOT_TELL
        return ", ".join(self.shown) or nothing


@dataclass(eq=False)
class Comparison:
    """A group against its `baseline`; None, with the reason as `refusal`, where none is like it.

    `estimates` are ratios to the baseline (speed above 1: faster, memory below 1: less, energy, time to the
    target), and of quality the difference in its shown unit; `beside_control` the same against the A/A
    control's runs, if it `has_control`. `loose` names what differs in machine or software. `drift`, of a
    control alone, is the throughput of its last runs to that of its first. `silence` is why nothing is
    claimed of quality, `stuck` why the group's own says nothing while the baseline's does: it lost, be the
    loss shown or not. `is_missing_in_bench`: a benchmark gives the speed of others, and has no arm of this.
    """

    group: Group
    baseline: Group | None
    not_compared_reason: str = ""
    uncontrolled_differences: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    relative_to_control: Mapping[str, Estimate] = field(default_factory=dict)
    has_control: bool = False
    drift: Estimate | None = None
    no_claim_reason: str = ""
    degenerate_reason: str = ""
    is_missing_in_bench: bool = False

    def __post_init__(self) -> None:
        self.is_control = self.group.is_control  # the baseline once more: what no change at all does
        base, self.claims = self.baseline, dict[str, Claim]()
        if base and not (self.is_control or self.group.is_unfinished or base.is_unfinished):
            claimed = [figure for figure in COMPARED.values() if figure.sides]
            self.claims = {figure.question: _claim(self, base, figure) for figure in claimed}
        self.speedup = self.estimates[SPEED].value if SPEED in self.estimates else None
        shown = frozenset(word for claim in self.claims.values() for word in claim.shown)
        self.shown, self.is_faster = shown, "faster" in shown
        # Equivalent within the margin, or better; never with a failed run.
        self.keeps_quality = bool({EQUIVALENT, "better"} & shown)
        # Shown to be worse by more than the margin allows, or nothing was learned.
        self.is_quality_lost = bool(self.degenerate_reason) or ("worse" in shown and EQUIVALENT not in shown)

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """What is not decided, of speed and quality: more seeds may tell."""
        if (
            not self.claims
            and not self.is_control
            and not self.not_compared_reason
            and self.group.outcomes.running
        ):
            return (Claim(SPEED, None, (), NOT_FINISHED, is_open=True),)
        return tuple(c for c in self.claims.values() if c.question != MEMORY and c.is_open)


def compare_all(
    groups: Sequence[Group], baseline: str, key: str, level: float, bench: BenchResults | None = None
) -> list[Comparison]:
    """Every group but the baselines against the one baseline that fits it, each interval at this level;
    nothing without a baseline.
    """
    bases = [g for g in groups if g.value == baseline and not g.is_control]
    found = []
    for group in (g for g in groups if bases and g.value != baseline):
        base, not_compared_reason = _baseline_of(group, bases, key)
        if base is None:
            found.append(Comparison(group, None, not_compared_reason))
            continue
        repeats = [
            g
            for g in groups
            if g.value == control_value(base.value) and not uncontrolled_settings(base, g, key)
        ]
        controls = [] if group.is_control else sorted(repeats, key=lambda g: not g.outcomes.finished)
        control = next(iter(controls), None)
        found.append(compare(group, base, level, control, uncontrolled_settings(group, base, key), bench))
    return found


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """The one baseline that is like a group but for what is compared, or why there is none. Other software is
    no reason: of several the nearest is taken.
    """

    def rank(base: Group) -> tuple[bool, bool, int]:
        keys = uncontrolled_settings(group, base, key)
        return not all(k.startswith(ENVIRONMENT) for k in keys), not base.n, len(keys)

    nearest = min(bases, key=rank)
    if rank(nearest)[0]:
        options = [k for k in uncontrolled_settings(group, nearest, key) if not k.startswith(ENVIRONMENT)]
        ours, theirs = group.settings, nearest.settings
        told = [f"{k} ({ours.get(k, NOT_SET)} against {theirs.get(k, NOT_SET)})" for k in options]
        return None, f"it differs from {nearest.label} in {some(told, MAX_KEYS)}"
    found = [base for base in bases if rank(base) == rank(nearest)]
    if len(found) == 1:
        return nearest, ""
    varied = listed(differing_keys([base.settings for base in found])[:MAX_KEYS])
    return None, f"{listed(base.label for base in found)} would both do; they differ in {varied}"


def uncontrolled_settings(group: Group, base: Group, key: str) -> list[str]:
    """Return the settings in which two groups differ although the comparison is not about them."""
    keys = differing_keys([group.settings, base.settings])
    # What the backend `tf32` is: the switch that it sets is no other difference.
    is_tf32 = key == BACKEND and TF32 in (group.settings.get(key), base.settings.get(key))
    own = (*dependent_prefixes(key), *(("tf32", "environment.tf32") if is_tf32 else ()))
    return [k for k in keys if k != key and not k.startswith(own)]


def compare(
    group: Group,
    base: Group,
    level: float,
    control: Group | None = None,
    uncontrolled_differences: Sequence[str] = (),
    bench: BenchResults | None = None,
) -> Comparison:
    """Compare a group with a baseline: speed, memory and energy on one and the same device only, times and
    energy only of runs that had it to themselves.
    """
    ends = [(g.label, g.outcomes) for g in (group, base)]
    no_claim_reason = listed(f"{o.failed} of {o.ended} {label} runs failed" for label, o in ends if o.failed)
    if not no_claim_reason and (nothing := explain_degenerate(base)):
        no_claim_reason = f"{base.label} is {nothing}"
    if not no_claim_reason and not group.metric.is_best and not has_early_stopping((base, group)):
        no_claim_reason = unequal_lengths((base, group))
    return Comparison(
        group,
        base,
        uncontrolled_differences=tuple(
            k for k in uncontrolled_differences if not k.startswith(f"{ENVIRONMENT}device_")
        ),
        estimates=_estimates(group, base, level, bench),
        relative_to_control=_estimates(group, control, level, bench)
        if control and control.outcomes.finished
        else {},
        has_control=control is not None,
        drift=estimate_control_drift(group, level) if group.is_control else None,
        no_claim_reason=no_claim_reason,
        degenerate_reason="" if no_claim_reason else explain_degenerate(group),
        is_missing_in_bench=is_missing_in_bench(group, base, bench),
    )


def is_missing_in_bench(group: Group, base: Group, bench: BenchResults | None) -> bool:
    """Whether a benchmark has the speed of the baseline and not that of the group."""
    return bench is not None and bool(bench.ratios(base, base)) and not bench.ratios(group, base)


def _estimates(group: Group, base: Group, level: float, bench: BenchResults | None) -> dict[str, Estimate]:
    measured = bench.ratios(group, base) if bench else {}
    is_one_device = len(group.devices | base.devices) <= 1 and "" not in group.devices | base.devices
    # A control's runs lie at the ends of a sweep, beside no other: all of them count, in no pairs.
    paired_by = "" if group.is_control or base.is_control else "seed"
    found = {}
    is_slow, is_missing = no_native_arithmetic((group, base)), is_missing_in_bench(group, base, bench)
    for question, figure in COMPARED.items():
        if (is_slow or is_missing) and question in TIMED:
            continue
        ours, theirs = group.sample(figure.column), base.sample(figure.column)
        if question in measured and (question == SPEED or theirs.empty):
            found[question] = measured[question]
            continue
        # Unfinished runs are not as far; a machine's figures are of this machine.
        if (group.is_unfinished or base.is_unfinished) if figure.is_of_seed else not is_one_device:
            continue
        floor = group.metric.resolution if question == QUALITY else 0.0
        if one := difference(ours, theirs, log=figure.is_ratio, paired_by=paired_by, resolution=floor):
            if question == QUALITY and not one.error:  # seeds that agree are no evidence of a spread of zero
                one = replace(one, error=None)
            bounds = (-100.0, 100.0) if question == QUALITY and group.metric.is_percentage else one.bounds
            found[question] = replace(one, level=level, bounds=bounds)
    return found


def _claim(comparison: Comparison, base: Group, figure: RunMetric) -> Claim:
    """What the interval of a question shows, or why it shows nothing."""
    question = figure.question
    found, beside, metric = (
        comparison.estimates.get(question),
        comparison.relative_to_control.get(question),
        comparison.group.metric,
    )
    is_quality, why = question == QUALITY, _no_claim_reason(comparison, base, figure)
    if found is None or why:
        return Claim(question, found, (), why)
    low, high = found.ends
    if low is None or high is None:
        if isinstance(found, BenchEstimate):
            return Claim(question, found, (), found.basis, is_open=True)
        return Claim(question, found, (), f"n = {found.n}", max(1, MIN_RUNS - found.n), is_open=True)
    shown = _sides(figure, found, metric)
    if is_quality and comparison.degenerate_reason:  # what it lost may be said; equal it can never be
        worse = tuple(word for word in shown if word == "worse")
        return Claim(question, found, worse, "" if worse else comparison.degenerate_reason)
    # A bench has a control of its own.
    has_control = comparison.has_control and not isinstance(found, BenchEstimate)
    if has_control and {*shown} & {*GAINS} and (not beside or shown != _sides(figure, beside, metric)):
        few = f"the control has n = {beside.n if beside else 0}"
        why = "no more than the control, nothing changed, shows here"
        return Claim(question, found, (), why if beside and beside.has_interval else few, is_open=True)
    margin, why = metric.margin if is_quality else None, HOLDS_NO_CHANGE
    if margin is not None and -margin < low and high < margin:
        shown = (*shown, EQUIVALENT)
    if shown:
        return Claim(question, found, shown)
    ways = [more_seeds(found, null=figure.null)]
    if margin is not None:
        ways, why = [*ways, more_seeds(found, margin=margin)], f"{HOLDS_NO_CHANGE} and leaves the margin"
    elif is_quality:
        why = "no margin is set within which it would count as the same (--margin)"
    return Claim(question, found, (), why, min((way for way in ways if way), default=None), is_open=True)


def _no_claim_reason(comparison: Comparison, base: Group, figure: RunMetric) -> str:
    """Why nothing is claimed of a question, however many runs there are; nothing where something may be."""
    question, sides = figure.question, (comparison.group, base)
    found = comparison.estimates.get(question)
    if found is None:
        if question != QUALITY and len(comparison.group.devices | base.devices) > 1:
            return "they ran on different devices"
        if question != QUALITY and "" in comparison.group.devices | base.devices:
            return "the device is not recorded"
        if question == SPEED and (why := no_native_arithmetic(sides)):
            return why
        if question == SPEED and comparison.is_missing_in_bench:
            return "not in the benchmark"
        if question == SPEED and any(side.n and is_machine_shared(side.rows).all() for side in sides):
            return "their runs shared the machine"
        return f"not recorded for {some([s.label for s in sides if s.sample(figure.column).empty], 2)}"
    if question != QUALITY:
        return ""
    name = comparison.group.metric.name
    never = (
        "" if found.error or found.n < MIN_RUNS else f"{name} never varied, and its resolution is not known"
    )
    return comparison.no_claim_reason or never or ("" if found.has_interval else comparison.degenerate_reason)


def _sides(figure: RunMetric, found: Estimate, metric: ComparedMetric) -> tuple[str, ...]:
    """On which side of no change the interval lies, in the question's word for it."""
    above, below = figure.sides or ("", "")
    if figure.question == QUALITY and metric.lower_is_better:
        above, below = below, above
    side = found.side_of(figure.null)
    return ((above,) if side > 0 else (below,)) if side else ()


def no_native_arithmetic(groups: Sequence[Group]) -> str:
    """Return that a CPU has no instructions for the 16-bit dtype of a run of these groups, "" where it has.

    The speed of such a run says nothing of machines that have them, so it is not compared. What the CPU did
    instead is said as it was recorded: our training computes in fp32, others leave the dtype to PyTorch.
    """
    for group in groups:
        for on_cpu, dtype, how in group.rows[
            [run_table.ON_CPU, run_table.DTYPE, run_table.ARITHMETIC]
        ].itertuples(index=False):
            if on_cpu and dtype and how in NOT_NATIVE:
                return NOT_NATIVE[how].format(dtype)
    return ""
