"""What W&B's client samples of a machine beside a run: memory and power, and what kind of machine it was.

Every run that is recorded with W&B has it, whatever its program logs. Of hundreds of figures a sample only
those that stand in for what a program did not log are kept.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampcompare.records.tree import as_float, is_number

STAMP = "_timestamp"  # seconds since 1970, as in the history
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


def sample_of(stamp: Any, figures: Mapping[str, Any]) -> dict[str, Any]:
    """One sample: its moment and the figures that are kept, nothing where there is none."""
    kept = {key: as_float(v) for key, v in figures.items() if KEPT.match(key) and is_number(v)}
    return {STAMP: as_float(stamp) if is_number(stamp) else math.nan} | kept if kept else {}


def arrays_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Samples as arrays, each over all of them."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: np.array([sample.get(name, np.nan) for sample in samples], float) for name in names}


def facts_of_record(record: Any) -> dict[str, Any]:
    """The facts in a protobuf EnvironmentRecord."""
    said = {"gpu": record.gpu_type, "cudaVersion": record.cuda_version}
    said |= {name: getattr(record, name) for name in ("os", "python", "host", "cpu_count")}
    return _facts(said, [(gpu.name, gpu.uuid) for gpu in record.gpu_nvidia[:MOST_GPUS]])


def facts_of_metadata(metadata: Any) -> dict[str, Any]:
    """The facts in `wandb-metadata.json`, which may hold anything."""
    if not isinstance(metadata, Mapping):
        return {}
    listed = metadata.get("gpu_nvidia")
    gpus = listed[:MOST_GPUS] if isinstance(listed, list) else []
    return _facts(metadata, [(g.get("name"), g.get("uuid")) for g in gpus if isinstance(g, Mapping)])


def _facts(said: Mapping[str, Any], gpus: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Under our own names. A machine with several GPUs does not tell which of them a run had."""
    text = {key: value for key, value in said.items() if isinstance(value, str) and value}
    count = said.get("cpu_count")
    cores = count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1e6 else None
    names = [name for name, _ in gpus if isinstance(name, str) and name]
    machine = {"host": hashed(text["host"])} if "host" in text else {}
    found: dict[str, Any] = {}
    if gpu := text.get("gpu") or next(iter(names), ""):
        found = {"device_name": gpu, "device_type": "cuda" if gpus or "cudaVersion" in text else ""}
        if len(gpus) == 1 and isinstance(uuid := gpus[0][1], str) and uuid:
            machine["gpu_uuid"] = hashed(uuid)
    elif cores:
        found = {"device_name": f"CPU with {cores} cores", "device_type": "cpu"}
    ours = {"platform": "os", "python": "python", "cuda": "cudaVersion"}
    found |= {name: text[theirs] for name, theirs in ours.items() if theirs in text}
    return found | ({"cpu_count": cores} if cores else {}) | ({"machine": machine} if machine else {})


def hashed(name: str) -> str:
    """What tells machines apart without saying which they are."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]


def joined(machines: Sequence[Machine]) -> Machine:
    """The machine of one run from those of its parts, oldest first: the later one's facts count."""
    facts = {name: fact for machine in machines for name, fact in machine.facts.items()}
    full = [m.samples for m in machines if STAMP in m.samples]
    names = dict.fromkeys(name for samples in full for name in samples)
    lacking = [np.full(len(samples[STAMP]), np.nan) for samples in full]
    every = {n: [s.get(n, nothing) for s, nothing in zip(full, lacking, strict=True)] for n in names}
    return Machine({name: np.concatenate(parts) for name, parts in every.items()}, facts)
