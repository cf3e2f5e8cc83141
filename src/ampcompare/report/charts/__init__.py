"""The charts by name; each has one Vega-Lite specification, for the page and as a file."""

from ampcompare.analysis.analysis import Analysis
from ampcompare.report.charts import training_curves
from ampcompare.report.charts.dot_plots import largest_activations, paired_differences, published_ratios
from ampcompare.report.charts.forest import forests
from ampcompare.report.charts.vega import Spec

TRAINING = {
    "quality": training_curves.quality,
    "differences": paired_differences,
    "quality-time": training_curves.quality_by_time,
    "train-loss": training_curves.training_loss,
    "throughput": training_curves.throughput,
}
TIMED = ("quality-time", "throughput")  # left out where the speed comes from a benchmark
# By key of the analysis's sentences on numerics. A chart without a sentence has nothing to show.
NUMERICS = {
    "scale": ("loss-scale", training_curves.loss_scale),
    "underflow": ("underflow", training_curves.underflow),
    "updates": ("lost-updates", training_curves.lost_updates),
    "activations": ("activations", largest_activations),
}
PUBLISHED = "published"


def charts_of(analysis: Analysis) -> dict[str, Spec]:
    """Return the specifications of the charts for which the runs have data, by name."""
    numerics = dict(chart for key, chart in NUMERICS.items() if key in analysis.numerics)
    training = {
        name: make for name, make in TRAINING.items() if not (analysis.has_bench_speed and name in TIMED)
    }
    makers = {**training, **numerics, PUBLISHED: published_ratios}
    specs = forests(analysis) | {name: make(analysis) for name, make in makers.items()}
    setting = {"description": f"{analysis.setting.text} · {analysis.setting.machine}"}
    return {name: spec | setting for name, spec in specs.items() if spec is not None}
