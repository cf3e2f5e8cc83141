"""What a metric's values mean: which of them count samples, and in which unit margin and plan are."""

import shlex
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.fakes import make

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord

IOU = "eval/mean_iou"
FP32 = np.array([0.6512345678, 0.6534567891, 0.6498765432, 0.6523456789])
AMP = FP32 + np.array([0.0031234567, 0.0004567891, -0.0007654321, 0.0058765432])
SAMPLES = 200


def logged(
    key: str, fp32: Any = FP32, amp: Any = AMP, *, plan: Any = None, task: Any = None, **score: Any
) -> list[RunRecord]:
    """Return runs of two backends with these last values of a metric, on a test set of 200 samples.

    Args:
        plan: The plan in every config.
        task: The compared metric that every run records; None: nothing about it.
        **score: What every run records of the metric.
    """

    def edit(value: float) -> Any:
        def change(made: Any) -> None:
            evaluations = [row for row in made["rows"] if "eval/accuracy" in row]
            for row in evaluations:
                del row["eval/accuracy"]
                row[key] = value * row["epoch"] / 5
            made["summary"] |= {key: value, metrics.TEST_IMAGES: SAMPLES}
            if task or score:
                recorded = {"metric": task or key, "metrics": {key: {"better": "higher", **score}}}
                made["summary"]["environment"] |= {metrics.TASK: recorded}
            if plan:
                made["config"]["plan"] = plan

        return change

    values = {"none": fp32, "native": amp}
    return [
        make(backend, seed, edit=edit(float(value)))
        for backend, column in values.items()
        for seed, value in enumerate(column)
    ]


def interval(differences: np.ndarray, floor: float = 0.0) -> Any:
    """Return Student's interval of paired differences, with a standard deviation of at least `floor`."""
    n = len(differences)
    error = max(float(differences.std(ddof=1)), floor) / np.sqrt(n)
    return pytest.approx(stats.t.interval(0.95, n - 1, differences.mean(), error), rel=1e-5)


def quality_of(analysis: Analysis) -> Any:
    return analysis.comparison("native").estimates["quality"].ends


@pytest.mark.parametrize(
    ("metric", "score", "counts"),
    [
        (f"{IOU}:max:fraction", {}, False),
        (f"{IOU}:max:fraction", {"counts_samples": True}, True),
        ("eval/top5_accuracy", {}, True),
        ("eval/accuracy", {"counts_samples": False}, False),  # of pixels, or a function of the user's own
        ("eval/token_accuracy:max:fraction", {}, False),
    ],
)
def test_only_metrics_that_count_samples_differ_by_at_least_one(metric: str, score: Any, counts: bool):
    key = metric.partition(":")[0]
    analysis = analyse_runs(logged(key, **score), metric=metric)
    assert quality_of(analysis) == interval(100 * (AMP - FP32), 100 / SAMPLES if counts else 0.0)
    assumed = [caveat for caveat in analysis.caveats if "assumes a standard deviation of" in caveat]
    assert [f"one of {SAMPLES}" in caveat for caveat in assumed] == [True] * counts


@pytest.mark.parametrize(
    ("metric", "logged_times", "shown_times"),
    [("eval/exact_match:max:percent", 100, 100), ("eval/accuracy:max:plain", 1, 1)],
)
def test_the_floor_of_one_sample_is_in_the_unit_of_the_metric(
    metric: str, logged_times: float, shown_times: float
):
    runs = logged(metric.partition(":")[0], logged_times * FP32, logged_times * AMP, counts_samples=True)
    expected = interval(shown_times * (AMP - FP32), shown_times / SAMPLES)
    assert quality_of(analyse_runs(runs, metric=metric)) == expected


@pytest.mark.parametrize(("decimals", "is_assumed"), [(2, True), (3, False)])
def test_other_metrics_have_the_last_logged_decimal_as_their_floor(decimals: int, is_assumed: bool):
    fp32 = np.round([0.651, 0.652, 0.653, 0.654], decimals)
    amp = np.round([0.654, 0.652, 0.657, 0.655], decimals)
    runs = logged(IOU, fp32, amp)
    for run in runs:  # a log with so many decimals
        column = run.logged[IOU]
        run.logged[IOU] = (column[0], np.round(column[1], decimals))
    analysis = analyse_runs(runs, metric=f"{IOU}:max")
    assert quality_of(analysis) == interval(amp - fp32, 10.0**-decimals)
    caveats = " ".join(analysis.caveats)
    assert ("(the last logged decimal)" in caveats) == is_assumed


def test_percent_of_values_below_one_is_refused_and_both_readings_work():
    runs = logged(IOU, better="higher")
    with pytest.raises(UserError, match="fraction") as refused:
        analyse_runs(runs, metric=f"{IOU}:max:percent")
    words = shlex.split(str(refused.value).replace(";", " ").replace(",", " "))
    named = [word for option, word in pairwise(words) if option == "--metric"]
    _, fraction, plain = named
    of_fraction, of_plain = (quality_of(analyse_runs(runs, metric=metric)) for metric in (fraction, plain))
    assert of_fraction[0] == pytest.approx(100 * of_plain[0])


@pytest.mark.parametrize(
    ("metric", "margin", "scale"),
    [
        (f"{IOU}:max", 2.5, "0 to 1;"),
        ("eval/accuracy", 150, "0 to 100 points"),
    ],
)
def test_a_margin_of_the_whole_scale_is_refused_with_one_that_works(metric: str, margin: float, scale: str):
    runs = logged(metric.partition(":")[0])
    with pytest.raises(UserError, match=scale) as refused:
        analyse_runs(runs, metric=metric, margin=margin)
    example = float(str(refused.value).rpartition("--margin ")[2])
    assert analyse_runs(runs, metric=metric, margin=example).metric.margin == example


@pytest.mark.parametrize(
    ("key", "planned", "metric", "margin", "text"),
    [
        (IOU, 0.07, f"{IOU}:max:fraction", 7.0, "planned: margin 7 points"),
        ("eval/accuracy", 0.5, "eval/accuracy:max:plain", 0.005, "planned: margin 0.005"),
    ],
)
def test_the_margin_of_a_plan_is_in_the_unit_of_the_planned_metric(
    key: str, planned: float, metric: str | None, margin: float, text: str
):
    runs = logged(key, plan={"margin": planned}, task=key)
    analysis = analyse_runs(runs, metric=metric)
    assert analysis.metric.margin == margin
    assert analysis.basis.endswith(text)
    assert "Not as planned" not in " ".join(analysis.caveats)
    other = analyse_runs(runs, metric=metric, margin=margin / 2)
    assert "Not as planned: the margin is" in " ".join(other.caveats)


def test_a_plan_sets_nothing_for_another_metric():
    runs = logged("eval/accuracy", plan={"margin": 0.5, "target": 0.6}, task="eval/accuracy")
    analysis = analyse_runs(runs, metric="eval/loss")
    assert (analysis.metric.margin, analysis.metric.target) == (None, None)
    assert any("plan is for eval accuracy" in caveat for caveat in analysis.caveats)
