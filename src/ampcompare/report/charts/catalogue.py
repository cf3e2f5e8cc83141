"""Every chart by name: one function, one flat table and one Vega-Lite specification each, made with Altair.

A specification stands alone: its data is in `datasets.data`, its subtitle names the setting and the machine.
The same specification becomes a W&B custom chart by naming another data source. Altair checks the
specification; the rows are put in after that, because checking them too takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.charts import bars, forest
from ampcompare.report.charts.activations import activations_by_layer
from ampcompare.report.charts.bars import (
    energy,
    peak_memory,
    step_time,
    throughput_bars,
    time_to_target,
    varied_bars,
)
from ampcompare.report.charts.curves import (
    eval_accuracy,
    eval_accuracy_time,
    scale_factor,
    throughput_curve,
    train_accuracy,
    train_loss,
)
from ampcompare.report.charts.difference import eval_difference, varied_difference
from ampcompare.report.charts.drift import throughput_over_sweep
from ampcompare.report.charts.forest import memory_ratios, quality_differences, speed_ups, varied_effect
from ampcompare.report.charts.gradients import underflow, underflow_by_layer
from ampcompare.report.charts.parts import DATA, Spec, Varied
from ampcompare.report.charts.tradeoff import accuracy_against_throughput
from ampcompare.report.charts.updates import lost_updates, lost_updates_by_layer
from ampcompare.report.runs.groups import Group

CHARTS: dict[str, Callable[[Analysis], Spec]] = {
    "eval-difference": eval_difference,
    "eval-accuracy": eval_accuracy,
    "speed-ups": speed_ups,
    "quality-differences": quality_differences,
    "eval-accuracy-time": eval_accuracy_time,
    "throughput-bars": throughput_bars,
    "throughput-sweep": throughput_over_sweep,
    "accuracy-throughput": accuracy_against_throughput,
    "time-to-accuracy": time_to_target,
    "peak-memory": peak_memory,
    "memory-ratios": memory_ratios,
    "energy": energy,
    "scale-factor": scale_factor,
    "underflow": underflow,
    "underflow-layers": underflow_by_layer,
    "activations-layers": activations_by_layer,
    "lost-updates": lost_updates,
    "lost-updates-layers": lost_updates_by_layer,
    "train-loss": train_loss,
    "train-accuracy": train_accuracy,
    "throughput": throughput_curve,
    "step-time": step_time,
}

# What of them depends on the baseline and the margin that they are compared with.
VARIED: dict[str, Callable[[Analysis, Sequence[Comparison], float | None], Varied]] = {
    "eval-difference": varied_difference,
    "speed-ups": partial(varied_effect, forest.SPEED),
    "quality-differences": partial(varied_effect, forest.QUALITY),
    "memory-ratios": partial(varied_effect, forest.MEMORY),
    "throughput-bars": partial(varied_bars, bars.SPEED),
    "time-to-accuracy": partial(varied_bars, bars.TIME),
    "peak-memory": partial(varied_bars, bars.MEMORY),
    "energy": partial(varied_bars, bars.ENERGY),
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
