"""A W&B run whose client's service ends before its time."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import wandb
from rich.console import Console

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.recorder.recorder import Recorder
from ampcompare.tracking.record_file import RecordFile
from ampcompare.wandb_client.service import gone


@pytest.mark.parametrize("problem", gone())
def test_a_service_that_ends_while_the_record_does_is_told(
    tmp_path: Path,
    quick_overrides: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    problem: type[Exception],
):
    """By whichever error the client tells it, as it sends or as it waits."""
    finish = wandb.Run.finish

    def end(self: wandb.Run, exit_code: int | None = None) -> None:
        finish(self, exit_code)
        raise problem

    monkeypatch.setattr(wandb.Run, "finish", end)
    text = io.StringIO()
    words = [*quick_overrides, f"output_dir={tmp_path}"]
    assert run(load_config(None, words), Console(file=text, width=300)).exit_code == 1
    assert "is not whole: W&B's service process has ended before its time" in text.getvalue()


def test_a_recorded_loop_is_told_once_that_its_record_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A fault of before: once a second to the end."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(RecordFile, "check_after_row", lambda self: "no space left on device")
    with Recorder(backend="none", every=1, output_dir=tmp_path) as record:
        for _ in range(5):
            record.step(loss=1.0, samples=1)
    assert " ".join(capsys.readouterr().out.split()).count("its record ends here") == 1
