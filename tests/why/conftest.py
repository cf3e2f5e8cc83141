"""The working directory of a test, and the command."""

from pathlib import Path

import pytest
from support.why_command import Why


@pytest.fixture(autouse=True)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the files in FILES of the test's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in getattr(request.module, "FILES", {}).items():
        Path(name).write_text(text)
    return tmp_path


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str]) -> Why:
    """Return what runs `ampcompare why`."""
    return Why(capsys)
