"""A run of a sweep that is refused, where W&B cannot be told: the refusal stands."""

from __future__ import annotations

from typing import NoReturn

import pytest
import wandb
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from ampcompare.errors import UserError
from ampcompare.tracking import refusal
from ampcompare.wandb_client.client import gone


@pytest.mark.parametrize("failure", [*gone(), WandbApiFailedError, PermissionError])
def test_whatever_w_and_b_raises_is_a_line(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(**_: object) -> NoReturn:
        raise failure("gone")

    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "r")
    monkeypatch.setattr(wandb, "init", fail)
    monkeypatch.setattr(refusal, "end_service", lambda: None)
    refusal.record_refusal(UserError("epochs='0'"))
    assert capsys.readouterr().err == "W&B could not be told: gone\n"
