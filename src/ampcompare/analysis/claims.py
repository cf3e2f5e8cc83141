"""Claims: what the confidence interval of one question shows, and what would decide it otherwise."""

import math
from dataclasses import dataclass, replace

from ampcompare.analysis.bench_results import BenchEstimate
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, MEMORY, QUALITY, SPEED
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.statistics.sample_size import forecast_further_seeds

EQUIVALENT, NOT_WORSE, SAME_SPEED = "equivalent", "not worse", "same speed"
SPEED_MARGIN = 0.02  # speeds whose ratio lies within this fraction of 1 are the same
GAINS = ("faster", "smaller")  # must hold relative to the control, too
INCONCLUSIVE, NO_VERDICT, NOT_COMPARED = "inconclusive", "no verdict", "not compared"
INCLUDES_NO_CHANGE = "the confidence interval includes zero difference"
BEYOND_MARGIN = "the confidence interval includes zero difference and extends beyond the margin"
NO_MARGIN = (
    "the confidence interval includes zero difference and no equivalence margin is set (--margin X; "
    "an accuracy that --metric declares as :fraction or :percent has a margin of 0.5 points)"
)
WITHIN_CONTROL = "the gain is not shown to exceed the A/A control"
LOSS_WITHIN_CONTROL = "the slowdown is not shown to exceed the A/A control"


@dataclass(frozen=True)
class Claim:
    """The claim that the interval of one question supports.

    Attributes:
        question: The question: speed, memory or quality.
        estimate: The estimate, None if nothing was compared.
        shown: The words of its metric for what is shown, and EQUIVALENT, NOT_WORSE or SAME_SPEED.
        why: Why nothing is shown, "" if something is.
        why_no_side: Why neither "faster" nor "slower" is shown, where the speed is shown to be the same.
        more_seeds: The lowest and the highest number of further seeds that would decide the question; None
            if that is not known.
        is_open: Whether the question is undecided, and more seeds may decide it.
    """

    question: str
    estimate: Estimate | None
    shown: tuple[str, ...] = ()
    why: str = ""
    why_no_side: str = ""
    more_seeds: tuple[int, int] | None = None
    is_open: bool = False

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


def read_quality(estimate: Estimate, metric: ComparedMetric) -> tuple[str, ...]:
    """Return what the interval of a difference in quality shows.

    Where "worse" is shown, "not worse by more than the margin" is never claimed.
    """
    low, high = estimate.ends
    loss = largest_loss(estimate, metric)
    if low is None or high is None or loss is None:
        return ()
    sides = side_words(QUALITY, estimate, metric)
    if metric.margin is None:
        return sides
    if -metric.margin < low and high < metric.margin:
        return (*sides, EQUIVALENT)
    if loss < metric.margin and not sides:
        return (NOT_WORSE,)
    return sides


def is_same_speed(estimate: Estimate, margin: float = SPEED_MARGIN) -> bool:
    """Return whether the whole interval of a ratio lies within a fraction of 1.

    An interval of a benchmark is widened by what its control does not resolve.
    """
    low, high = estimate.ends
    if low is None or high is None or low <= 0:
        return False
    resolution = estimate.resolution if isinstance(estimate, BenchEstimate) else 0.0
    return max(high, 1 / low) * (1 + resolution) < 1 + margin


def side_words(question: str, estimate: Estimate, metric: ComparedMetric) -> tuple[str, ...]:
    """Return the word for the side of no change on which the interval lies."""
    run_metric = COMPARED_METRICS[question]
    side = estimate.side_of(run_metric.null)
    if side == 0:
        return ()
    above, below = run_metric.sides or ("", "")
    if question == QUALITY and metric.lower_is_better:
        side = -side
    return (above,) if side > 0 else (below,)


def claim_quality(
    estimate: Estimate, metric: ComparedMetric, degenerate_reason: str, unresolved: str
) -> Claim:
    """Return the claim on quality.

    Args:
        estimate: The difference in the shown unit, with an interval.
        degenerate_reason: Why the metric of the group is uninformative, "" if it is not. The group may then
            be shown to be worse, never to be the same.
        unresolved: Why no difference may be claimed, "" if it may.
    """
    shown = read_quality(estimate, metric)
    if unresolved and not {"worse", "better"}.isdisjoint(shown):
        shown = tuple(word for word in shown if word not in ("worse", "better"))
        if not shown:
            return Claim(QUALITY, estimate, (), unresolved)
    if degenerate_reason and "worse" in shown:
        return Claim(QUALITY, estimate, ("worse",))
    if degenerate_reason:
        return Claim(QUALITY, estimate, (), degenerate_reason)
    if shown:
        return Claim(QUALITY, estimate, shown)
    reason = NO_MARGIN if metric.margin is None else BEYOND_MARGIN
    return Claim(QUALITY, estimate, (), reason, is_open=True)


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
    sides = side_words(question, estimate, metric)
    same = (SAME_SPEED,) if question == SPEED and is_same_speed(estimate) else ()
    is_gain = not {*sides}.isdisjoint(GAINS)
    needs_control = has_control and is_gain and not isinstance(estimate, BenchEstimate)
    is_held = control is not None and side_words(question, control, metric) == sides
    if needs_control and not is_held:
        sides = ()
        why_no_side = _not_held_reason(control)
    else:
        why_no_side = "" if sides else _no_side_reason(question, estimate)
    if sides or same:
        return Claim(question, estimate, (*sides, *same), why_no_side=why_no_side)
    return Claim(question, estimate, (), why_no_side, is_open=True)


def _not_held_reason(control: Estimate | None) -> str:
    """Return why a gain is not claimed relative to the A/A control."""
    if control is not None and control.has_interval:
        return WITHIN_CONTROL
    n = 0 if control is None else control.n
    return f"the A/A control has only n = {n}"


def _no_side_reason(question: str, estimate: Estimate) -> str:
    """Return why an interval shows nothing. Only that of a benchmark can lie beside no change and do so."""
    null = COMPARED_METRICS[question].null
    low, high = estimate.ends
    if low is not None and low > null:
        return WITHIN_CONTROL
    if high is not None and high < null:
        return LOSS_WITHIN_CONTROL
    return INCLUDES_NO_CHANGE


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
