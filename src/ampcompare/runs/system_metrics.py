"""What W&B's client records about the machine of a run, whatever the program logs."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.runs.nested import parse_json

MAX_GPUS = 64  # per machine
CHIPS = ("apple", "trainium", "tpu")
MAX_METADATA = 4_000_000  # bytes
FACT_KEYS = {"platform": "os", "python": "python", "cuda": "cudaVersion"}


@dataclass
class MachineFacts:
    """What W&B's client recorded about a machine.

    Attributes:
        facts: The facts, under the names that our own runs use (`device_name`, `device_type`, `platform`,
            `python`, `cuda`, `cpu_count`, `machine`).
    """

    facts: dict[str, Any] = field(default_factory=dict)


def merge_machines(machines: Iterable[MachineFacts]) -> MachineFacts:
    """Return the machine of a run from those of its parts, oldest first. Later facts replace earlier ones."""
    return MachineFacts({key: value for machine in machines for key, value in machine.facts.items()})


def metadata_of(record: Any) -> dict[str, Any]:
    """Return what a protobuf EnvironmentRecord says, with the keys of `wandb-metadata.json`.

    The client writes several such records for a run, each with a part; later records complete earlier ones.
    """
    metadata: dict[str, Any] = {
        "gpu": record.gpu_type,
        "cudaVersion": record.cuda_version,
        "gpu_nvidia": [{"name": gpu.name, "uuid": gpu.uuid} for gpu in record.gpu_nvidia[:MAX_GPUS]],
        "gpu_amd": [
            {"series": gpu.series, "model": gpu.model, "uuid": gpu.unique_id}
            for gpu in record.gpu_amd[:MAX_GPUS]
        ],
    }
    metadata |= {kind: {"name": getattr(record, kind).name} for kind in CHIPS if record.HasField(kind)}
    metadata |= {name: getattr(record, name) for name in ("os", "python", "host", "cpu_count", "gpu_count")}
    return {key: value for key, value in metadata.items() if value}


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the `wandb-metadata.json` beside a `.wandb` file; empty without one.

    Older clients write the name of the GPU only there.
    """
    file = path.parent / "files" / "wandb-metadata.json"
    try:
        metadata = parse_json(file.read_bytes()) if file.stat().st_size < MAX_METADATA else None
    except (OSError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def facts_of(metadata: Any) -> dict[str, Any]:
    """Return the facts in `wandb-metadata.json`, which may contain anything, under our names.

    On a machine with several GPUs the file does not say which GPU the run used. The device is a CPU only if
    W&B found no GPU of any maker and no other accelerator.
    """
    if not isinstance(metadata, Mapping):
        return {}
    text = {key: value for key, value in metadata.items() if isinstance(value, str) and value}
    nvidia = _listed(metadata.get("gpu_nvidia")) or _listed(metadata.get("gpu_devices"))
    amd = _listed(metadata.get("gpu_amd"))
    chips = [metadata.get(kind) for kind in CHIPS]
    accelerator = text.get("gpu") or _first_name([*nvidia, *amd, *chips])
    if not accelerator and (metadata.get("gpuapple") or metadata.get("gpu_apple")):
        accelerator = "Apple GPU"
    cores = _count_cores(metadata)
    facts: dict[str, Any] = {}
    if accelerator:
        is_cuda = bool(_listed(metadata.get("gpu_nvidia"))) or "cudaVersion" in text
        facts = {"device_name": accelerator, "device_type": "cuda" if is_cuda else ""}
    elif cores and not (nvidia or amd or any(chips) or metadata.get("gpu_count")):
        facts = {"device_name": f"CPU with {cores} cores", "device_type": "cpu"}
    facts |= {name: text[key] for name, key in FACT_KEYS.items() if key in text}
    if cores:
        facts["cpu_count"] = cores

    machine = {}
    if "host" in text:
        machine["host"] = hash_name(text["host"])
    gpus = nvidia or amd
    uuid = gpus[0].get("uuid") if accelerator and len(gpus) == 1 else None
    if isinstance(uuid, str) and uuid:
        machine["gpu_uuid"] = hash_name(uuid)
    if machine:
        facts["machine"] = machine
    return facts


def _count_cores(metadata: Mapping[str, Any]) -> int:
    """Return the number of cores, 0 if it is not known."""
    count = metadata.get("cpu_count")
    if not isinstance(count, int) or isinstance(count, bool):
        return 0
    return count if 0 < count < 1e6 else 0


def _first_name(devices: Iterable[Any]) -> str:
    """Return the name of the first GPU or chip that has one, "" if none has."""
    return next(filter(None, map(_name, devices)), "")


def _listed(value: Any) -> list[Mapping[str, Any]]:
    """Return the GPUs of a list, or the one GPU of a mapping."""
    entries = value if isinstance(value, list) else [value]
    return [gpu for gpu in entries[:MAX_GPUS] if isinstance(gpu, Mapping) and gpu]


def _name(gpu: Any) -> str:
    """Return the name of a GPU or chip; AMD's tools call it a series, or a model."""
    candidates = (gpu.get(key) for key in ("name", "series", "model")) if isinstance(gpu, Mapping) else ()
    return next((name for name in candidates if isinstance(name, str) and name), "")


def hash_name(name: str) -> str:
    """Return a hash that distinguishes machines without naming them."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
