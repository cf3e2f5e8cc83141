"""What is recorded of host and card: told apart without their names, and nothing where nobody says."""

from __future__ import annotations

import platform
from typing import Any

import pynvml
import pytest
import torch

from ampcompare.machine import card
from ampcompare.machine.card import card_state, hashed, name_machine, with_earlier
from ampcompare.machine.processes import World

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")  # by name alone: nothing here touches it


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


def test_a_name_that_is_no_text_has_a_hash_too():
    assert hashed("a\udcff") != hashed("a")


class Nvml:
    """NVML with one card. What is in `silent` it does not support."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: str, bits: int = 0) -> None:
        monkeypatch.setattr(card, "nvml_name", lambda device: "GPU-1" if device.type == "cuda" else None)
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetHandleByUUID": object(),
            "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619},
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetCurrentClocksThrottleReasons": bits,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self._answering(answer, name in silent))

    def _answering(self, answer: Any, is_silent: bool) -> Any:
        def ask(*given: Any) -> Any:
            if is_silent:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer[given[1]] if isinstance(answer, dict) else answer

        return ask


def test_a_card_says_clocks_power_temperature_and_what_slows_it(monkeypatch: pytest.MonkeyPatch):
    Nvml(monkeypatch, bits=0x4 | 0x40 | 0x8000)
    assert card_state(CUDA) == {
        "sm_mhz": 1980,
        "memory_mhz": 2619,
        "power_limit_w": 700.0,
        "temperature_c": 41,
        "throttle": ["power cap", "hardware thermal slowdown", "unknown (0x8000)"],
    }
    assert name_machine(CUDA, World())["gpu"] == hashed("GPU-1")


@pytest.mark.parametrize(
    ("silent", "key"),
    [
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle"),
    ],
)
def test_what_a_card_does_not_say_is_none_and_the_rest_is_there(
    monkeypatch: pytest.MonkeyPatch, silent: str, key: str
):
    Nvml(monkeypatch, silent)
    found = card_state(CUDA)
    assert found is not None
    assert [name for name, value in found.items() if value is None] == [key]


def test_an_older_library_without_a_question_is_no_error(monkeypatch: pytest.MonkeyPatch):
    Nvml(monkeypatch)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
    found = card_state(CUDA)
    assert found is not None
    assert (found["throttle"], found["sm_mhz"]) == (None, 1980)


@pytest.mark.parametrize("silent", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_the_library_or_the_card_nothing_is_known(monkeypatch: pytest.MonkeyPatch, silent: str):
    Nvml(monkeypatch, silent, *(["nvmlDeviceGetHandleByUUID"] if silent == "nvmlInit" else []))
    assert card_state(CUDA) is None
    assert card_state(CPU) is None


def test_a_run_that_goes_on_elsewhere_keeps_the_machines_of_before():
    first, second, third = ({"host": name, "gpu": None} for name in "abc")
    assert with_earlier(first, first) == first
    moved = with_earlier(second, with_earlier(first, first))
    assert moved == {**second, "earlier": [first]}
    assert with_earlier(second, moved) == moved
    assert with_earlier(third, moved) == {**third, "earlier": [first, second]}
    back = with_earlier(first, with_earlier(third, moved))
    assert back == {**first, "earlier": [second, third]}
