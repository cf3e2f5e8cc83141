"""The whole answer as JSON, for programs: the same bytes each time it is asked again on one machine."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.files import replacing
from ampcompare.why.diff.answer import Difference, own_size

FORMAT = 1


def as_json(found: Difference) -> dict[str, Any]:
    """Plain values; null where there is none, and for what is not finite. `modules` are in the order of the
    forward, `worst` their names by the largest error of their own under the first of `backends`.
    """
    drifts = [
        {"of": list(pair), "weights": drift.weights, "losses": drift.losses}
        for pair, drift in found.drifts.items()
    ]
    whole = {
        "format": FORMAT,
        "network": found.network,
        "data": found.data,
        "seed": found.seed,
        "samples": found.samples,
        "steps": found.steps,
        "environment": found.environment,
        "loss_fp64": found.loss,
        "backends": [dataclasses.asdict(side) | {"type": found.types[side.label]} for side in found.sides],
        "worst": [line.title for line in found.by_worst() if own_size(line, found.first) >= 0],
        "modules": [
            {
                "module": line.title,
                "class": line.kind,
                "calls": line.calls,
                "errors": {label: dataclasses.asdict(errors) for label, errors in line.errors.items()},
            }
            for line in found.lines
        ],
        "not_called": found.not_called,
        "drift": drifts,
        "skipped": found.skipped,
    }
    plain = _plain(whole)
    assert isinstance(plain, dict)
    return plain


def write_json(found: Difference, path: Path) -> None:
    """Write it. Raises UserError for a file that cannot be written."""
    text = json.dumps(as_json(found), indent=1, allow_nan=False) + "\n"
    write(path, text.encode(), "--json")


def write(path: Path, content: bytes, option: str) -> None:
    """Put the content in the place of a file, whose folder is made. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as problem:
        why = f"cannot be written ({reason(problem)}); name another file"
        raise UserError(f"{option} {path}: {why}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
