"""Whether accuracies say anything."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.report import analyse_runs
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.informative import (
    CHANCE,
    CONSTANT,
    INFORMATIVE,
    SATURATED,
    information,
)
from ampcompare.report.runs.metric import ComparedMetric

ACCURACY = ComparedMetric()


def with_accuracies(
    *accuracies: float, seed: int = 1, data: dict | None = None, backend: str = "none", **summary
):
    """A run whose evaluations gave these accuracies."""

    def edit(made):
        rows = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in made["rows"]]
        evals = [{"global_step": 50 + n, "epoch": n, "eval/accuracy": a} for n, a in enumerate(accuracies)]
        made["rows"] = rows + evals
        made["summary"] |= {"eval/accuracy": accuracies[-1], "best/eval_accuracy": max(accuracies)} | summary
        made["config"]["data"] |= data or {}

    return make(backend, seed, steps=50, edit=edit)


def told(*runs, metric=ACCURACY):
    return information("none", [figures_of(r, metric.key) for r in runs], metric)


@pytest.mark.parametrize(
    ("accuracies", "word"),
    [
        ((0.1, 0.1, 0.1), CHANCE),
        ((0.1, 0.11, 0.108), CHANCE),  # 0.1 + 3 * 0.003 = 0.109
        ((0.1, 0.11, 0.110), INFORMATIVE),
        ((0.05, 0.06, 0.07), CHANCE),
        ((0.5, 0.5, 0.5), CONSTANT),
        ((0.5, 0.5), INFORMATIVE),  # two may agree by chance
        ((0.5, 0.5, 0.51), INFORMATIVE),
        ((1.0, 1.0, 1.0), SATURATED),
        ((0.9, 0.99, 0.995), SATURATED),
        ((0.9, 0.99, 0.9949), INFORMATIVE),
    ],
)
def test_accuracies_at_chance_constant_or_saturated_are_told_apart(accuracies, word):
    found = told(with_accuracies(*accuracies))
    assert found.word == word
    assert found.says_nothing is (word in (CHANCE, CONSTANT))
    assert bool(found.sentence) is (word != INFORMATIVE)


def test_one_run_at_chance_is_enough_and_is_named():
    found = told(with_accuracies(0.8, 0.9, 0.93), with_accuracies(0.1, 0.1, 0.1, seed=2))
    assert found.word == CHANCE
    assert found.sentence.startswith("1 of 2 runs of none (seed 2) is at chance (10.00 % by guessing")


def test_the_chance_level_is_of_the_recorded_classes_and_test_images():
    few = {metrics.TEST_IMAGES: 100, metrics.CLASSES: 2}
    assert told(with_accuracies(0.5, 0.6, 0.64, **few)).word == CHANCE  # 0.5 + 3 * 0.05
    assert told(with_accuracies(0.5, 0.6, 0.66, **few)).word == INFORMATIVE


def test_the_chance_of_a_top_5_accuracy_is_five_times_as_high():
    metric = ComparedMetric(metrics.EVAL_TOP5)

    def edit(made):
        made["rows"] += [
            {"global_step": 60 + n, metrics.EVAL_TOP5: a} for n, a in enumerate((0.4, 0.45, 0.51))
        ]

    assert told(make("none", edit=edit), metric=metric).word == CHANCE


@pytest.mark.parametrize(
    ("limit", "accuracy", "error"), [(None, 0.933, 0.0025), (200, 0.88, 0.023), (10**9, 0.933, 0.0025)]
)
def test_the_binomial_error_is_of_the_test_set_of_a_known_source(limit, accuracy, error):
    found = told(with_accuracies(0.5, 0.6, accuracy, data={"test_limit": limit}))
    assert found.error == pytest.approx(error, rel=0.02)


def test_the_size_of_the_test_set_is_said_with_its_error():
    said = analyse_runs([with_accuracies(0.5, 0.6, 0.88, data={"test_limit": 200})]).verdict.cautions
    assert said[-1] == "Accuracies are of 200 test images: the binomial standard error of one is 2.3 points."


def test_an_unknown_test_set_is_said_and_leaves_chance_untold():
    run = with_accuracies(0.1, 0.1, 0.11, data={"source": "./mine.py:Mine"})
    found = told(run)
    assert (found.word, found.images, found.classes, found.error) == (INFORMATIVE, None, None, None)
    assert "The size of the test set is not recorded." in analyse_runs([run]).verdict.cautions


def test_two_pairs_off_by_the_same_answer_of_a_small_test_set_prove_nothing():
    size = {metrics.TEST_IMAGES: 40}

    def compared(better: int):
        runs = []
        for seed in (1, 2):
            first = [(n + seed) / 40 for n in (8, 12, 20)]
            runs.append(with_accuracies(*first, seed=seed, **size))
            last = [share + better / 40 for share in first]
            runs.append(with_accuracies(*last, seed=seed, backend="native", **size))
        found = analyse_runs(runs)
        (comparison,) = found.comparisons
        return comparison

    assert compared(1).quality.value == pytest.approx(2.5)
    assert compared(1).quality.low < 0
    assert not compared(1).claims["quality"].rejected
    assert compared(0).equivalence is None or not compared(0).equivalence.holds
    assert compared(12).claims["quality"].rejected
