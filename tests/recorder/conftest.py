"""A W&B run in memory for the tests of the Recorder."""

from pathlib import Path

import pytest
from support.outside import Outside
from support.recorded_loop import InMemoryRun, record_in_memory


@pytest.fixture
def tracker(outside: Outside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemoryRun:
    """Return the W&B run of every Recorder in the test."""
    return record_in_memory(outside, monkeypatch, tmp_path)
