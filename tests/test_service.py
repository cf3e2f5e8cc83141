from __future__ import annotations

import threading
import time

import pytest

from ampcompare.service import end_service


def test_a_service_that_does_not_end_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch):
    let_go = threading.Event()
    monkeypatch.setattr("wandb.teardown", let_go.wait)
    began = time.monotonic()
    assert end_service(0.2) is False
    assert time.monotonic() - began < 5
    let_go.set()
    assert end_service(5) is True
