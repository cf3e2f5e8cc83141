"""Libraries are loaded without the garbage collector, which is on before and after."""

from __future__ import annotations

import gc
import sys

import pytest

from ampcompare.program.loading import loading

ABSENT = "nothing_of_this_name"


def test_no_garbage_is_collected_while_a_module_is_loaded():
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        with loading(ABSENT):
            kept = [[] for _ in range(100_000)]
        assert not collections
        kept += [[] for _ in range(100_000)]
        assert collections
    finally:
        gc.callbacks.remove(note)


def test_what_was_loaded_is_not_looked_through_again():
    before = gc.get_freeze_count()
    with loading(ABSENT):
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= before + len(kept)


def test_a_module_that_fails_to_load_leaves_the_collector_on():
    with pytest.raises(ImportError), loading(ABSENT):
        __import__(ABSENT)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with loading(ABSENT):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_frozen_for_a_module_that_is_there():
    before = gc.get_freeze_count()
    assert "sys" in sys.modules
    with loading("sys"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == before
