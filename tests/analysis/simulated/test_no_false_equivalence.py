"""If a run failed, ended in NaN or never learned, no set of records is called equivalent."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from analysis.simulated.records import BACKENDS, CLASSES, TEST_IMAGES, record

from ampcompare import analyse_runs
from ampcompare.analysis.verdict import GOOD
from ampcompare.runs import RunRecord

MARGIN = 0.5
Options = dict[str, Any]
Chance = np.random.Generator


def learned(chance: Chance) -> Options:
    """Return a good run: backends do not differ, and seeds differ by far less than the margin."""
    last = 0.93 + chance.normal(0, 0.0004)
    return {"accuracies": [0.5 + chance.normal(0, 0.05), 0.8, last], "speed": chance.normal(100, 0.5)}


def at_chance(chance: Chance) -> Options:
    """Return a run that never does better than guessing."""
    share = chance.binomial(TEST_IMAGES, 1 / CLASSES) / TEST_IMAGES
    return {"accuracies": [0.1, 0.11, min(share, 0.109)]}


def bad_ends(chance: Chance) -> list[Options]:
    """Return all the ways in which one run can make its group uninformative."""
    last = 0.93 + chance.normal(0, 0.0004)
    nan, inf = float("nan"), float("inf")
    return [
        {"exit_code": int(chance.choice([1, 9, 134, 137, 139])), "state": "failed"},
        {"exit_code": None, "state": "failed"},
        {"losses": [2.0, 1.0, nan], "accuracies": [0.5, 0.8, last]},
        {"accuracies": [0.5, 0.8, nan]},
        {"accuracies": [0.5, 0.8, inf]},
        at_chance(chance),
        {"accuracies": [0.1] * 3},
        {"accuracies": [0.93] * 3},
    ]


def sets(spoil: bool, number: int, seed: int) -> Iterator[tuple[list[RunRecord], str]]:
    """Yield sets of runs of two to four backends and three to six seeds, with the spoilt backend, if any.

    Sometimes one run is spoilt, sometimes all runs of a backend, which may be the baseline.
    """
    chance = np.random.default_rng(seed)
    for _ in range(number):
        backends = BACKENDS[: chance.integers(2, 5)]
        seeds = range(chance.integers(3, 7))
        plans = {(b, s): learned(chance) for b in backends for s in seeds}
        which = str(chance.choice(backends))
        if spoil:
            ends = bad_ends(chance)
            kind = chance.integers(len(ends))
            for s in seeds if chance.random() < 0.3 else [chance.choice(seeds)]:
                plans[which, int(s)] |= bad_ends(chance)[kind]
        yield [record(b, s, **plan) for (b, s), plan in plans.items()], which if spoil else ""


def called_equivalent(runs: list[RunRecord]) -> set[str]:
    """Return the compared groups that any output calls equal, or that keep their quality."""
    labels = {run.config["backend"] for run in runs} - {"none"}
    terms = [f"{label}: equivalent within {MARGIN}" for label in labels]
    analysis = analyse_runs(runs, margin=MARGIN, require=terms)
    labels_called_equal = {answer.gate.label for answer in analysis.gate_results if answer.is_shown}
    accuracy = next((answer for answer in analysis.answers if answer.startswith("Accuracy: ")), "")
    same = [clause for clause in accuracy.split("; ") if "the same within" in clause]
    labels_called_equal |= {label for label in labels if label in " ".join(same).replace(",", "").split()}
    for c in analysis.comparisons:
        quality = [part for part in analysis.badge_parts(c.group) if part.text not in ("faster", "as fast")]
        is_good = any(part.tone == GOOD for part in quality)
        if c.keeps_quality or {"equivalent", "not worse"} & c.shown or is_good:
            labels_called_equal.add(c.group.label)
    return labels_called_equal


def test_good_sets_are_called_equivalent():
    """Else the test below could not fail."""
    assert np.mean([len(called_equivalent(runs)) > 0 for runs, _ in sets(False, 8, seed=1)]) > 0.9


def test_no_set_with_a_failure_a_nan_or_chance_level_is_called_equivalent():
    for runs, spoilt in sets(True, 24, seed=3):
        # Against a spoilt baseline no group is equivalent; a spoilt group says nothing of the others.
        called_equal = called_equivalent(runs)
        assert not called_equal if spoilt == "none" else spoilt not in called_equal
