"""The bisection over modules, against any set of culprits."""

from __future__ import annotations

import math
from itertools import combinations

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


@given(st.integers(1, 40), st.data())
def test_one_culprit_is_found_in_at_most_two_logarithms(count: int, data):
    culprit = data.draw(st.sampled_from(NAMES[:count]))
    asked = Asked(lambda kept: culprit in kept)
    assert minimal(NAMES[:count], asked) == [culprit]
    assert len(asked.sets) <= 2 * math.log2(count)


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


@given(some, st.integers(2, 6))
def test_asking_several_at_once_takes_fewer_rounds(culprits: set[str], at_once: int):
    rounds = {}
    for width in (1, at_once):
        calls = []

        def ask(sets, calls=calls):
            calls.append(len(sets))
            return [culprits <= {*one} for one in sets]

        minimal(NAMES, ask, at_once=width)
        rounds[width] = calls
    assert len(rounds[at_once]) <= len(rounds[1])
    assert max(rounds[at_once]) <= at_once


def test_none_and_all_are_never_asked():
    for culprits in combinations(NAMES[:5], 2):
        asked = Asked(lambda kept, culprits=culprits: {*culprits} <= kept)
        minimal(NAMES[:5], asked)
        assert not {(), tuple(NAMES[:5])} & {*asked.sets}


def test_all_of_them_needed_are_all_found():
    asked = Asked(lambda kept: kept == {*NAMES[:6]})
    assert minimal(NAMES[:6], asked) == NAMES[:6]
