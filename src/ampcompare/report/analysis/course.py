"""How the compared metric differs from the baseline's over the course of training, evaluation by evaluation.

Curves that agree lie on each other and say nothing; their difference, paired as the comparison is, does.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.groups import Group, seed_key
from ampcompare.report.runs.informative import step_of
from ampcompare.report.statistics.samples import Estimate, difference, mean_of_seeds

AtEpoch = dict[float, Mapping[Hashable, float]]


def course_of(comparison: Comparison) -> list[tuple[float, Estimate]]:
    """(epoch, difference to the baseline in the metric's shown unit) for each epoch that both sides have.

    Of the runs whose figures count, by the estimate that the comparison itself uses; from one pair there is
    no interval. Empty where nothing is compared.
    """
    if comparison.baseline is None:
        return []
    groups = (comparison.group, comparison.baseline)
    key, factor, step = comparison.metric.key, comparison.metric.factor, step_of(groups, comparison.metric)
    ours, theirs = (_at_epochs(group, key, factor) for group in groups)
    epochs = sorted(ours.keys() & theirs.keys())
    found = ((epoch, difference(ours[epoch], theirs[epoch], step=step)) for epoch in epochs)
    return [(epoch, estimate) for epoch, estimate in found if estimate is not None]


def _at_epochs(group: Group, key: str, factor: float) -> AtEpoch:
    """The metric's finite values by epoch, there by what pairs runs; none of a failed run."""
    pairs: dict[float, list[tuple[Hashable, float]]] = {}
    unlike = dict(zip(map(id, group.runs), group.ignored, strict=False))
    for figures in (f for f in group.counted if f.outcome is not Outcome.FAILED):
        paired_by = (seed_key(figures), unlike.get(id(figures), ()))
        epochs, values = figures.run.numbers(metrics.EPOCH), figures.run.numbers(key)
        known = np.isfinite(epochs) & np.isfinite(values)
        last = dict(
            zip(epochs[known].tolist(), values[known].tolist(), strict=True)
        )  # of one epoch, the last
        for epoch, value in last.items():
            pairs.setdefault(epoch, []).append((paired_by, value * factor))
    return {epoch: mean_of_seeds(found) for epoch, found in pairs.items()}
