"""A record whose client fails, refuses a row, cannot be told of a refusal; and one that is off for a part."""

import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import wandb
from support.outside import Outside
from support.training import play
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from ampcompare import Recorder, load_runs
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.experiment import describe_record
from ampcompare.tracking import rejected_run
from ampcompare.tracking.wandb_init import start_record
from ampcompare.wandb_client.client import service_errors


@pytest.mark.parametrize("problem", service_errors())
def test_a_service_that_ends_during_finish_is_reported(
    tmp_path: Path, outside: Outside, problem: type[Exception]
):
    """By whichever error the client tells it, as it sends or as it waits."""
    finish = wandb.Run.finish

    def end(self: wandb.Run, exit_code: int | None = None) -> None:
        finish(self, exit_code)
        raise problem

    outside.replace(wandb.Run, "finish", end)
    said = play(f"output_dir={tmp_path}", code=1)
    assert "is incomplete: W&B's service process ended early" in said


def test_a_recorded_loop_gets_one_message_that_its_record_ends(
    tmp_path: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A fault of before: once a second to the end."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    clock = outside.stop_clock()
    with Recorder(backend="none", every=1, output_dir=tmp_path) as record:
        shutil.rmtree(tmp_path / "wandb")
        for _ in range(5):
            clock.now += 60.0
            record.step(loss=1.0, samples=1)
    assert sum("its record ends here" in message for message in caplog.messages) == 1


def test_a_row_that_w_and_b_refuses_raises_and_later_rows_are_recorded(tmp_path: Path, outside: Outside):
    """A fault of before: they piled up in silence."""

    def refuse(run: wandb.Run, row: dict[str, object], commit: bool | None = None) -> None:
        if row["global_step"] == 2:
            raise TypeError("refused")

    outside.call_before(wandb.Run, "log", refuse)
    config = load_config("reference", [f"output_dir={tmp_path}", "wandb.mode=offline"])
    tracker = start_record(describe_record(config, {}))
    for step in (1, 2):
        tracker.log({"global_step": step})
    with pytest.raises(TypeError, match="refused"):
        tracker.flush()
    for step in (3, 4):
        tracker.log({"global_step": step})
    assert tracker.finish({}, 0) is None
    (record,) = load_runs([tmp_path])
    assert record.history["global_step"].tolist() == [1, 3, 4]


@pytest.mark.parametrize("failure", [*service_errors(), WandbApiFailedError, PermissionError])
def test_whatever_w_and_b_raises_is_a_line(
    failure: type[Exception],
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(**_: object) -> NoReturn:
        raise failure("gone")

    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "r")
    outside.replace(wandb, "init", fail)
    rejected_run.record_rejected_run(UserError("epochs='0'"))
    assert capsys.readouterr().err == "W&B could not record the rejected run: gone\n"
