"""What W&B's client samples of a machine beside a run: memory and power, and what kind of machine it was.

Every run that is recorded with W&B has it, whatever its program logs. Of hundreds of figures a sample only
those that stand in for what a program did not log are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampcompare.records.table import Table

STAMP = "_timestamp"  # seconds since 1970, as in the history
PREFIX = "system."  # of the server's keys
KEPT = re.compile(r"(gpu\.(process\.)?\d{1,4}\.(memoryAllocatedBytes|powerWatts)|proc\.memory\.rssMB)\Z")
MOST_GPUS = 64  # of one machine whose names are read


@dataclass
class Machine:
    """`samples` has one array a figure, under W&B's key without `system.`, beside `_timestamp`, all of one
    length, NaN where a sample lacks it. `facts` are of the machine, under names as our own runs record them
    (`device_name`, `device_type`, `platform`, `python`, `cuda`, `cpu_count`, `machine`).
    """

    samples: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Samples:
    """The samples of one run on their way into a Machine."""

    def __init__(self) -> None:
        self._table = Table()

    def add_record(self, stats: Any) -> None:
        """Take in a protobuf StatsRecord."""
        kept = [(item.key, item.value_json) for item in stats.item if KEPT.match(item.key)]
        if kept:
            stamp = stats.timestamp.seconds + stats.timestamp.nanos / 1e9
            self._table.add_texts([(STAMP, repr(stamp)), *kept])

    def add_event(self, event: Any) -> None:
        """Take in one event of the server's: a mapping, or its JSON."""
        try:
            event = json.loads(event) if isinstance(event, str) else event
        except (ValueError, RecursionError):
            return
        if not isinstance(event, Mapping):
            return
        named = [(str(key).removeprefix(PREFIX), value) for key, value in event.items()]
        kept = [(k, v) for k, v in named if KEPT.match(k) and isinstance(v, int | float)]
        if kept:
            self._table.add_values([(STAMP, event.get(STAMP)), *kept])

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns that are numbers."""
        return {k: column for k, column in self._table.arrays().items() if column.dtype == np.float64}


def facts_of_record(record: Any) -> dict[str, Any]:
    """The facts in a protobuf EnvironmentRecord."""
    gpus = [(gpu.name, gpu.uuid) for gpu in record.gpu_nvidia[:MOST_GPUS]]
    return _facts(
        {"gpu": record.gpu_type, "gpu_count": record.gpu_count, "cudaVersion": record.cuda_version}
        | {name: getattr(record, name) for name in ("os", "python", "host", "cpu_count")},
        gpus,
    )


def facts_of_metadata(metadata: Any) -> dict[str, Any]:
    """The facts in `wandb-metadata.json`, which may hold anything."""
    if not isinstance(metadata, Mapping):
        return {}
    listed = metadata.get("gpu_nvidia")
    gpus = listed[:MOST_GPUS] if isinstance(listed, list) else []
    return _facts(metadata, [(g.get("name"), g.get("uuid")) for g in gpus if isinstance(g, Mapping)])


def _facts(said: Mapping[str, Any], gpus: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Under our own names. A machine with several GPUs does not tell which of them a run had."""
    count = said.get("cpu_count")
    cores = count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1e6 else None
    found: dict[str, Any] = {}
    host = _text(said.get("host"))
    machine = {"host": hashed(host)} if host else {}
    if gpu := _text(said.get("gpu")) or _first(name for name, _ in gpus):
        found |= {"device_name": gpu, "device_type": "cuda" if gpus or _text(said.get("cudaVersion")) else ""}
        if len(gpus) == 1 and (uuid := _text(gpus[0][1])):
            machine["gpu_uuid"] = hashed(uuid)
    elif cores:
        found |= {"device_name": f"CPU with {cores} cores", "device_type": "cpu"}
    texts = {"platform": said.get("os"), "python": said.get("python"), "cuda": said.get("cudaVersion")}
    found |= {name: text for name, value in texts.items() if (text := _text(value))}
    return found | ({"cpu_count": cores} if cores else {}) | ({"machine": machine} if machine else {})


def hashed(name: str) -> str:
    """What tells machines apart without saying which they are."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]


def _first(texts: Iterable[Any]) -> str:
    return next((text for value in texts if (text := _text(value))), "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def joined(machines: Sequence[Machine]) -> Machine:
    """The machine of one run from those of its parts, oldest first: the later one's facts count."""
    facts: dict[str, Any] = {}
    for machine in machines:
        facts |= machine.facts
    full = [m.samples for m in machines if STAMP in m.samples]
    names = dict.fromkeys(name for samples in full for name in samples)
    samples = {
        name: np.concatenate([s.get(name, np.full(len(s[STAMP]), np.nan)) for s in full]) for name in names
    }
    return Machine(samples, facts)
