"""Phrases that several sentences share: differences in quality, what became of runs, names of groups."""

from collections.abc import Callable, Iterable

from ampcompare.analysis.claims import largest_loss
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.scale import DIFFERENCE
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.runtime import formatting


def not_worse(metric: ComparedMetric) -> str:
    """Return `not lower by more than 0.5 points`; the metric needs a margin."""
    return f"not {metric.worse} by more than {metric.tolerance}"


def difference(estimate: Estimate, metric: ComparedMetric, *marks: float) -> str:
    """Return a difference with its sign and unit: `−0.14 points`."""
    return metric.with_unit(DIFFERENCE.value(estimate, (*metric.zone, *marks)))


def size(value: float, estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the size of a difference with the digits of an estimate, without sign and unit: `0.14`."""
    return formatting.amount(value, DIFFERENCE.digits_of(estimate, metric.zone))


def allowed_loss(estimate: Estimate, metric: ComparedMetric) -> str:
    """Return the size of the largest loss that the interval allows: `0.48`; "" without a loss or interval."""
    loss = largest_loss(estimate, metric) or 0.0
    return size(loss, estimate, metric) if loss > 0 else ""


def side(estimate: Estimate) -> str:
    """Return whether the value is `higher` or `lower` than that of the baseline."""
    return "higher" if estimate.value > 0 else "lower"


def failed_runs(group: Group, name: str) -> str:
    """Return `2 of 5 runs of fp16 failed`; of runs that are not all at their end `2 runs of fp16 failed`."""
    outcomes = group.outcomes
    if outcomes.ended < sum(vars(outcomes).values()):
        return f"{formatting.plural(outcomes.failed, 'run')} of {name} failed, {outcomes.finished} finished"
    if outcomes.ended == 1:
        return f"the only run of {name} failed"
    return f"{outcomes.failed} of {outcomes.ended} runs of {name} failed"


def group_by_text(
    groups: Iterable[Group], describe: Callable[[Group], str], limit: int = 4
) -> list[tuple[str, str]]:
    """Return the names of the groups that a text describes, with the text. A group may have none."""
    described = ((group.display_name, describe(group)) for group in groups)
    return formatting.group_by_reason([pair for pair in described if pair[1]], limit)


def not_finished(group: Group, name: str) -> str:
    """Return `fp16 has not finished: 0 of 5 runs, 5 running`."""
    return f"{name} has not finished: {group.outcomes.text}"
