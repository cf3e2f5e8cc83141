"""The recommendation follows from what is shown, and the costs from throughput, energy and batch size."""

import copy
from typing import Any

import pytest
from support.external import several
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, runs

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.costs import costs_as_values
from ampcompare.report.exports import to_json
from ampcompare.runs import RunRecord

NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
BASELINE = runs("none", BASE)
KEPT = runs("native", SAME, FAST)
CASES: dict[str, tuple[list[RunRecord], str, str]] = {
    "faster and kept": (
        [*BASELINE, *KEPT],
        "native",
        "Use native: 1.90× as fast, accuracy not lower by more than 0.5 points.",
    ),
    "the fastest of two": (
        [*BASELINE, *KEPT, *runs("fp16", SAME, FASTER)],
        "fp16",
        "Use fp16: 2.07× as fast",
    ),
    "the fastest lost accuracy": (
        [*BASELINE, *KEPT, *runs("fp16", less(3), FASTER)],
        "native",
        "Use native: 1.90× as fast, accuracy not lower by more than 0.5 points.",
    ),
    "the fastest is undecided": (
        [*BASELINE, *KEPT, *runs("fp16", NOISY, FASTER)],
        "native",
        "fp16 is faster, but without such a verdict on accuracy.",
    ),
    "the fastest has a failed run": (
        [*BASELINE, *KEPT, *runs("fp16", SAME, FASTER, failed=(1,))],
        "native",
        "fp16 is faster, but without such a verdict on accuracy.",
    ),
    "accuracy open": (
        [*BASELINE, *runs("native", NOISY, FAST)],
        "",
        "No recommendation yet: the accuracy of native is not decided (the interval allows ",
    ),
    "speed open": (
        [*BASELINE, *runs("native", SAME, (36, 44, 43, 41, 40))],
        "",
        "No recommendation yet: the speed of native is not decided",
    ),
    "slower and lost": (
        [*BASELINE, *runs("native", SAME, [v / 2 for v in SLOW]), *runs("fp16", less(3), FASTER)],
        "fp32 (none)",
        "Stay with fp32 (none): native is slower and fp16 loses accuracy.",
    ),
    "synthetic data": (
        [*runs("none", BASE, source="synthetic"), *runs("native", SAME, FAST, source="synthetic")],
        "",
        "No recommendation: the data are synthetic",
    ),
    "nothing to compare": (BASELINE, "", ""),
    "other settings": ([*BASELINE, *runs("native", SAME, FAST, config={"batch_size": 64})], "", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_recommendation_is_what_the_evidence_allows_or_says_what_is_missing(case: str):
    made, label, text = CASES[case]
    analysis = analyse_runs(made)
    assert analysis.recommendation.label == label
    assert text in analysis.recommendation.text
    assert bool(analysis.recommendation.text) is bool(text)


def with_work(
    backend: str, seed: int, rate: float, joules: float | None, steps: int, epochs: float
) -> RunRecord:
    """Return a run of `epochs` epochs in `steps` steps of 128 samples that took an hour."""

    def edit(plan: Any) -> None:
        plan["summary"][metrics.THROUGHPUT_MEDIAN] = rate
        plan["rows"][-1] |= {metrics.STEP: steps, metrics.EPOCH: epochs, metrics.ELAPSED: 3600.0}
        if joules is not None:
            plan["rows"][-1][metrics.ENERGY] = joules
        for row in plan["rows"][:-1]:
            row[metrics.STEP] = row[metrics.EPOCH] = 0
            row[metrics.ELAPSED] = 0.0

    return make(backend, seed, edit=edit)


@pytest.mark.parametrize(
    ("steps", "epochs", "joules", "expected"),
    [
        # 3,910 / 10 * 128 = 50,048 samples: at 500 and 1,000 per second 100 s and 50 s; 0.2 J each: 2.8 Wh.
        (3910, 10.0, None, "An epoch takes 100 s with fp32 (none) and 50 s with native."),
        (3910, 10.0, 0.2, "An epoch takes 100 s (2.8 Wh) with fp32 (none) and 50 s (2.8 Wh) with native."),
        # Without a whole epoch, 128,000 samples.
        (16, 0.16, None, "1,000 steps take 4.27 min with fp32 (none) and 2.13 min with native."),
    ],
)
def test_an_epoch_costs_what_throughput_and_energy_say(
    steps: int, epochs: float, joules: float | None, expected: str
):
    made = [
        with_work(backend, seed, rate, joules, steps, epochs)
        for backend, rate in (("none", 500.0), ("native", 1000.0))
        for seed in (1, 2, 3)
    ]
    analysis = analyse_runs(made)
    assert analysis.costs == expected


def test_an_undecided_speed_has_no_cost_of_an_epoch():
    made = [
        with_work(backend, seed, rate * (1 + seed / 20 * (-1) ** seed), None, 3910, 10.0)
        for backend, rate in (("none", 500.0), ("native", 505.0))
        for seed in (1, 2, 3)
    ]
    for run in made[3:]:
        run.summary[metrics.THROUGHPUT_MEDIAN] *= 1 + run.option("seed") / 10
    analysis = analyse_runs(made)
    assert not analysis.comparison("native").claims["speed"].shown
    assert analysis.costs == ""


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # 50,048 samples an epoch, three backends: the baseline is named once, and all times have one unit.
        ((382.0, 216.0, 379.0), "An epoch takes 2.18 min with {0}, 3.86 min with {1} and 2.20 min with {2}."),
        (
            (500.0, 250.0, 5000.0),
            "An epoch takes 1.67 min with {0}, 3.34 min with {1} and 0.167 min with {2}.",
        ),
        ((300.0, 500.0, 5000.0), "An epoch takes 167 s with {0}, 100 s with {1} and 10 s with {2}."),
        ((4.0, 8.0, 16.0), "An epoch takes 3.48 h with {0}, 1.74 h with {1} and 0.869 h with {2}."),
    ],
)
def test_the_cost_of_several_backends_names_the_baseline_once_and_has_one_unit(
    rates: tuple[float, ...], expected: str
):
    backends = ("none", "native", "apex_o1")
    made = [
        with_work(backend, seed, rate, None, 3910, 10.0)
        for backend, rate in zip(backends, rates, strict=True)
        for seed in (1, 2, 3)
    ]
    costs = analyse_runs(made).costs
    assert costs == expected.format("fp32 (none)", "native", "apex_o1")


def test_hours_count_each_process():
    made = copy.deepcopy([*BASELINE, *KEPT])
    for run in made:
        run.summary["environment"] = run.summary["environment"] | {"processes": 8}
        run.summary[metrics.ELAPSED] = 900.0
    hours = costs_as_values(analyse_runs(made))["hours"]
    assert hours == [{"device": "Test Device 9000", "hours": pytest.approx(10 * 8 * 0.25)}]


def test_other_programs_with_samples_per_second_and_no_batch_size_have_no_cost_of_an_epoch():
    options: dict[str, Any] = {"throughput": "samples_per_sec:per_second", "metric": "val_acc:max"}
    analysis = analyse_runs(several(), baseline="32-true", group_by=["trainer.precision"], **options)
    assert "epoch takes" not in analysis.costs
    assert "steps take" not in analysis.costs


def test_the_recipe_is_in_the_subtitle_and_the_exports():
    config = {
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01, "momentum": 0.0, "nesterov": False},
        "schedule": {"name": "cosine", "warmup_epochs": 1.0},
    }
    made = [*runs("none", BASE, config=config), *runs("native", SAME, FAST, config=config)]
    analysis = analyse_runs(made)
    assert "adamw, lr 0.001, weight decay 0.01, cosine schedule, warmup epochs 1" in analysis.basis
    assert '"optimizer": "adamw"' in to_json(analysis)
    other = analyse_runs([*made, *runs("native", SAME, FAST, config={"lr": 1, "optimizer": "sgd"})])
    assert "adamw and sgd" in other.basis
