"""Problems of runs that finished: what the caveats say about them, and what counts."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from support.fakes import make, put
from support.known_runs import BASE, FAST, SAME, SLOW, runs

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.runs import RunRecord

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0


def joined_caveats(analysis: Analysis) -> str:
    """Return all caveats as one text."""
    return " ".join(analysis.caveats)


def with_accuracies(*accuracies: float, seed: int = 1, backend: str = "none", **summary: Any) -> RunRecord:
    """Return a run with these evaluations."""

    def edit(made: Any) -> None:
        rows = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in made["rows"]]
        evals = [{"global_step": 50 + n, "epoch": n, "eval/accuracy": a} for n, a in enumerate(accuracies)]
        made["rows"] = rows + evals
        made["summary"] |= {"eval/accuracy": accuracies[-1], "best/eval_accuracy": max(accuracies)} | summary

    return make(backend, seed, steps=50, edit=edit)


FEW = {metrics.TEST_IMAGES: 100, metrics.CLASSES: 2}


@pytest.mark.parametrize(
    ("accuracies", "size", "why"),
    [
        ((0.1, 0.11, 0.1089), {}, "at chance"),  # 0.1 + 3 * 0.003 = 0.109
        ((0.1, 0.11, 0.1091), {}, ""),
        ((0.5, 0.5, 0.5), {}, "same at every evaluation"),
        ((0.5, 0.5), {}, ""),  # two may agree by chance
        ((1.0, 1.0, 1.0), {}, ""),
        ((0.5, 0.6, 0.64), FEW, "at chance"),  # 0.5 + 3 * 0.05
        ((0.5, 0.6, 0.66), {metrics.TEST_IMAGES: 1e30, metrics.CLASSES: 2**64}, ""),
    ],
)
def test_accuracies_at_chance_or_constant_give_no_claim(accuracies, size, why: str):
    native = with_accuracies(0.5, 0.8, 0.9, backend="native", **size)
    analysis = analyse_runs([with_accuracies(*accuracies, **size), native])
    assert why in analysis.comparison("native").no_claim_reason
    assert bool(analysis.comparison("native").no_claim_reason) is bool(why)
    assert ("uninformative" in joined_caveats(analysis)) is bool(why)


def sweep(
    order: Sequence[tuple[str, int]],
    *,
    seconds: float = 0.9 * HOUR,
    gpus: Sequence[str] = (),
) -> list[RunRecord]:
    """Return runs of (backend, seed), one per hour."""
    made = []
    for place, (backend, seed) in enumerate(order):
        run = make(backend, seed, steps=10, epochs=5, id=f"{backend}{seed}{place}")
        run.started_at = BEGAN + timedelta(seconds=HOUR * place)
        put(run, metrics.ELAPSED, np.linspace(0, seconds, run.rows))
        run.summary[metrics.TRAIN_SECONDS] = seconds
        run.summary[metrics.THROUGHPUT_MEDIAN] = 50.0
        if gpus:
            machine = {"gpu": gpus[place], "host": "h"}
            run.summary["environment"] = run.summary["environment"] | {"machine": machine}
        made.append(run)
    return made


def test_sequential_groups_are_flagged_and_interleaved_ones_are_not():
    chance = random.Random(14)
    for seeds, backends in ((2, ("native", "none", "fp16")), (5, ("none", "fp16", "native"))):
        blocks = [(b, s) for b in backends for s in range(seeds)]
        mixed = [(b, s) for s in range(seeds) for b in chance.sample(backends, len(backends))]
        assert "one after the other" in joined_caveats(analyse_runs(sweep(blocks)))
        assert "one after the other" not in joined_caveats(analyse_runs(sweep(mixed)))
    order = [("none", 0), ("none", 1), ("native", 0), ("native", 1)]  # all at one time
    at_once = analyse_runs(sweep(order, seconds=10 * HOUR, gpus="abcd"))
    assert "one after the other" not in joined_caveats(at_once)


@pytest.mark.parametrize(("gpus", "is_named"), [("abba", False), ("abab", True)])
def test_a_backend_on_its_own_card_is_named(gpus: str, is_named: bool):
    order = [("none", 1), ("native", 1), ("none", 2), ("native", 2)]
    assert ("different devices" in joined_caveats(analyse_runs(sweep(order, gpus=gpus)))) == is_named


def test_a_control_uses_all_its_runs_claims_nothing_and_shows_drift():
    """Of its last runs against its first, and not paired."""
    made = []
    speeds = {"first": (112, 112.4, 111.6), None: (100, 100.1, 99.9), "last": (108.6, 108.2, 109)}
    for arm, values in speeds.items():
        for seed, speed in enumerate(values):
            run = make("none", seed, steps=10, epochs=5, id=f"none{arm}{seed}", config={"plan": {"arm": arm}})
            run.summary[metrics.THROUGHPUT_MEDIAN] = speed
            made.append(run)
    analysis = analyse_runs(made)
    (comparison,) = analysis.comparisons
    assert comparison.estimates["speed"].sizes == (6, 3)
    assert comparison.estimates["speed"].value == pytest.approx(1.103, abs=0.001)
    assert (dict(comparison.claims), analysis.level) == ({}, 0.95)
    assert (comparison.drift.value, comparison.drift.is_paired) == (pytest.approx(0.97, abs=0.001), False)
    assert "A/A control" in analysis.caveats[0]
    assert "−3.0%" in analysis.caveats[0]


def test_stalls_that_a_median_leaves_out_give_a_caveat_with_both_ratios():
    native = make("native", 1)
    put(native, metrics.TRAIN_SECONDS, native.numbers(metrics.TRAIN_SECONDS) + 100)
    caveats = joined_caveats(analyse_runs([make("none", 1), native]))
    assert "start-up and stalls" in caveats
    assert "1.46×" in caveats


def overflowed(plan: Any) -> None:
    plan["summary"] |= {metrics.NONFINITE_BUFFERS: 4, metrics.NONFINITE_AT: 42}


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda plan: plan["rows"][7].update({"time/elapsed_seconds": 0.0}), "goes backwards"),
        (overflowed, "at step 42"),
        (lambda plan: None, ""),
    ],
)
def test_damaged_records_are_named(edit, problem: str):
    analysis = analyse_runs([make("none"), make("native", edit=edit)])
    assert [problem in one for one in analysis.table["problems"].iloc[1]] == [True] * bool(problem)
    assert ("Record of native_resnet50" in joined_caveats(analysis)) == bool(problem)
    assert "Torn." in joined_caveats(analyse_runs([make("none", problems=("Torn.",))]))


def test_each_process_counts_for_speed_and_each_seed_for_accuracy():
    made = []
    for backend, speeds in (("none", SLOW), ("native", FAST)):
        for n, speed in enumerate(speeds):
            (run,) = runs(backend, BASE[:1], (speed,))
            run.id, run.started_at = f"{run.id}-{n}", BEGAN + timedelta(hours=n)
            made.append(run)
    analysis = analyse_runs(made)
    group = analysis.groups[0]
    assert (group.n, group.seeds) == (5, 1)
    assert (group.estimates["images_per_second"].n, group.estimates["quality"].n) == (5, 1)
    comparison = analysis.comparison("native").estimates["speed"]
    assert (comparison.n, comparison.is_paired, comparison.value) == (5, True, pytest.approx(1.9, rel=0.01))


def guessed(
    accuracies: Sequence[float], commonest: float | None, images: float | None, backend: str = "none"
) -> list[RunRecord]:
    """Return finished runs of a network of one's own, with four classes, from seed 1 on."""
    facts = {metrics.CLASSES: 4, metrics.COMMONEST_CLASS: commonest, metrics.TEST_IMAGES: images}
    made = [
        with_accuracies(last / 2, last * 0.9, last, seed=seed, backend=backend)
        for seed, last in enumerate(accuracies, 1)
    ]
    for run in made:
        run.config["data"]["source"] = "./mine.py:build"
        run.summary |= {key: value for key, value in facts.items() if value is not None}
    return made


AT_CHANCE: dict[str, tuple[Sequence[float], float | None, float | None, bool]] = {
    # With 40% in the commonest class, 42% of 800 texts is within 3 * 1.73 points, whatever 1/4 is.
    "one seed within the bound of the test set": ((0.42,), 0.4, 800, True),
    "one seed beyond it": ((0.46,), 0.4, 800, False),
    "without the fraction the classes count": ((0.42,), None, 800, False),
    "three seeds around the guess": ((0.41, 0.40, 0.415), 0.4, 800, True),  # t = 1.9 < 2.92
    "five seeds that together are above it": ((0.43, 0.435, 0.432, 0.431, 0.428), 0.4, 800, False),
    "one of five that guesses": ((0.8, 0.81, 0.40, 0.8, 0.79), 0.4, 800, True),
    "a test set of unknown size, around": ((0.41, 0.395, 0.408), 0.4, None, True),
}


@pytest.mark.parametrize("case", AT_CHANCE)
def test_a_baseline_not_shown_above_its_commonest_class_is_said_first_and_nothing_is_claimed(case: str):
    accuracies, commonest, images, is_at_chance = AT_CHANCE[case]
    made = guessed(accuracies, commonest, images)
    same = guessed([value + 0.0001 for value in accuracies], commonest, images, "native")
    analysis = analyse_runs([*made, *same], margin=50)
    native = analysis.comparison("native")
    assert ("fp32 (none) is at chance" in analysis.headline) is is_at_chance
    assert ("40%" in native.no_claim_reason) is is_at_chance
    assert native.keeps_quality is (not is_at_chance and len(accuracies) >= 3)
    assert ("first change the training" in analysis.advice) is is_at_chance


@pytest.mark.parametrize(
    ("losses", "change"),
    [((1.386, 1.38, 1.37, 1.37, 1.365, 1.36), "from 1.386 to 1.360"), ((1.386, 1.3, 1.2, 1.1, 1.0, 0.9), "")],
)
def test_a_loss_that_hardly_moves_is_a_caveat_and_withholds_no_claim(losses, change: str):
    made = [*runs("none", BASE), *runs("native", SAME, FAST)]
    for run in made:
        run.logged["train/loss"] = np.arange(len(losses)), np.array(losses)
    analysis = analyse_runs(made)
    found = [caveat for caveat in analysis.caveats if "loss hardly moved" in caveat]
    assert [change in caveat for caveat in found] == [True] * bool(change)
    assert analysis.comparison("native").keeps_quality
