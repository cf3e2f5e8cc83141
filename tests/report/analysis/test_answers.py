"""How many test images two groups answer differently: figures to be counted, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from support.fakes import figures, make

from ampcompare.records.predictions import Predictions
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.answers import Answers, answers
from ampcompare.report.exports import to_json
from ampcompare.report.runs.groups import Group

IMAGES = 1000
TRUTH = np.arange(IMAGES) % 10


def group(label: str, given: dict[int, Any], **more: Any) -> Group:
    """A group with a run for each seed, and its predictions (a text: why there are none)."""
    runs = []
    for seed, classes in given.items():
        run = make("none", seed, steps=50, name=f"{label} {seed}")
        is_problem = isinstance(classes, str)
        run.__dict__["predictions"] = (
            Predictions(problem=classes) if is_problem else Predictions(classes, more.get("on", "set"))
        )
        runs.append(figures(run=run, seed=more.get("seed_of", lambda s: s)(seed), label=label))
    return Group(label, tuple(runs), tuple(runs), label)


def changed(first: int, last: int) -> np.ndarray:
    """The right answers but for images of these numbers."""
    found = TRUTH.astype(np.uint8)
    found[first:last] += 1
    return found


def noisy(
    seeds: Iterable[int], share: float, common: np.ndarray = TRUTH, first: int = 0
) -> dict[int, np.ndarray]:
    """Each run answers its own share of the images at random."""
    found = {}
    for seed in seeds:
        generator = np.random.default_rng(first + seed)
        found[seed] = np.where(generator.random(IMAGES) < share, generator.integers(0, 10, IMAGES), common)
    return found


def only(*groups: Group) -> Answers:
    (found,) = answers(groups, groups[0])
    return found


def test_the_counts_are_those_of_the_images():
    found = only(
        group("none", {1: changed(0, 10), 2: changed(0, 30)}),
        group("native", {1: changed(0, 10), 3: changed(0, 40)}),
    )
    # native 1 and none 2: 20; native 3 and none 1: 30; native 3 and none 2: 10; within: 20 and 30
    assert (found.between, found.within, found.same_seed) == (20.0, 25.0, 0.0)
    assert (found.images, found.n, found.p) == (1000, (2, 2), None)
    assert found.sentence == (
        "native and none answer 20 of 1,000 test images differently, two seeds of one of them 25: whether "
        "that is more than seeds do takes 4 runs of each to test (n = 2 and 2)."
    )


def test_a_backend_that_answers_other_images_is_told_from_its_seeds():
    other = np.where(np.arange(IMAGES) < 200, 0, TRUTH)
    seeds = range(1, 6)
    found = only(group("none", noisy(seeds, 0.1)), group("fp16", noisy(seeds, 0.1, other, first=50)))
    assert found.is_more
    assert found.p == pytest.approx(2 / 252)  # of all ways to deal ten runs into five and five
    assert found.between > found.within > 100
    assert ": more than seeds do (p = 0.0079, n = 5 and 5)." in found.sentence


@pytest.mark.parametrize("theirs", [{1: ""}, {1: "Its predictions.npy is cut off."}, {}])
def test_without_predictions_nothing_is_claimed(theirs: dict[int, str]):
    found = only(group("none", theirs), group("native", {1: TRUTH, 2: TRUTH}))
    assert (found.is_known, found.between, found.p, found.images) == (False, None, None, None)
    assert found.sentence.endswith("is not known: none kept no predictions to compare.")
    expected = [("none 1", theirs[1] or "it kept no predictions")] if theirs else []
    assert [entry for entry in found.left_out if entry[0].startswith("none")] == expected


def test_a_report_has_the_answers_of_each_comparison_and_none_without_predictions():
    def runs(*, keeping: bool) -> list[Any]:
        found = [make(backend, seed) for backend in ("none", "native") for seed in (1, 2)]
        for number, run in enumerate(found if keeping else ()):
            run.__dict__["predictions"] = Predictions(changed(0, number), "set")
        return found

    analysis = analyse_runs(runs(keeping=True))
    (one,) = analysis.answers
    # 0 and 1 for none, 2 and 3 for native: other seeds 3 and 1, the same seed 2 and 2
    assert (one.group, one.between, one.same_seed, one.within) == ("native", 2.0, 2.0, 1.0)
    (said,) = json.loads(to_json(analysis))["answers"]
    assert (said["between"], said["sentence"]) == (2.0, one.sentence)
    assert "answers" not in json.loads(to_json(analyse_runs(runs(keeping=False))))
