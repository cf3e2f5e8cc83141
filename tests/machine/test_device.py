"""What depends on the kind of device is answered in one room."""

from __future__ import annotations

import pytest
import torch

from ampcompare.machine.device import has_float64, marker, peak_mib, reserved_mib, reset_peak, wait_for

CPU, MPS = torch.device("cpu"), torch.device("mps")


def test_mps_has_no_float64_and_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    waits: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("here"))
    assert [has_float64(device) for device in (CPU, torch.device("cuda"), MPS)] == [True, True, False]
    wait_for(CPU)
    assert waits == []
    wait_for(MPS)
    assert isinstance(marker(MPS)(), float)
    assert len(waits) == 2


def test_mps_keeps_no_peak_and_none_is_logged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 * 2**20)
    reset_peak(MPS)
    assert (peak_mib(MPS), reserved_mib(MPS)) == (None, 3)
