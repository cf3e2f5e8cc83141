"""The control "chaos": the baseline trained again after the last bits of its initial weights were changed.

`ampcompare sweep FILE --control chaos` trains it. Nothing but one ulp in each weight differs, so its
difference from the baseline shows how much the baseline differs from itself. Runs that show a difference here
do not resolve such differences: then no group is shown to be worse. Unlike the runs of an A/A control, its
runs are among those of the other groups, so they are paired by seed.
"""

import numpy as np

from ampcompare import metrics
from ampcompare.analysis import phrases
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_table import SEED
from ampcompare.analysis.scale import DIFFERENCE
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.runs import RunRecord
from ampcompare.runtime.formatting import plural


def has_equal_losses(run: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs logged equal training losses at all common steps, of which there is one."""
    losses = _losses_by_step(run)
    other_losses = _losses_by_step(other)
    common = losses.keys() & other_losses.keys()
    values = np.array([[losses[step], other_losses[step]] for step in common])
    return bool(common) and np.array_equal(values[:, 0], values[:, 1], equal_nan=True)


def _losses_by_step(run: RunRecord) -> dict[float, float]:
    rows, losses = run.logged_numbers(metrics.LOSS)
    steps = run.numbers(metrics.STEP)[rows]
    return dict(zip(steps.tolist(), losses.tolist(), strict=True))


def describe_equal_losses(control: Group, baseline: Group) -> str:
    """Return in how many runs the changed bits had no effect, as a sentence; "" if there is none.

    These runs logged the same training losses as the baseline at their seed, bit by bit. A run without a
    loss, or without a common step, is not among them.

    Args:
        control: A chaos control.
        baseline: The group that it repeats.
    """
    base_runs: dict[str, list[RunRecord]] = {}
    for seed, run in zip(baseline.rows[SEED], baseline.records, strict=True):
        base_runs.setdefault(seed, []).append(run)
    count = 0
    for seed, run in zip(control.rows[SEED], control.records, strict=True):
        if seed is not None:
            count += any(has_equal_losses(run, base) for base in base_runs.get(seed, ()))
    if not count:
        return ""
    return (
        f"In {count} of {plural(control.n, 'run')} of {control.display_name} the changed bits had no effect "
        "on the training losses, so these runs do not show how much "
        f"{baseline.display_name} differs from itself."
    )


def is_unresolved(estimate: Estimate | None) -> bool:
    """Return whether the interval of a chaos control's difference in quality excludes zero.

    Args:
        estimate: The control's difference in quality from the baseline; None if nothing was compared.
    """
    return estimate is not None and estimate.side_of(0.0) != 0


def describe_unresolved(
    control: Group, baseline: Group, metric: ComparedMetric, estimate: Estimate | None
) -> str:
    """Return a sentence that these runs do not resolve such differences, "" if the interval includes zero.

    Where it is not empty, no group may be called worse.

    Args:
        control: A chaos control.
        baseline: The group that it repeats.
        estimate: The control's difference in quality from the baseline; None if nothing was compared.
    """
    if estimate is None or not is_unresolved(estimate):
        return ""
    difference = phrases.difference(estimate, metric)
    interval = DIFFERENCE.confidence_interval(estimate, metric.zone)
    return (
        f"{control.display_name} differs from {baseline.display_name} by {difference} of {metric.noun} "
        f"({interval}), although nothing but the last bits of the initial weights differs: these runs do not "
        "resolve such differences, so none is called worse."
    )
