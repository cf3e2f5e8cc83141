"""The recommendation follows from what is shown, and the costs from throughput, energy and batch size."""

import copy
from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, runs

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.costs import costs_as_values
from ampcompare.runs import RunRecord

NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
BASELINE = runs("none", BASE)
KEPT = runs("native", SAME, FAST)
HALF = [speed / 2 for speed in SLOW]
CASES: dict[str, tuple[list[RunRecord], str, str]] = {
    "faster and kept": ([*BASELINE, *KEPT], "native", "Use native: 1.90×"),
    "the fastest lost accuracy": ([*BASELINE, *KEPT, *runs("fp16", less(3), FASTER)], "native", "Use native"),
    "the fastest is undecided": (
        [*BASELINE, *KEPT, *runs("fp16", NOISY, FASTER)],
        "native",
        "fp16 is faster",
    ),
    "accuracy open": ([*BASELINE, *runs("native", NOISY, FAST)], "", "accuracy of native"),
    "speed open": ([*BASELINE, *runs("native", SAME, (36, 44, 43, 41, 40))], "", "speed of native"),
    "slower and lost": (
        [*BASELINE, *runs("native", SAME, HALF), *runs("fp16", less(3), FASTER)],
        "fp32 (none)",
        "native is slower and fp16 loses accuracy",
    ),
    "another has not finished": (
        [*BASELINE, *runs("native", SAME, HALF), *runs("apex_o1", SAME, FAST, state="running")],
        "",
        "yet: apex_o1",
    ),
    "another has other settings": (
        [*BASELINE, *runs("native", SAME, HALF), *runs("apex_o1", SAME, FAST, config={"batch_size": 64})],
        "",
        "yet: apex_o1",
    ),
    "synthetic data": (
        [*runs("none", BASE, source="synthetic"), *runs("native", SAME, FAST, source="synthetic")],
        "",
        "synthetic",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_recommendation_is_what_the_evidence_allows_or_says_what_is_missing(case: str):
    made, label, text = CASES[case]
    analysis = analyse_runs(made)
    assert analysis.recommendation.label == label
    assert text in analysis.recommendation.text
    assert bool(analysis.recommendation.text) is bool(text)


def with_work(rates: tuple[float, ...], joules: float | None = None, steps: int = 3910, **config: int) -> str:
    """Return the costs of three runs per backend of `steps` steps of 128 samples, 391 in an epoch.

    Args:
        rates: Throughput of the baseline, native and apex_o1.
    """

    def edit(rate: float) -> Any:
        def change(plan: Any) -> None:
            plan["config"]["training"] = config
            plan["summary"][metrics.THROUGHPUT_MEDIAN] = rate
            for row in plan["rows"]:
                row[metrics.STEP] = row[metrics.EPOCH] = row[metrics.ELAPSED] = 0
            last = {metrics.STEP: steps, metrics.EPOCH: steps / 391, metrics.ELAPSED: 3600.0}
            plan["rows"][-1] |= last | ({} if joules is None else {metrics.ENERGY: joules})

        return change

    made = [
        make(backend, seed, edit=edit(rate))
        for backend, rate in zip(("none", "native", "apex_o1"), rates, strict=False)
        for seed in (1, 2, 3)
    ]
    return analyse_runs(made).costs


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        # 391 * 128 = 50,048 samples: at 500 and 1,000 per second 100 s and 50 s; 0.2 J each: 2.8 Wh.
        ({"rates": (500.0, 1000.0), "joules": 0.2}, ("epoch", "100 s (2.8 Wh)", "50 s (2.8 Wh)")),
        # With two micro-batches in a step, an epoch of 391 steps has twice as many samples.
        (
            {"rates": (500.0, 1000.0), "joules": 0.2, "accumulate": 2},
            ("3.34 min (5.6 Wh)", "1.67 min (5.6 Wh)"),
        ),
        # Without a whole epoch, 128,000 samples.
        ({"rates": (500.0, 1000.0), "steps": 16}, ("1,000 steps", "4.27 min", "2.13 min")),
        # All times have one unit.
        ({"rates": (500.0, 250.0, 5000.0)}, ("1.67 min", "3.34 min", "0.167 min")),
    ],
)
def test_an_epoch_costs_what_throughput_and_energy_say(options: Any, facts: tuple[str, ...]):
    costs = with_work(**options)
    assert [fact for fact in facts if fact not in costs] == [], costs
    assert costs.count("fp32 (none)") == 1


def test_hours_count_each_process():
    made = copy.deepcopy([*BASELINE, *KEPT])
    for run in made:
        run.summary["environment"] = run.summary["environment"] | {"processes": 8}
        run.summary[metrics.ELAPSED] = 900.0
    hours = costs_as_values(analyse_runs(made))["hours"]
    assert hours == [{"device": "Test Device 9000", "hours": pytest.approx(10 * 8 * 0.25)}]
