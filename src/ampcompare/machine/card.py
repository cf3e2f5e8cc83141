"""Which machine and which card a run had, and how the card stood: what a reader needs to trust two speeds.

Names are recorded as salted hashes: the same host or card is told from another one, and the record does not
say what it is called. Whoever can guess a name can test the guess; the salt is public.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ampcompare.machine.device import nvml_name
from ampcompare.machine.processes import World

SALT = "ampcompare: which machine, not what it is called\n"
MOST_EARLIER = 16  # machines of earlier parts of a run

# Why the clocks are lower than they could be, by NVML's bits (nvml.h, nvmlClocksEventReasons).
THROTTLE_BITS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


def name_machine(device: torch.device, world: World) -> dict[str, Any]:
    """Hashes of the host's name and of the GPU's UUID (None: no NVIDIA GPU), those of this process.

    Of several processes all ask together, and process 0 has the others' under `others`.
    """
    gpu = nvml_name(device)
    own = {"host": hashed(platform.node()), "gpu": None if gpu is None else hashed(gpu)}
    others = world.gather(own)[1:]
    return own | ({"others": others} if others else {})


def hashed(name: str) -> str:
    """Twelve hex digits that stand for a name."""
    return hashlib.sha256((SALT + name).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def with_earlier(machine: Mapping[str, Any], before: object) -> dict[str, Any]:
    """The machine of a run that goes on; under `earlier` those of its earlier parts that were others."""
    if not isinstance(before, Mapping):  # a checkpoint of a version that did not record it
        return dict(machine)
    last = {key: value for key, value in before.items() if key != "earlier"}
    others = [one for one in (*before.get("earlier", ()), last) if one != machine]
    kept = [one for number, one in enumerate(others) if one not in others[:number]]
    return dict(machine) | ({"earlier": kept[-MOST_EARLIER:]} if kept else {})


def card_state(device: torch.device) -> dict[str, Any] | None:
    """Clocks (MHz), power limit (W), temperature (degrees Celsius), why the card is slowed down, as of now.

    What NVIDIA's management library cannot say is None; all of it without an NVIDIA GPU.
    """
    if (name := nvml_name(device)) is None:
        return None
    import pynvml

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (pynvml.NVMLError, AttributeError):  # AttributeError: an nvidia-ml-py that lacks the question
            return None

    def throttle() -> list[str]:
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        known = [word for bit, word in THROTTLE_BITS.items() if bits & bit]
        rest = bits & ~sum(THROTTLE_BITS)
        return [*known, *([f"unknown ({rest:#x})"] if rest else [])]

    ask(pynvml.nvmlInit)
    handle = ask(lambda: pynvml.nvmlDeviceGetHandleByUUID(name))
    if handle is None:
        return None
    limit = ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))  # in mW
    return {
        "sm_mhz": ask(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "memory_mhz": ask(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        "power_limit_w": None if limit is None else limit / 1e3,
        "temperature_c": ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "throttle": ask(throttle),
    }
