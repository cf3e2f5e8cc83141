"""The bisection over modules, against any set of culprits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ampcompare.why.guard.search import minimal

NAMES = [f"m{number}" for number in range(40)]
some = st.sets(st.sampled_from(NAMES), min_size=1, max_size=4)


class Asked:
    """Answers by a rule, and counts."""

    def __init__(self, cures) -> None:
        self.cures, self.sets = cures, []

    def __call__(self, sets):
        self.sets += sets
        return [self.cures({*one}) for one in sets]


@given(some, st.integers(1, 5))
def test_every_culprit_is_found_and_nothing_else(culprits: set[str], at_once: int):
    asked = Asked(lambda kept: culprits <= kept)
    assert minimal(NAMES, asked, at_once=at_once) == sorted(culprits, key=NAMES.index)
    if at_once == 1:
        assert len(asked.sets) <= len(culprits) * (math.ceil(math.log2(len(NAMES))) + 1)


@given(st.lists(some, min_size=1, max_size=4))
def test_where_several_sets_cure_one_of_the_smallest_kind_is_found(sets: list[set[str]]):
    """Of it none can be left out, whichever way modules help each other."""

    def cures(kept: set[str]) -> bool:
        return any(one <= kept for one in sets)

    found = minimal(NAMES, Asked(cures))
    assert cures({*found})
    assert not any(cures({*found} - {name}) for name in found)


@given(some, st.randoms(use_true_random=False))
def test_under_noise_it_ends_and_what_it_gives_has_cured_or_is_all(culprits: set[str], chance):
    answers = {}

    def cures(kept: set[str]) -> bool:
        return answers.setdefault(frozenset(kept), (culprits <= kept) != (chance.random() < 0.2))

    asked = Asked(cures)
    found = minimal(NAMES, asked)
    assert {*found} == {*NAMES} or answers[frozenset(found)]
    assert len(asked.sets) <= len(NAMES) * 8
