"""Records of Recorders that are kept in a list."""

from __future__ import annotations

from typing import Any

import pytest
from support.a_loop import Kept

from ampcompare.recorder import recorder


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The record of each Recorder of the test."""
    made = Kept()

    def start(told: Any, *_: Any) -> Kept:
        made.told = told
        return made

    monkeypatch.setattr(recorder, "start", start)
    return made
