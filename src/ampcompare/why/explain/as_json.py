"""What was explained, as plain values: bytes, seconds, names. `ampcompare report --explain` reads it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder
from ampcompare.why.explain.explained import Explained, Side
from ampcompare.why.explain.groups import grouping, summed

FORMAT = "ampcompare explain 1"


def as_json(found: Explained) -> dict[str, Any]:
    """All of it. `groups` has for each group of modules its bytes of activations and its seconds."""
    names = [name for side in found.sides for name in _modules(side)]
    groups = grouping(names)
    return {
        "format": FORMAT,
        "model": found.model,
        "data": found.source,
        "inputs": found.batch,
        "accumulate": found.accumulate,
        "device": found.device,
        "error": found.error,
        "backends": [_side(side, groups) for side in found.sides],
        "differences": [dataclasses.asdict(difference) for difference in found.differences],
        "memory": found.about_memory,
        "time": found.about_time,
        "hints": found.hints,
        "remarks": found.remarks,
        "measured": _measured(found),
    }


def _modules(side: Side) -> list[str]:
    """Every module that ran or holds something: those of the forward in its order, what is none last."""
    names = dict.fromkeys([*side.census.modules, *side.memory.by_module, *side.time.by_module])
    return sorted(names, key=lambda name: name.startswith("("))


def _side(side: Side, groups: dict[str, str]) -> dict[str, Any]:
    seconds = {name: part.seconds for name, part in side.time.by_module.items()}
    return {
        "backend": side.backend,
        "words": side.words,
        "dtype": side.dtype,
        "census": dataclasses.asdict(side.census),
        "memory": dataclasses.asdict(side.memory),
        "time": dataclasses.asdict(side.time) | {"bytes": side.time.size, "memory_bound": side.time.moving},
        "groups": {
            "activations": summed({k: float(v) for k, v in side.memory.by_module.items()}, groups),
            "seconds": summed(seconds, groups),
        },
    }


def _measured(found: Explained) -> dict[str, Any] | None:
    if found.measured is None:
        return None
    return dataclasses.asdict(found.measured) | {"medians": found.measured.medians}


def write_json(found: Explained, file: Path) -> None:
    """Write it. Raises UserError where that cannot be."""
    make_folder(file.parent, f"--json {str(file)!r}")
    try:
        file.write_text(json.dumps(as_json(found), indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        raise UserError(f"--json {str(file)!r}: cannot be written ({reason(problem)})") from None
