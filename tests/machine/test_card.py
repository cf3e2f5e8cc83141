"""A host is known again without its name, and a run that goes on elsewhere keeps the machines of before."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch

from ampcompare.machine.card import name_machine, with_earlier
from ampcompare.machine.processes import World

CPU = torch.device("cpu")


def test_a_host_is_known_again_and_its_name_is_not_recorded(monkeypatch: pytest.MonkeyPatch):
    def named(host: str) -> dict[str, Any]:
        monkeypatch.setattr(platform, "node", lambda: host)
        return name_machine(CPU, World())

    one, other = named("node-17.cluster.example"), named("node-18.cluster.example")
    assert one == named("node-17.cluster.example") != other
    assert one.keys() == {"host", "gpu"}
    assert one["gpu"] is None
    assert "node" not in repr(one)
    assert len(one["host"]) == 12
    assert int(one["host"], 16) >= 0


def test_a_run_that_goes_on_elsewhere_keeps_the_machines_of_before():
    first, second, third = ({"host": name, "gpu": None} for name in "abc")
    assert with_earlier(first, first) == first
    moved = with_earlier(second, with_earlier(first, first))
    assert moved == {**second, "earlier": [first]}
    assert with_earlier(second, moved) == moved
    assert with_earlier(third, moved) == {**third, "earlier": [first, second]}
    back = with_earlier(first, with_earlier(third, moved))
    assert back == {**first, "earlier": [second, third]}
