"""What devices can do at best, as their makers print it: `devices.yaml` read. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ampcompare.errors import UserError, did_you_mean
from ampcompare.program.yaml_file import read_yaml

FILE = Path(__file__).with_name("devices.yaml")


@dataclass(frozen=True)
class Device:
    """A device's peaks: FLOP/s by type (`tf32` apart from `float32`), bytes/s, and where they are printed."""

    name: str
    kind: str  # cuda or cpu
    flop_per_second: Mapping[str, float]
    bytes_per_second: float
    source: str


@cache
def devices() -> tuple[Device, ...]:
    """Every device of the table."""
    return tuple(
        Device(
            entry["name"],
            entry["kind"],
            {dtype: float(rate) * 1e12 for dtype, rate in entry["tflops"].items()},
            float(entry["gb_per_s"]) * 1e9,
            entry["source"],
        )
        for entry in read_yaml(FILE)
    )


def find_device(name: str) -> Device:
    """The device that a name means: in any case, with or without its maker, by a part that only one has.

    >>> find_device("h100").name
    'NVIDIA H100 SXM'

    Raises UserError for none or several.
    """
    wanted = _plain(name)
    exact = [device for device in devices() if _plain(device.name) == wanted]
    found = exact or [device for device in devices() if wanted and wanted in _plain(device.name)]
    if len(found) == 1:
        return found[0]
    names = [device.name for device in found or devices()]
    hint = did_you_mean(name, names)
    why = f"several of that name: {', '.join(names)}" if found else f"expected one of {', '.join(names)}"
    raise UserError(f"--on {name!r}: {why}{f'; {hint}' if hint else ''}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
