from __future__ import annotations

import threading

import pytest

from ampcompare.wandb_client.service import end_service


def test_a_service_that_does_not_end_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch):
    let_go = threading.Event()
    monkeypatch.setattr("wandb.teardown", lambda: let_go.wait())
    assert end_service(0.2) is False  # True, had it waited for the end
    let_go.set()
    assert end_service(60) is True
