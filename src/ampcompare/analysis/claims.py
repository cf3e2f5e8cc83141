"""Claims: what the confidence interval of one question shows, and what would decide it otherwise."""

import math
from dataclasses import dataclass, replace
from enum import Enum

from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, MEMORY, QUALITY, SPEED
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.statistics.sample_size import forecast_further_seeds

SPEED_MARGIN = 0.02  # speeds whose ratio lies within this fraction of 1 are the same
INCONCLUSIVE, NO_VERDICT, NOT_COMPARED = "inconclusive", "no verdict", "not compared"


@dataclass(frozen=True)
class Reason:
    """Why nothing is claimed.

    Attributes:
        text: The reason, as part of a sentence.
        may_pass: Whether more seeds may remove it.
        badge: What it says of the group in a badge, such as `at chance`; "" for nothing.
    """

    text: str
    may_pass: bool = False
    badge: str = ""


class Finding(Enum):
    """The finding of one interval. Its value is the words for it in JSON and tables.

    A member that ends in WITHIN shows a difference, and that it is smaller than the margin.
    """

    NOTHING = ()
    FASTER = ("faster",)
    SLOWER = ("slower",)
    SAME_SPEED = ("same speed",)
    FASTER_WITHIN = ("faster", "same speed")
    SLOWER_WITHIN = ("slower", "same speed")
    SMALLER = ("smaller",)
    LARGER = ("larger",)
    BETTER = ("better",)
    WORSE = ("worse",)
    EQUIVALENT = ("equivalent",)
    BETTER_WITHIN = ("better", "equivalent")
    WORSE_WITHIN = ("worse", "equivalent")
    NOT_WORSE = ("not worse",)


GAINS = {Finding.FASTER, Finding.FASTER_WITHIN, Finding.SMALLER}  # must hold relative to the control, too
SAME_SPEED = {Finding.SAME_SPEED, Finding.FASTER_WITHIN, Finding.SLOWER_WITHIN}
WITHIN_MARGIN = {Finding.EQUIVALENT, Finding.BETTER_WITHIN, Finding.WORSE_WITHIN}
KEEPS_QUALITY = {Finding.NOT_WORSE, Finding.BETTER, *WITHIN_MARGIN}
NOT_FINISHED = Reason("not finished", may_pass=True)
GAIN_WITHIN_CONTROL = Reason("the gain is not shown to exceed the A/A control", may_pass=True)
WITHOUT_SIDE = {
    Finding.BETTER: Finding.NOTHING,
    Finding.WORSE: Finding.NOTHING,
    Finding.BETTER_WITHIN: Finding.EQUIVALENT,
    Finding.WORSE_WITHIN: Finding.EQUIVALENT,
}


@dataclass(frozen=True)
class Claim:
    """The claim that the interval of one question supports.

    Attributes:
        question: The question: speed, memory or quality.
        estimate: The estimate, None if nothing was compared.
        finding: What is shown.
        reason: Why nothing is shown, None if something is.
        no_side_reason: Why neither "faster" nor "slower" is shown, where the speed is shown to be the same.
        more_seeds: The lowest and the highest number of further seeds that would decide the question; None
            if that is not known.
    """

    question: str
    estimate: Estimate | None
    finding: Finding = Finding.NOTHING
    reason: Reason | None = None
    no_side_reason: Reason | None = None
    more_seeds: tuple[int, int] | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the words for what is shown, such as `("worse", "equivalent")`; empty if nothing is."""
        return self.finding.value

    @property
    def why(self) -> str:
        """Return why nothing is shown, "" if something is."""
        return self.reason.text if self.reason else ""

    @property
    def is_open(self) -> bool:
        """Return whether the question is undecided, and more seeds may decide it."""
        return self.reason is not None and self.reason.may_pass

    @property
    def answer(self) -> str:
        """Return what is shown, or one word that nothing is."""
        if self.estimate is None:
            return NOT_COMPARED
        if self.shown:
            return ", ".join(self.shown)
        return INCONCLUSIVE if self.is_open and self.estimate.has_interval else NO_VERDICT

    @property
    def is_by_benchmark(self) -> bool:
        """Return whether a benchmark gave the estimate, so that no further seed changes it."""
        return isinstance(self.estimate, BenchEstimate)


def largest_loss(estimate: Estimate, metric: ComparedMetric) -> float | None:
    """Return the largest loss in quality that the interval allows, in the shown unit; None without one.

    It is negative if the whole interval is a gain.
    """
    low, high = estimate.ends
    if low is None or high is None:
        return None
    return high if metric.lower_is_better else -low


def read_quality(estimate: Estimate, metric: ComparedMetric) -> Finding:
    """Return what the interval of a difference in quality shows.

    Where "worse" is shown, "not worse by more than the margin" is never claimed.
    """
    low, high = estimate.ends
    loss = largest_loss(estimate, metric)
    side = read_side(QUALITY, estimate, metric)
    if low is None or high is None or loss is None or metric.margin is None:
        return side
    if -metric.margin < low and high < metric.margin:
        return Finding((*side.value, *Finding.EQUIVALENT.value))
    if loss < metric.margin and side is Finding.NOTHING:
        return Finding.NOT_WORSE
    return side


def is_same_speed(estimate: Estimate, margin: float = SPEED_MARGIN) -> bool:
    """Return whether the whole interval of a ratio lies within a fraction of 1.

    An interval of a benchmark is widened by what its control does not resolve.
    """
    low, high = estimate.ends
    if low is None or high is None or low <= 0:
        return False
    resolution = estimate.resolution if isinstance(estimate, BenchEstimate) else 0.0
    return max(high, 1 / low) * (1 + resolution) < 1 + margin


def read_side(question: str, estimate: Estimate, metric: ComparedMetric) -> Finding:
    """Return on which side of no change the interval lies."""
    run_metric = COMPARED_METRICS[question]
    side = estimate.side_of(run_metric.null)
    if side == 0 or run_metric.sides is None:
        return Finding.NOTHING
    above, below = run_metric.sides
    if question == QUALITY and metric.lower_is_better:
        side = -side
    return Finding((above,)) if side > 0 else Finding((below,))


def claim_quality(
    estimate: Estimate, metric: ComparedMetric, degenerate: Reason | None, unresolved: Reason | None
) -> Claim:
    """Return the claim on quality.

    Args:
        estimate: The difference in the shown unit, with an interval.
        degenerate: Why the metric of the group is uninformative, None if it is not. The group may then be
            shown to be worse, never to be the same.
        unresolved: Why no difference may be claimed, None if it may.
    """
    finding = read_quality(estimate, metric)
    if unresolved and finding in WITHOUT_SIDE:
        finding = WITHOUT_SIDE[finding]
        if finding is Finding.NOTHING:
            return Claim(QUALITY, estimate, reason=unresolved)
    if degenerate and finding in (Finding.WORSE, Finding.WORSE_WITHIN):
        return Claim(QUALITY, estimate, Finding.WORSE)
    if degenerate:
        return Claim(QUALITY, estimate, reason=degenerate)
    if finding is not Finding.NOTHING:
        return Claim(QUALITY, estimate, finding)
    return Claim(QUALITY, estimate, reason=_open_quality_reason(metric))


def _open_quality_reason(metric: ComparedMetric) -> Reason:
    """Return why the interval of a difference in quality shows nothing."""
    text = "the confidence interval includes zero difference and extends beyond the margin"
    if metric.margin is None:
        text = (
            "the confidence interval includes zero difference and no equivalence margin is set (--margin X; "
            "an accuracy that --metric declares as :fraction or :percent has a margin of 0.5 points)"
        )
    return Reason(text, may_pass=True)


def claim_ratio(
    question: str, estimate: Estimate, metric: ComparedMetric, has_control: bool, control: Estimate | None
) -> Claim:
    """Return the claim on speed or memory.

    A gain must also hold relative to the A/A control.

    Args:
        question: SPEED or MEMORY.
        estimate: The ratio to the baseline, with an interval.
        has_control: Whether the runs have an A/A control. A benchmark has its own.
        control: The ratio to the control.
    """
    side = read_side(question, estimate, metric)
    reason = None
    if side is Finding.NOTHING:
        reason = _no_side_reason(question, estimate)
    elif side in GAINS and has_control and not isinstance(estimate, BenchEstimate):
        is_held = control is not None and read_side(question, control, metric) is side
        if not is_held:
            side = Finding.NOTHING
            reason = _not_held_reason(control)
    if question == SPEED and is_same_speed(estimate):
        finding = Finding((*side.value, *Finding.SAME_SPEED.value))
        return Claim(question, estimate, finding, no_side_reason=reason)
    return Claim(question, estimate, side, reason)


def _not_held_reason(control: Estimate | None) -> Reason:
    """Return why a gain is not claimed relative to the A/A control."""
    if control is not None and control.has_interval:
        return GAIN_WITHIN_CONTROL
    n = 0 if control is None else control.n
    return Reason(f"the A/A control has only n = {n}", may_pass=True)


def _no_side_reason(question: str, estimate: Estimate) -> Reason:
    """Return why an interval shows nothing. Only that of a benchmark can lie beside no change and do so."""
    null = COMPARED_METRICS[question].null
    low, high = estimate.ends
    if low is not None and low > null:
        return GAIN_WITHIN_CONTROL
    if high is not None and high < null:
        return Reason("the slowdown is not shown to exceed the A/A control", may_pass=True)
    return Reason("the confidence interval includes zero difference", may_pass=True)


def with_forecast(claim: Claim, metric: ComparedMetric, spread: tuple[float, float] | None) -> Claim:
    """Return an open claim with the range of further seeds that would decide it.

    Args:
        spread: The standard deviation of one pair, pooled over all groups, and its degrees of freedom.
    """
    estimate = claim.estimate
    if estimate is None or not claim.is_open or claim.is_by_benchmark:
        return claim
    if not estimate.has_interval:
        missing = max(1, MIN_RUNS - estimate.n)
        return replace(claim, more_seeds=(missing, missing))
    if spread is None or claim.question == MEMORY:
        return claim
    alternatives = _distances(claim.question, estimate, metric)
    return replace(claim, more_seeds=forecast_further_seeds(estimate, alternatives, *spread))


def _distances(question: str, estimate: Estimate, metric: ComparedMetric) -> list[list[float]]:
    """Return the ways to decide a question, each with the distances from the limits that it must clear."""
    center = estimate.center
    if question == SPEED:
        margin = math.log1p(SPEED_MARGIN)
        return [[abs(center)], [center + margin, margin - center]]
    gain = -center if metric.lower_is_better else center
    if metric.margin is None:
        return [[abs(gain)]]
    return [[-gain], [gain + metric.margin]]
