"""How many test images two groups answer differently: figures to be counted, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest
from support.fakes import make

from ampcompare.records.predictions import Predictions
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.exports import to_json

IMAGES = 1000
TRUTH = np.arange(IMAGES) % 10
Kept = dict[int, np.ndarray]  # the predictions of each seed's run


def analysis_of(**given: Kept) -> Analysis:
    """Of runs of these backends that kept such predictions."""
    runs = []
    for backend, kept in given.items():
        for seed, classes in kept.items():
            runs.append(make(backend, seed, steps=50))
            runs[-1].__dict__["predictions"] = Predictions(classes, "set")
    return analyse_runs(runs)


def changed(first: int, last: int) -> np.ndarray:
    """The right answers but for images of these numbers."""
    found = TRUTH.astype(np.uint8)
    found[first:last] += 1
    return found


def noisy(seeds: Iterable[int], share: float, common: np.ndarray = TRUTH, first: int = 0) -> Kept:
    """Each run answers its own share of the images at random."""
    found = {}
    for seed in seeds:
        generator = np.random.default_rng(first + seed)
        found[seed] = np.where(generator.random(IMAGES) < share, generator.integers(0, 10, IMAGES), common)
    return found


def test_the_counts_are_those_of_the_images_in_every_output():
    kept = {"none": {1: changed(0, 10), 2: changed(0, 30)}, "native": {1: changed(0, 10), 3: changed(0, 40)}}
    analysis = analysis_of(**kept)
    (found,) = analysis.answers
    # native 1 and none 2: 20; native 3 and none 1: 30; native 3 and none 2: 10; within: 20 and 30
    assert (found.between, found.within, found.same_seed) == (20.0, 25.0, 0.0)
    assert (found.images, found.n, found.p) == (1000, (2, 2), None)
    assert found.sentence == (
        "native and none answer 20 of 1,000 test images differently, two seeds of one of them 25: whether "
        "that is more than seeds do takes 4 runs of each to test (n = 2 and 2)."
    )
    (said,) = json.loads(to_json(analysis))["answers"]
    assert (said["between"], said["sentence"]) == (20.0, found.sentence)


def test_a_backend_that_answers_other_images_is_told_from_its_seeds():
    other = np.where(np.arange(IMAGES) < 200, 0, TRUTH)
    seeds = range(1, 6)
    (found,) = analysis_of(none=noisy(seeds, 0.1), fp16=noisy(seeds, 0.1, other, first=50)).answers
    assert found.is_more
    assert found.p == pytest.approx(2 / 252)  # of all ways to deal ten runs into five and five
    assert found.between > found.within > 100


def test_without_predictions_nothing_is_claimed():
    analysis = analyse_runs([make("none"), make("native")])
    assert not any(found.is_known or found.p is not None for found in analysis.answers)
    assert "answers" not in json.loads(to_json(analysis))
