"""Every chart by name: one function and one Vega-Lite specification each, nine in all."""

from ampcompare.analysis.analysis import Analysis
from ampcompare.report.charts import training_curves
from ampcompare.report.charts.dot_plots import largest_activations, published_ratios
from ampcompare.report.charts.vega import Spec

TRAINING = {
    "quality": training_curves.quality,
    "quality-time": training_curves.quality_by_time,
    "train-loss": training_curves.training_loss,
    "throughput": training_curves.throughput,
}
TIMED = ("quality-time", "throughput")  # left out where speed is from a benchmark
# By the key that the analysis has a sentence for where something happened.
NUMERICS = {
    "scale": ("loss-scale", training_curves.loss_scale),
    "underflow": ("underflow", training_curves.underflow),
    "updates": ("lost-updates", training_curves.lost_updates),
    "activations": ("activations", largest_activations),
}
PUBLISHED = "published"


def charts_of(analysis: Analysis) -> dict[str, Spec]:
    """The charts for which something was recorded, those of numerics where there is something to be seen."""
    seen = dict(made for key, made in NUMERICS.items() if key in analysis.numerics)
    training = {
        name: made for name, made in TRAINING.items() if not (analysis.has_bench_speed and name in TIMED)
    }
    every = {**training, **seen, PUBLISHED: published_ratios}
    found = {name: make(analysis) for name, make in every.items()}
    setting = {"description": f"{analysis.setting.text} · {analysis.setting.machine}"}
    return {name: spec | setting for name, spec in found.items() if spec is not None}
