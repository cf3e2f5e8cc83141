"""Compare one group with the baseline, and state what the intervals show.

For each question (speed, memory, quality) the intervals of all requested groups hold together in 95%, over
all planned looks. An interval on one side of "no change" shows faster, slower, smaller, larger, better or
worse. An interval inside the margin shows equivalence. That is stricter than two one-sided tests at 5%, and
it is a single interval to look at.
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
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, MEMORY, QUALITY, SPEED, TIME, RunMetric
from ampcompare.analysis.grouping.run_table import is_machine_shared
from ampcompare.analysis.grouping.training_length import has_early_stopping, unequal_lengths
from ampcompare.analysis.grouping.validity_checks import (
    estimate_control_drift,
    explain_degenerate,
    explain_placeholder,
)
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS, estimate_difference
from ampcompare.analysis.statistics.multiplicity import count_further_seeds
from ampcompare.metrics import COMPUTED_IN_FP32, EMULATED
from ampcompare.runs.migrations import TF32
from ampcompare.runtime.formatting import listed, some

EQUIVALENT = "equivalent"
GAINS = ("faster", "smaller")  # must hold relative to the control, too
ENVIRONMENT = "environment."
DEVICE_KEYS = f"{ENVIRONMENT}device_"
MAX_KEYS = 6
NOT_FINISHED = "not finished"
INCLUDES_NO_CHANGE = "the confidence interval includes zero difference"
WITHIN_CONTROL = "the gain is not shown to exceed the A/A control"
LOSS_WITHIN_CONTROL = "the loss is not shown to exceed the A/A control"
NOT_IN_BENCH = "the benchmark has no matching arm"
INCONCLUSIVE, NO_VERDICT, NOT_COMPARED = "inconclusive", "no verdict", "not compared"
TIMED = (SPEED, TIME)  # not compared on a CPU without instructions for the dtype
NOT_NATIVE = {
    COMPUTED_IN_FP32: "this CPU computes {} in fp32",
    EMULATED: "this CPU has no instructions for {}",
}


@dataclass(frozen=True)
class Claim:
    """The claim that the interval of one question supports.

    Attributes:
        question: The question: speed, memory or quality.
        estimate: The estimate, None if nothing was compared.
        shown: The words of its metric for what is shown, and EQUIVALENT.
        why: Why nothing is shown, "" if something is.
        more_seeds: How many more seeds may show something, None if no such number is known.
        is_open: Whether more seeds may show something.
    """

    question: str
    estimate: Estimate | None
    shown: tuple[str, ...] = ()
    why: str = ""
    more_seeds: int | None = None
    is_open: bool = False

    @property
    def answer(self) -> str:
        """Return what is shown, or one word that nothing is."""
        if self.estimate is None:
            return NOT_COMPARED
        nothing = INCONCLUSIVE if self.is_open and self.estimate.has_interval else NO_VERDICT
        return ", ".join(self.shown) or nothing


@dataclass(eq=False)
class Comparison:
    """A group relative to its baseline.

    Attributes:
        group: The compared group.
        baseline: The baseline group. None if no baseline matches the group.
        not_compared_reason: Why no baseline matches.
        uncontrolled_differences: Settings of machine and software that differ.
        estimates: By question: ratios to the baseline (speed above 1 is faster, memory below 1 is less), and
            the difference in quality in its shown unit.
        relative_to_control: The same estimates relative to the runs of the A/A control.
        has_control: Whether there is an A/A control.
        drift: For a control, the throughput of its last runs relative to its first.
        no_claim_reason: Why nothing is claimed about quality.
        degenerate_reason: Why the group's metric is uninformative although the baseline's is not. The group
            then lost quality, whether the interval shows it or not.
        is_missing_in_bench: Whether a benchmark has the speed of other groups and no arm for this one.
        claims: The claims by question.
        speedup: The ratio of speeds, None if speeds are not compared.
        shown: Every word that is shown.
        is_faster: Whether the group is shown to be faster.
        keeps_quality: Whether quality is shown to be equivalent or better. Never with a failed run.
        is_quality_lost: Whether quality is shown to be worse beyond the margin, or nothing was learned.
        is_control: Whether the group is the A/A control: the baseline once more.
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
        self.is_control = self.group.is_control  # the baseline once more
        base, self.claims = self.baseline, dict[str, Claim]()
        if base and not (self.is_control or self.group.is_unfinished or base.is_unfinished):
            claimed = [run_metric for run_metric in COMPARED_METRICS.values() if run_metric.sides]
            self.claims = {run_metric.question: _claim(self, base, run_metric) for run_metric in claimed}
        self.speedup = self.estimates[SPEED].value if SPEED in self.estimates else None
        shown = frozenset(word for claim in self.claims.values() for word in claim.shown)
        self.shown, self.is_faster = shown, "faster" in shown

        self.keeps_quality = bool({EQUIVALENT, "better"} & shown)

        self.is_quality_lost = bool(self.degenerate_reason) or ("worse" in shown and EQUIVALENT not in shown)

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """The claims on speed and quality that more seeds may decide."""
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
    """Compare every group except the baselines with the baseline that matches it.

    Args:
        groups: All groups.
        baseline: The value of the baseline.
        key: The compared key.
        level: Level of each interval, 0..1.
        bench: Speeds of a benchmark.

    Returns:
        The comparisons; none without a baseline.
    """
    bases = [g for g in groups if g.value == baseline and not g.is_control]
    comparisons = []
    for group in (g for g in groups if bases and g.value != baseline):
        base, not_compared_reason = _baseline_of(group, bases, key)
        if base is None:
            comparisons.append(Comparison(group, None, not_compared_reason))
            continue
        repeats = [
            g
            for g in groups
            if g.value == control_value(base.value) and not uncontrolled_settings(base, g, key)
        ]
        controls = [] if group.is_control else sorted(repeats, key=lambda g: not g.outcomes.finished)
        control = next(iter(controls), None)
        comparisons.append(
            compare(group, base, level, control, uncontrolled_settings(group, base, key), bench)
        )
    return comparisons


def _baseline_of(group: Group, bases: Sequence[Group], key: str) -> tuple[Group | None, str]:
    """Return the one baseline that differs from a group only in what is compared, or why there is none.

    Software may differ: the nearest of several baselines is taken.
    """

    def rank(base: Group) -> tuple[bool, bool, int]:
        keys = uncontrolled_settings(group, base, key)
        return not all(k.startswith(ENVIRONMENT) for k in keys), not base.n, len(keys)

    nearest = min(bases, key=rank)
    if rank(nearest)[0]:
        options = [k for k in uncontrolled_settings(group, nearest, key) if not k.startswith(ENVIRONMENT)]
        settings, base_settings = group.settings, nearest.settings
        pairs = [(k, settings.get(k, NOT_SET), base_settings.get(k, NOT_SET)) for k in options]
        differences = [f"{key} ({own} and {other})" for key, own, other in pairs]
        names = f"{group.display_name} and {nearest.display_name}"
        return None, f"{names} also differ in {some(differences, MAX_KEYS)}"
    candidates = [base for base in bases if rank(base) == rank(nearest)]
    if len(candidates) == 1:
        return nearest, ""
    varied = listed(differing_keys([base.settings for base in candidates])[:MAX_KEYS])
    names = listed(base.display_name for base in candidates)
    return None, f"{names} are equally good baselines, but differ in {varied}"


def uncontrolled_settings(group: Group, base: Group, key: str) -> list[str]:
    """Return the settings that differ between two groups and are not what is compared."""
    keys = differing_keys([group.settings, base.settings])
    # The backend `tf32` sets this switch, so the switch is no other difference.
    is_tf32 = key == BACKEND and TF32 in (group.settings.get(key), base.settings.get(key))
    dependent = (*dependent_prefixes(key), *(("tf32", "environment.tf32") if is_tf32 else ()))
    return [k for k in keys if k != key and not k.startswith(dependent)]


def compare(
    group: Group,
    base: Group,
    level: float,
    control: Group | None = None,
    uncontrolled_differences: Sequence[str] = (),
    bench: BenchResults | None = None,
) -> Comparison:
    """Compare a group with a baseline.

    Speed, memory and energy are compared on one device only. Times and energy count only for runs that had
    the machine to themselves.

    Args:
        group: The group.
        base: The baseline.
        level: Level of each interval, 0..1.
        control: The A/A control of the baseline.
        uncontrolled_differences: Settings that differ besides the compared key.
        bench: Speeds of a benchmark.
    """
    sides = [(g.display_name, g.outcomes) for g in (group, base)]
    no_claim_reason = listed(f"{o.failed} of {o.ended} {label} runs failed" for label, o in sides if o.failed)
    if not no_claim_reason and (reason := explain_degenerate(base)):
        no_claim_reason = f"{base.display_name} is {reason}"
    if not no_claim_reason and (reason := explain_placeholder(group)):
        no_claim_reason = f"{group.display_name} is {reason}"
    if not no_claim_reason and not group.metric.is_best and not has_early_stopping((base, group)):
        no_claim_reason = unequal_lengths((base, group))
    relative_to_control = {}
    if control and control.outcomes.finished:
        relative_to_control = _estimates(group, control, level, bench)
    return Comparison(
        group,
        base,
        uncontrolled_differences=tuple(k for k in uncontrolled_differences if not k.startswith(DEVICE_KEYS)),
        estimates=_estimates(group, base, level, bench),
        relative_to_control=relative_to_control,
        has_control=control is not None,
        drift=estimate_control_drift(group, level) if group.is_control else None,
        no_claim_reason=no_claim_reason,
        degenerate_reason="" if no_claim_reason else explain_degenerate(group),
        is_missing_in_bench=is_missing_in_bench(group, base, bench),
    )


def is_missing_in_bench(group: Group, base: Group, bench: BenchResults | None) -> bool:
    """Return whether a benchmark has the speed of the baseline but not that of the group."""
    return bench is not None and bool(bench.ratios(base, base)) and not bench.ratios(group, base)


def _estimates(group: Group, base: Group, level: float, bench: BenchResults | None) -> dict[str, Estimate]:
    """Return the estimates of a group relative to a baseline, by question."""
    bench_ratios = bench.ratios(group, base) if bench else {}
    is_one_device = len(group.devices | base.devices) <= 1 and "" not in group.devices | base.devices
    # The runs of a control are at the ends of a sweep, so they are not paired with other runs.
    paired_by = "" if group.is_control or base.is_control else "seed"
    estimates = {}
    is_slow, is_missing = no_native_arithmetic((group, base)), is_missing_in_bench(group, base, bench)
    for question, run_metric in COMPARED_METRICS.items():
        if (is_slow or is_missing) and question in TIMED:
            continue
        values, base_values = group.sample(run_metric.column), base.sample(run_metric.column)
        if question in bench_ratios and (question == SPEED or base_values.empty):
            estimates[question] = bench_ratios[question]
            continue
        # Quality needs finished runs. Metrics of the machine need one device.
        if (group.is_unfinished or base.is_unfinished) if run_metric.is_of_seed else not is_one_device:
            continue
        floor = group.metric.resolution if question == QUALITY else 0.0
        if estimate := estimate_difference(
            values, base_values, log=run_metric.is_ratio, paired_by=paired_by, resolution=floor
        ):
            # Seeds that agree are no evidence of a spread of zero.
            if question == QUALITY and not estimate.error:
                estimate = replace(estimate, error=None)
            if question == QUALITY and group.metric.is_percentage:
                estimate = replace(estimate, bounds=(-100.0, 100.0))
            estimates[question] = replace(estimate, level=level)
    return estimates


def _claim(comparison: Comparison, base: Group, run_metric: RunMetric) -> Claim:
    """Return what the interval of a question shows, or why it shows nothing."""
    question = run_metric.question
    estimate = comparison.estimates.get(question)
    control_estimate = comparison.relative_to_control.get(question)
    metric = comparison.group.metric
    is_quality, why = question == QUALITY, _no_claim_reason(comparison, base, run_metric)
    if estimate is None or why:
        return Claim(question, estimate, (), why)
    low, high = estimate.ends
    if low is None or high is None:
        if isinstance(estimate, BenchEstimate):
            why = f"{estimate.basis} gave no confidence interval"
            return Claim(question, estimate, (), why, is_open=True)
        more = max(1, MIN_RUNS - estimate.n)
        return Claim(question, estimate, (), too_few_runs(estimate.n), more, is_open=True)
    shown = _sides(run_metric, estimate, metric)
    if is_quality and comparison.degenerate_reason:  # it may be shown to be worse, never to be equal
        worse = tuple(word for word in shown if word == "worse")
        return Claim(question, estimate, worse, "" if worse else comparison.degenerate_reason)
    # A benchmark has its own control.
    has_control = comparison.has_control and not isinstance(estimate, BenchEstimate)
    if (
        has_control
        and {*shown} & {*GAINS}
        and (not control_estimate or shown != _sides(run_metric, control_estimate, metric))
    ):
        control_size = f"the A/A control has only n = {control_estimate.n if control_estimate else 0}"
        return Claim(
            question,
            estimate,
            (),
            WITHIN_CONTROL if control_estimate and control_estimate.has_interval else control_size,
            is_open=True,
        )
    margin, why = metric.margin if is_quality else None, INCLUDES_NO_CHANGE
    if margin is not None and -margin < low and high < margin:
        shown = (*shown, EQUIVALENT)
    if shown:
        return Claim(question, estimate, shown)
    seed_counts = [count_further_seeds(estimate, null=run_metric.null)]
    if margin is not None:
        seed_counts = [*seed_counts, count_further_seeds(estimate, margin=margin)]
        why = f"{INCLUDES_NO_CHANGE} and extends beyond the margin"
    elif not is_quality and (low > run_metric.null or high < run_metric.null):  # of a benchmark
        why = WITHIN_CONTROL if low > run_metric.null else LOSS_WITHIN_CONTROL
    elif is_quality:
        why = f"{INCLUDES_NO_CHANGE} and no equivalence margin is set (--margin X)"
    return Claim(
        question,
        estimate,
        (),
        why,
        min((count for count in seed_counts if count), default=None),
        is_open=True,
    )


def _no_claim_reason(comparison: Comparison, base: Group, run_metric: RunMetric) -> str:
    """Return why nothing can be claimed about a question with any number of runs, "" otherwise."""
    question, sides = run_metric.question, (comparison.group, base)
    estimate = comparison.estimates.get(question)
    if estimate is None:
        if question != QUALITY and len(comparison.group.devices | base.devices) > 1:
            return "the runs used different devices"
        if question != QUALITY and "" in comparison.group.devices | base.devices:
            return "the device is not recorded"
        if question == SPEED and (why := no_native_arithmetic(sides)):
            return why
        if question == SPEED and comparison.is_missing_in_bench:
            return NOT_IN_BENCH
        if question == SPEED and any(side.n and is_machine_shared(side.rows).all() for side in sides):
            return "the runs overlapped on one GPU or CPU"
        empty = [side.display_name for side in sides if side.sample(run_metric.column).empty]
        return f"no value is recorded for {some(empty, 2)}"
    if question != QUALITY:
        return ""
    name = comparison.group.metric.name
    constant = (
        ""
        if estimate.error or estimate.n < MIN_RUNS
        else f"{name} is the same in all runs and its resolution is unknown"
    )
    return (
        comparison.no_claim_reason
        or constant
        or ("" if estimate.has_interval else comparison.degenerate_reason)
    )


def _sides(run_metric: RunMetric, estimate: Estimate, metric: ComparedMetric) -> tuple[str, ...]:
    """Return the word for the side of no change on which the interval lies."""
    above, below = run_metric.sides or ("", "")
    if run_metric.question == QUALITY and metric.lower_is_better:
        above, below = below, above
    side = estimate.side_of(run_metric.null)
    return ((above,) if side > 0 else (below,)) if side else ()


def too_few_runs(n: int) -> str:
    """Return that n runs give no interval."""
    return f"a confidence interval needs at least {MIN_RUNS} runs (n = {n})"


def no_native_arithmetic(groups: Sequence[Group]) -> str:
    """Return that a CPU has no instructions for the 16-bit dtype of a run, "" if none lacks them.

    The speed of such a run says nothing about machines that have the instructions, so it is not compared. The
    reason says what the CPU did instead, as recorded: our training computes in fp32, others leave the dtype
    to PyTorch.
    """
    for group in groups:
        for on_cpu, dtype, arithmetic in group.rows[
            [run_table.ON_CPU, run_table.DTYPE, run_table.ARITHMETIC]
        ].itertuples(index=False):
            if on_cpu and dtype and arithmetic in NOT_NATIVE:
                return NOT_NATIVE[arithmetic].format(dtype)
    return ""
