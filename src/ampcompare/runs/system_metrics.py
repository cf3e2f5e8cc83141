"""What W&B's client saw of the machine of a run, whatever its program logs."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.runs.nested import parse_json

MOST_GPUS = 64  # of one machine whose names are read
CHIPS = ("apple", "trainium", "tpu")
MAX_METADATA = 4_000_000  # bytes
OURS = {"platform": "os", "python": "python", "cuda": "cudaVersion"}


@dataclass
class Machine:
    """What W&B's client saw of a machine.

    Attributes:
        facts: Its facts, under names as our own runs record them (`device_name`, `device_type`, `platform`,
            `python`, `cuda`, `cpu_count`, `machine`).
    """

    facts: dict[str, Any] = field(default_factory=dict)


def joined(machines: Iterable[Machine]) -> Machine:
    """The machine of one run from those of its parts, oldest first: the later one's facts count."""
    return Machine({key: value for machine in machines for key, value in machine.facts.items()})


def metadata_of(record: Any) -> dict[str, Any]:
    """Return what a protobuf EnvironmentRecord says, by the keys of `wandb-metadata.json`.

    The client writes several such records of a run, each with a part; the later ones complete the earlier.
    """
    found: dict[str, Any] = {
        "gpu": record.gpu_type,
        "cudaVersion": record.cuda_version,
        "gpu_nvidia": [{"name": gpu.name, "uuid": gpu.uuid} for gpu in record.gpu_nvidia[:MOST_GPUS]],
        "gpu_amd": [
            {"series": gpu.series, "model": gpu.model, "uuid": gpu.unique_id}
            for gpu in record.gpu_amd[:MOST_GPUS]
        ],
    }
    found |= {kind: {"name": getattr(record, kind).name} for kind in CHIPS if record.HasField(kind)}
    found |= {name: getattr(record, name) for name in ("os", "python", "host", "cpu_count", "gpu_count")}
    return {key: value for key, value in found.items() if value}


def read_metadata(path: Path) -> dict[str, Any]:
    """Return what W&B's client left of the machine beside a `.wandb` file; nothing where it left none.

    Older clients have the GPU's name there alone.
    """
    place = path.parent / "files" / "wandb-metadata.json"
    try:
        found = parse_json(place.read_bytes()) if place.stat().st_size < MAX_METADATA else None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def facts_of(metadata: Any) -> dict[str, Any]:
    """Return the facts in `wandb-metadata.json`, which may hold anything, under our own names.

    A machine with several GPUs does not tell which of them a run had. It is a CPU only where W&B saw no GPU
    of any maker and no other chip.
    """
    if not isinstance(metadata, Mapping):
        return {}
    text = {key: value for key, value in metadata.items() if isinstance(value, str) and value}
    nvidia = _listed(metadata.get("gpu_nvidia")) or _listed(metadata.get("gpu_devices"))
    amd = _listed(metadata.get("gpu_amd"))
    chips = [metadata.get(kind) for kind in CHIPS]
    apple = "Apple GPU" if any(metadata.get(key) for key in ("gpuapple", "gpu_apple")) else ""
    names = [_name(one) for one in (*nvidia, *amd, *chips) if _name(one)]
    count = metadata.get("cpu_count")
    cores = count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1e6 else None
    machine = {"host": hashed(text["host"])} if "host" in text else {}
    found: dict[str, Any] = {}
    is_cuda = bool(_listed(metadata.get("gpu_nvidia"))) or "cudaVersion" in text
    if device := text.get("gpu") or next(iter(names), "") or apple:
        found = {"device_name": device, "device_type": "cuda" if is_cuda else ""}
        gpus = nvidia or amd
        if len(gpus) == 1 and isinstance(uuid := gpus[0].get("uuid"), str) and uuid:
            machine["gpu_uuid"] = hashed(uuid)
    elif cores and not (nvidia or amd or any(chips) or metadata.get("gpu_count")):
        found = {"device_name": f"CPU with {cores} cores", "device_type": "cpu"}
    found |= {name: text[theirs] for name, theirs in OURS.items() if theirs in text}
    return found | ({"cpu_count": cores} if cores else {}) | ({"machine": machine} if machine else {})


def _listed(value: Any) -> list[Mapping[str, Any]]:
    """Return the GPUs of a list, or of a mapping that is one."""
    several = value if isinstance(value, list) else [value]
    return [one for one in several[:MOST_GPUS] if isinstance(one, Mapping) and one]


def _name(gpu: Any) -> str:
    """Return the name of a GPU or chip; AMD's tools call it a series, or a model."""
    told = (gpu.get(key) for key in ("name", "series", "model")) if isinstance(gpu, Mapping) else ()
    return next((name for name in told if isinstance(name, str) and name), "")


def hashed(name: str) -> str:
    """What tells machines apart without saying which they are."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
