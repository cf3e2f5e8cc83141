"""What devices can do at best, as their makers print it: `devices.yaml` read. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ampcompare.errors import UserError, did_you_mean
from ampcompare.program.yaml_file import read_yaml


@dataclass(frozen=True)
class Device:
    """A device's peaks: FLOP/s by type (`tf32` apart from `float32`), bytes/s, and where they are printed."""

    name: str
    kind: str  # cuda or cpu
    flop_per_second: Mapping[str, float]
    bytes_per_second: float
    source: str


def find_device(name: str) -> Device:
    """The device that a name means: in any case, with or without its maker, by a part that only one has.

    >>> find_device("h100").name
    'NVIDIA H100 SXM'

    Raises UserError for none or several.
    """
    table = {_plain(one["name"]): one for one in read_yaml(Path(__file__).with_name("devices.yaml"))}
    wanted = _plain(name)
    found = [wanted] if wanted in table else [key for key in table if wanted and wanted in key]
    if len(found) != 1:
        names = [table[key]["name"] for key in found or table]
        why = f"{'several of that name:' if found else 'expected one of'} {', '.join(names)}"
        hint = did_you_mean(name, names)
        raise UserError(f"--on {name!r}: {why}{f'; {hint}' if hint else ''}")
    one = table[found[0]]
    peaks = {dtype: float(rate) * 1e12 for dtype, rate in one["tflops"].items()}
    return Device(one["name"], one["kind"], peaks, float(one["gb_per_s"]) * 1e9, one["source"])


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
