"""Every chart by name: one function, one flat table and one Vega-Lite specification each, made with Altair.

A specification stands alone: its data is in `datasets.data`, its subtitle names the setting and the machine.
The same specification becomes a W&B custom chart by naming another data source. Altair checks the
specification; the rows are put in after that, because checking them too takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.activations import activations_by_layer
from ampcompare.report.charts.bars import (
    energy,
    peak_memory,
    step_time,
    throughput_bars,
    time_to_target,
)
from ampcompare.report.charts.curves import (
    eval_accuracy,
    eval_accuracy_time,
    scale_factor,
    throughput_curve,
    train_loss,
)
from ampcompare.report.charts.difference import eval_difference
from ampcompare.report.charts.forest import memory_ratios, quality_differences, speed_ups
from ampcompare.report.charts.gradients import underflow
from ampcompare.report.charts.parts import DATA, Spec
from ampcompare.report.charts.updates import lost_updates
from ampcompare.report.runs.groups import Group

CHARTS: dict[str, Callable[[Analysis], Spec]] = {
    "eval-difference": eval_difference,
    "eval-accuracy": eval_accuracy,
    "speed-ups": speed_ups,
    "quality-differences": quality_differences,
    "eval-accuracy-time": eval_accuracy_time,
    "throughput-bars": throughput_bars,
    "time-to-accuracy": time_to_target,
    "peak-memory": peak_memory,
    "memory-ratios": memory_ratios,
    "energy": energy,
    "scale-factor": scale_factor,
    "underflow": underflow,
    "activations-layers": activations_by_layer,
    "lost-updates": lost_updates,
    "train-loss": train_loss,
    "throughput": throughput_curve,
    "step-time": step_time,
}

OF_COMPARISONS = frozenset({"eval-difference", "speed-ups", "quality-differences", "memory-ratios"})


def all_charts(analysis: Analysis) -> dict[str, Spec]:
    """Every chart by name. A chart for which nothing was recorded has an empty dataset."""
    return {name: make(analysis) for name, make in CHARTS.items()}


def has_data(spec: Spec) -> bool:
    """Whether there is anything to draw."""
    return bool(spec["datasets"][DATA])


def missing_labels(spec: Spec, groups: Sequence[Group]) -> list[str]:
    """Groups without a row in the chart."""
    drawn = {row["backend"] for row in spec["datasets"][DATA]}
    return [g.label for g in groups if g.label not in drawn]
