"""Every chart by name: one function and one Vega-Lite specification each, nine in all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampcompare.report.charts.curves import (
    loss_scale,
    lost_updates,
    quality,
    quality_by_time,
    throughput,
    training_loss,
    underflow,
)
from ampcompare.report.charts.draw import Spec
from ampcompare.report.charts.layers import largest_activations
from ampcompare.report.charts.published import published_ratios

if TYPE_CHECKING:
    from ampcompare.report.analysis.analysis import Analysis

TRAINING = {
    "quality": quality,
    "quality-time": quality_by_time,
    "train-loss": training_loss,
    "throughput": throughput,
}
# By the key that the analysis has a sentence for where something happened.
NUMERICS = {
    "scale": ("loss-scale", loss_scale),
    "underflow": ("underflow", underflow),
    "updates": ("lost-updates", lost_updates),
    "activations": ("activations", largest_activations),
}
PUBLISHED = "published"


def charts_of(analysis: Analysis) -> dict[str, Spec]:
    """The charts for which something was recorded, those of numerics where there is something to be seen."""
    made = dict(TRAINING) | {
        name: make for key, (name, make) in NUMERICS.items() if key in analysis.sentences
    }
    found = {name: make(analysis) for name, make in made.items()}
    if analysis.published is not None:
        found[PUBLISHED] = published_ratios(analysis.published)
    setting = {"description": f"{analysis.setting.words} · {analysis.setting.machine}"}
    return {name: spec | setting for name, spec in found.items() if spec is not None}
