"""Every n that is printed is the number of runs or seeds that its figure rests on, counted here apart."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from report.simulated.records import record

from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs
from ampcompare.report.exports import to_csv, to_json

SETS = 200
Plan = dict[tuple[str, int, int], dict]  # by backend, seed and replicate


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
    odd = chance.random()
    last = 0.93 + chance.normal(0, 0.002)
    made: dict = {
        "accuracies": [0.5, 0.8, last],
        "speed": None if chance.random() < 0.1 else chance.normal(100, 1),
        "peak_mib": None if chance.random() < 0.1 else 4000.0 + chance.normal(0, 3),
    }
    if odd < 0.06:
        return made | {"exit_code": 1, "state": "failed"}
    if odd < 0.12:
        return made | {"accuracies": [0.5, 0.8, math.nan]}
    if odd < 0.18:
        return made | {"accuracies": []}
    return made


def has_failed(run: dict) -> bool:
    return bool(run.get("exit_code")) or any(math.isnan(a) for a in run["accuracies"])


def expected(plan: Plan, backend: str, figure: str) -> set:
    """What a figure of a backend rests on: processes for the machine's figures, seeds for quality."""
    runs = {key[1:]: run for key, run in plan.items() if key[0] == backend}
    counted = {key: run for key, run in runs.items() if not has_failed(run)}
    if figure == "quality":
        return {s for (s, _), run in counted.items() if run["accuracies"]}
    counted = counted or runs  # where all failed these figures are theirs
    with_it = [key for key, run in sorted(counted.items()) if run[figure] is not None]
    every = sorted(counted)
    # The second run of a seed is the second of those that count.
    return {(s, [k for k in every if k[0] == s].index((s, r))) for s, r in with_it}


def expected_pairs(ours: set, theirs: set) -> int | None:
    """n of a comparison: the pairs where all are, or where one side is a single run in a pair; else the
    smaller side."""
    if not ours or not theirs:
        return None
    smaller = min(len(ours), len(theirs))
    return len(ours & theirs) if ours == theirs or (smaller == 1 and ours & theirs) else smaller


def runs_of(plan: Plan) -> list[RunRecord]:
    return [
        record(b, s, replicate=r, place=place, **run) for place, ((b, s, r), run) in enumerate(plan.items())
    ]


def check(plan: Plan) -> None:
    analysis = analyse_runs(runs_of(plan))
    told = json.loads(to_json(analysis))
    rows = {row["group"]: row for row in csv.DictReader(io.StringIO(to_csv(analysis)))}
    names = {"images_per_second": "speed", "peak_mib": "peak_mib", "quality": "quality"}
    pairs = {"speedup": "speed", "memory_ratio": "peak_mib", "quality_difference": "quality"}
    for group in told["groups"]:
        backend = group["label"]
        known = {figure: expected(plan, backend, figure) for figure in names.values()}
        base = {figure: expected(plan, "none", figure) for figure in names.values()}
        for name, figure in names.items():
            found = group["figures"][name]
            assert (found["n"] if found else 0) == len(known[figure]), (backend, name)
            assert rows[backend][f"{name}_n"] == (str(len(known[figure])) if found else "")
        said = {len(one) for one in known.values()} | {group["counted_runs"]}
        if backend != "none" and group["compared"]:
            for name, figure in pairs.items():
                found = group["compared"][name]
                assert (found["n"] if found else None) == expected_pairs(known[figure], base[figure]), (
                    backend,
                    name,
                )
            said |= {expected_pairs(known[figure], base[figure]) for figure in known}
        assert {int(n) for n in re.findall(r"n\s=\s(\d+)", group["line"])} <= said


@pytest.mark.slow
def test_each_printed_n_is_an_independent_count():
    for plan in plans(SETS, seed=1):
        check(plan)


def test_each_n_of_a_few_sets():
    for plan in plans(12, seed=2):
        check(plan)
