"""A tracker in memory for the tests of the Recorder."""

from typing import Any

import pytest
from support.recorded_loop import InMemoryTracker

from ampcompare.recorder import recorder


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> InMemoryTracker:
    """Return the tracker of every Recorder in the test."""
    made = InMemoryTracker()

    def start(told: Any, *_: Any) -> InMemoryTracker:
        made.start = told
        return made

    monkeypatch.setattr(recorder, "open_record", start)
    return made
