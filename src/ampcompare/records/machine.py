"""What W&B's client saw of a machine beside a run, whatever its program logs: memory, kind of machine."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampcompare.records.tree import as_float, is_number

OF_PROCESS, OF_GPUS, RESIDENT = "process", "gpus", "resident"
# W&B's keys of each, and what makes MiB of their values. A sample has those of all GPUs.
KEYS = {
    OF_PROCESS: (re.compile(r"gpu\.process\.\d{1,4}\.memoryAllocatedBytes"), 2**-20),
    OF_GPUS: (re.compile(r"gpu\.\d{1,4}\.memoryAllocatedBytes"), 2**-20),
    RESIDENT: (re.compile(r"proc\.memory\.rssMB"), 1.0),
}
MOST_GPUS = 64  # of one machine whose names are read
OURS = {"platform": "os", "python": "python", "cuda": "cudaVersion"}


@dataclass
class Machine:
    """`peaks` are the most memory of any sample, MiB, over all GPUs: of the process on its GPUs, of the GPUs,
    resident. `facts` are of the machine, under names as our own runs record them (`device_name`,
    `device_type`, `platform`, `python`, `cuda`, `cpu_count`, `machine`).
    """

    peaks: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def sample(self, figures: Mapping[str, Any]) -> None:
        """Take one sample in."""
        for what, (keys, factor) in KEYS.items():
            found = [as_float(v) for key, v in figures.items() if keys.fullmatch(key) and is_number(v)]
            if known := [value for value in found if not math.isnan(value)]:
                self.peaks[what] = max(self.peaks.get(what, 0.0), factor * sum(known))


def joined(machines: Iterable[Machine]) -> Machine:
    """The machine of one run from those of its parts, oldest first: the later one's facts count."""
    found = Machine()
    for machine in machines:
        found.facts |= machine.facts
        found.peaks |= {k: max(peak, found.peaks.get(k, 0.0)) for k, peak in machine.peaks.items()}
    return found


def facts_of_record(record: Any) -> dict[str, Any]:
    """The facts in a protobuf EnvironmentRecord."""
    gpus = [{"name": gpu.name, "uuid": gpu.uuid} for gpu in record.gpu_nvidia[:MOST_GPUS]]
    said = {"gpu": record.gpu_type, "cudaVersion": record.cuda_version, "gpu_nvidia": gpus}
    return facts_of(said | {name: getattr(record, name) for name in ("os", "python", "host", "cpu_count")})


def facts_of(metadata: Any) -> dict[str, Any]:
    """The facts in `wandb-metadata.json`, which may hold anything, under our own names. A machine with
    several GPUs does not tell which of them a run had.
    """
    if not isinstance(metadata, Mapping):
        return {}
    text = {key: value for key, value in metadata.items() if isinstance(value, str) and value}
    listed = metadata.get("gpu_nvidia")
    gpus = [g for g in listed[:MOST_GPUS] if isinstance(g, Mapping)] if isinstance(listed, list) else []
    names = [name for gpu in gpus if isinstance(name := gpu.get("name"), str) and name]
    count = metadata.get("cpu_count")
    cores = count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1e6 else None
    machine = {"host": hashed(text["host"])} if "host" in text else {}
    found: dict[str, Any] = {}
    if device := text.get("gpu") or next(iter(names), ""):
        found = {"device_name": device, "device_type": "cuda" if gpus or "cudaVersion" in text else ""}
        if len(gpus) == 1 and isinstance(uuid := gpus[0].get("uuid"), str) and uuid:
            machine["gpu_uuid"] = hashed(uuid)
    elif cores:
        found = {"device_name": f"CPU with {cores} cores", "device_type": "cpu"}
    found |= {name: text[theirs] for name, theirs in OURS.items() if theirs in text}
    return found | ({"cpu_count": cores} if cores else {}) | ({"machine": machine} if machine else {})


def hashed(name: str) -> str:
    """What tells machines apart without saying which they are."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
