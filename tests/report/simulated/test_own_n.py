"""Every n is the number of runs or seeds that its figure rests on, counted here apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from report.simulated.records import record

from ampcompare.report import analyse_runs
from ampcompare.report.analysis.comparison import MEMORY, QUALITY, SPEED

Plan = dict[tuple[str, int, int], dict]  # by backend, seed and replicate
FIGURES = {SPEED: ("images_per_second", "speed"), MEMORY: ("peak_mib", "peak_mib"), QUALITY: ("quality", "")}


def plans(number: int, seed: int) -> Iterator[Plan]:
    """Two or three backends with their own seeds, some run twice; figures are missing here and there."""
    chance = np.random.default_rng(seed)
    for _ in range(number):
        found: Plan = {}
        for backend in ["none", "native", "fp16"][: chance.integers(2, 4)]:
            first = int(chance.integers(0, 3))
            for s in range(first, first + int(chance.integers(1, 6))):
                for replicate in range(1 + (chance.random() < 0.2)):
                    found[backend, s, replicate] = one_run(chance)
        yield found


def one_run(chance: np.random.Generator) -> dict:
    made: dict = {
        "accuracies": [0.5, 0.8, 0.93 + chance.normal(0, 0.002)],
        "speed": None if chance.random() < 0.1 else chance.normal(100, 1),
        "peak_mib": None if chance.random() < 0.1 else 4000.0 + chance.normal(0, 3),
    }
    odd = [{"exit_code": 1, "state": "failed"}, {"accuracies": [0.5, 0.8, math.nan]}, {"accuracies": []}]
    return made | (odd[chance.integers(3)] if chance.random() < 0.18 else {})


def has_failed(run: dict) -> bool:
    return bool(run.get("exit_code")) or any(math.isnan(a) for a in run["accuracies"])


def expected(plan: Plan, backend: str, question: str) -> set:
    """What a figure of a backend rests on: the processes for the machine's figures, seeds for quality."""
    runs = {key[1:]: run for key, run in plan.items() if key[0] == backend}
    counted = {key: run for key, run in runs.items() if not has_failed(run)}
    if question == QUALITY:
        return {s for (s, _), run in counted.items() if run["accuracies"]}
    counted = counted or runs  # where all failed these figures are theirs
    known = [s for (s, _), run in sorted(counted.items()) if run[FIGURES[question][1]] is not None]
    return {(s, known[:place].count(s)) for place, s in enumerate(known)}


def expected_n(ours: set, theirs: set) -> tuple[int, bool] | None:
    """n of a comparison, and whether it is one of pairs."""
    if not ours or not theirs:
        return None
    pairs, fewer = len(ours & theirs), min(len(ours), len(theirs))
    is_paired = pairs >= min(3, max(1, fewer if fewer >= 3 else 1)) and 2 * pairs >= fewer
    return (pairs, True) if is_paired else (fewer, False)


def test_each_n_is_an_independent_count():
    for plan in plans(8, seed=8):
        runs = [record(b, s, replicate=r, place=p, **run) for p, ((b, s, r), run) in enumerate(plan.items())]
        analysis = analyse_runs(runs)
        for group in analysis.groups:
            comparison = analysis.comparison(group.label)
            assert group.outcomes.failed == sum(has_failed(r) for k, r in plan.items() if k[0] == group.label)
            for question, (column, _) in FIGURES.items():
                ours, theirs = (expected(plan, backend, question) for backend in (group.label, "none"))
                found = group.figures.get(column)
                assert (found.n if found else 0) == len(ours)
                if comparison:
                    other = comparison.estimates.get(question)
                    is_told = question != QUALITY or not (
                        group.is_unfinished or analysis.baseline.is_unfinished
                    )
                    assert (other and (other.n, other.paired)) == (
                        expected_n(ours, theirs) if is_told else None
                    )
