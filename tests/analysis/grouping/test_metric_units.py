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
        ("eval/accuracy", {}, True),
        ("test/accuracy:max:fraction", {}, True),
        ("eval/top5_accuracy", {}, True),
        ("eval/accuracy", {"counts_samples": False}, False),  # of pixels, or a function of the user's own
        ("val_acc:max:fraction", {}, False),
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
    [
        ("eval/exact_match:max:plain", 1, 1),
        ("eval/exact_match:max:fraction", 1, 100),
        ("eval/exact_match:max:percent", 100, 100),
        ("eval/accuracy:max:plain", 1, 1),
        ("eval/accuracy", 100, 100),
    ],
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


def test_the_values_of_unpaired_groups_have_the_floor_each():
    """Seeds that are not shared: Welch's interval, in which only the first group is below one sample."""
    fp32, amp = np.array([0.65, 0.652, 0.651]), np.array([0.64, 0.66, 0.67])
    runs = logged("eval/accuracy", fp32, amp)
    for run in runs[3:]:
        run.config["seed"] += 10
    spreads = np.array([1.0 * 100 / SAMPLES, 100 * amp.std(ddof=1)])
    errors = spreads**2 / 3
    df = errors.sum() ** 2 / (errors**2 / 2).sum()
    center = 100 * (amp.mean() - fp32.mean())
    expected = stats.t.interval(0.95, df, center, np.sqrt(errors.sum()))
    analysis = analyse_runs(runs)
    assert quality_of(analysis) == pytest.approx(expected)
    (caveat,) = [caveat for caveat in analysis.caveats if "assumes a standard deviation of" in caveat]
    assert "fp32 (none)" in caveat
    assert "native" not in caveat


@pytest.mark.parametrize(("key", "way"), [(IOU, ":max"), ("eval/accuracy", ""), ("val_acc", ":max")])
def test_percent_of_values_below_one_is_refused_and_both_readings_work(key: str, way: str):
    runs = logged(key, better="higher")
    with pytest.raises(UserError, match="fraction") as refused:
        analyse_runs(runs, metric=f"{key}{way}:percent")
    words = shlex.split(str(refused.value).replace(";", " ").replace(",", " "))
    named = [word for option, word in pairwise(words) if option == "--metric"]
    _, fraction, plain = named
    of_fraction = analyse_runs(runs, metric=fraction)
    assert quality_of(of_fraction)[0] == pytest.approx(100 * quality_of(analyse_runs(runs, metric=plain))[0])
    assert (of_fraction.metric.unit, of_fraction.metric.margin) == ("points", 0.5)


def test_percent_is_no_question_where_the_values_or_their_format_tell():
    assert analyse_runs(logged(IOU, 100 * FP32, 100 * AMP), metric=f"{IOU}:max:percent").metric.factor == 1
    declared = logged(IOU)
    for run in declared:
        run.units[IOU] = "percent"  # cells such as 0.65%
    assert analyse_runs(declared, metric=f"{IOU}:max:percent").metric.factor == 1


@pytest.mark.parametrize(
    ("metric", "margin", "scale"),
    [
        (f"{IOU}:max", 2.5, "0 to 1;"),
        (f"{IOU}:max:fraction", 100, "0 to 100 points"),
        ("eval/accuracy", 150, "0 to 100 points"),
    ],
)
def test_a_margin_of_the_whole_scale_is_refused_with_one_that_works(metric: str, margin: float, scale: str):
    runs = logged(metric.partition(":")[0])
    with pytest.raises(UserError, match=scale) as refused:
        analyse_runs(runs, metric=metric, margin=margin)
    example = float(str(refused.value).rpartition("--margin ")[2])
    assert analyse_runs(runs, metric=metric, margin=example).metric.margin == example


def test_a_margin_below_the_scale_and_of_an_unknown_scale_is_taken():
    assert analyse_runs(logged(IOU), metric=f"{IOU}:max", margin=0.9).metric.margin == 0.9
    perplexity = logged("eval/perplexity", 20 * FP32, 20 * AMP)
    assert analyse_runs(perplexity, metric="eval/perplexity:min", margin=1).metric.margin == 1


@pytest.mark.parametrize(
    ("key", "planned", "metric", "margin", "text"),
    [
        (IOU, 0.01, None, 0.01, "planned: margin 0.01"),
        (IOU, 0.01, f"{IOU}:max:fraction", 1.0, "planned: margin 1 point"),
        (IOU, 0.07, f"{IOU}:max:fraction", 7.0, "planned: margin 7 points"),
        ("eval/accuracy", 0.5, None, 0.5, "planned: margin 0.5 points"),
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
    for again in (analysis, analyse_runs(runs, metric=metric, margin=margin)):
        assert "Not as planned" not in " ".join(again.caveats)
    other = analyse_runs(runs, metric=metric, margin=margin / 2)
    assert "Not as planned: the margin is" in " ".join(other.caveats)


def test_a_plan_sets_nothing_for_another_metric():
    runs = logged("eval/accuracy", plan={"margin": 0.5, "target": 0.6}, task="eval/accuracy")
    analysis = analyse_runs(runs, metric="eval/loss")
    assert (analysis.metric.margin, analysis.metric.target) == (None, None)
    assert any("plan is for eval accuracy" in caveat for caveat in analysis.caveats)


def test_a_planned_margin_of_the_whole_scale_is_not_used():
    analysis = analyse_runs(logged(IOU, plan={"margin": 1}, task=IOU))
    assert analysis.metric.margin is None
    assert any("plan.margin=1" in caveat for caveat in analysis.caveats)


def test_runs_that_do_not_record_what_counts_samples_are_pooled_with_those_that_do():
    old, new = logged("eval/accuracy"), logged("eval/accuracy", counts_samples=True)
    mixed = [*old[:2], *new[2:4], *old[4:6], *new[6:]]
    assert [group.n for group in analyse_runs(mixed).groups] == [4, 4]
