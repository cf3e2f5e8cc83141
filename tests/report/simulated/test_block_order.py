"""Starting times tell the lay-out: one backend behind the other is flagged, interleaved ones never are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from report.simulated.records import record

from ampcompare.report import analyse_runs
from ampcompare.report.runs.order import layout
from ampcompare.sweeps.order import in_blocks

BACKENDS = ("none", "native", "apex_o1", "fp16")
FLAG = "ran one after the other: drift counts as difference"
Run = tuple[str, int]


def flagged(order: Sequence[Run], chance: np.random.Generator) -> bool:
    """Whether the report of runs that were started in this order says that they followed each other."""
    speeds = dict(zip(order, chance.normal(100, 1, len(order)), strict=True))
    runs = [record(b, s, place=place, speed=speeds[b, s]) for place, (b, s) in enumerate(order)]
    analysis = analyse_runs([runs[i] for i in chance.permutation(len(runs))])
    is_flagged = layout(analysis.groups).one_after_the_other
    assert is_flagged == any(FLAG in caution for caution in analysis.verdict.cautions)
    return is_flagged


def sizes(number: int, seed: int):
    chance = np.random.default_rng(seed)
    for case in range(number):
        yield case, BACKENDS[: chance.integers(2, 5)], range(chance.integers(2, 11)), chance


@pytest.mark.slow
def test_one_behind_the_other_is_flagged_in_whatever_order_they_came():
    for _, backends, seeds, chance in sizes(150, seed=1):
        order = [(str(b), int(s)) for b in chance.permutation(backends) for s in chance.permutation(seeds)]
        assert flagged(order, chance)


@pytest.mark.slow
def test_a_single_backend_that_was_run_before_all_others_is_flagged():
    for _, backends, seeds, chance in sizes(100, seed=2):
        first, *others = (str(b) for b in chance.permutation(backends))
        order = [(first, s) for s in seeds] + list(in_blocks("a sweep", others, seeds))
        assert flagged(order, chance)


@pytest.mark.slow
def test_blocks_as_they_are_drawn_are_never_flagged():
    for case, backends, seeds, chance in sizes(150, seed=3):
        assert not flagged(list(in_blocks(f"sweep {case}", backends, seeds)), chance)


@pytest.mark.slow
def test_seeds_with_the_backends_in_the_same_order_are_not_flagged():
    for _, backends, seeds, chance in sizes(50, seed=4):
        assert not flagged([(b, s) for s in seeds for b in backends], chance)


def test_a_few_of_each():
    for case, backends, seeds, chance in sizes(6, seed=5):
        assert flagged([(b, s) for b in backends for s in seeds], chance)
        assert not flagged(list(in_blocks(f"sweep {case}", backends, seeds)), chance)
