"""What `ampcompare why explain --json` wrote, read for the page and put into rows. Free of torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.report.words import of_all

FORMAT = "ampcompare explain 1"
LARGEST = 50_000_000  # bytes of a file
MIB = 2**20
MEMORY = (
    ("weights", ("weights", "buffers")),
    ("fp32 masters", ("masters",)),
    ("optimizer's states", ("states",)),
    ("gradients", ("gradients",)),
    ("the batch", ("batch",)),
    ("activations for the backward", ("activations",)),
    ("passing results at the peak", ("workspace",)),
    ("peak", ("peak",)),
)
KINDS = 10  # rows of the table of times
LEAST = 0.001  # of the whole time: what takes less has no row


@dataclass(frozen=True)
class Row:
    """A line of a table: what it is of, and its cells."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Explained:
    """One step under two backends: `names` of those, the one compared with first, and what is shown of them.

    `groups` are of modules: for each, MiB of activations and ms under both.
    """

    model: str
    data: str
    inputs: str
    device: str
    error: str
    names: tuple[str, str]
    types: tuple[Row, ...]
    memory: tuple[Row, ...]
    times: tuple[Row, ...]
    groups: dict[str, tuple[tuple[float, float], tuple[float, float]]]
    sentences: tuple[str, ...]
    notes: tuple[str, ...]


def read_explained(file: str) -> Explained:
    """The file that `ampcompare why explain --json` wrote. Raises UserError for any other."""
    said, expected = f"--explain {file!r}", "expected what ampcompare why explain --json wrote"
    path = Path(file)
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{said}: larger than {LARGEST:,} bytes; {expected}")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{said}: cannot be read ({reason(problem)}); {expected}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{said}: not of the form {FORMAT!r}; {expected}")
    try:
        return _explained(content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise UserError(
            f"{said}: incomplete ({type(problem).__name__}: {reason(problem)}); {expected}"
        ) from None


def _explained(content: dict[str, Any]) -> Explained:
    base, other = content["backends"]
    return Explained(
        model=str(content["model"]),
        data=str(content["data"]),
        inputs=" and ".join("×".join(map(str, shape)) for shape in content["inputs"]),
        device=str(content["device"]),
        error=str(content["error"]),
        names=(str(base["backend"]), str(other["backend"])),
        types=tuple(_types(base, other)),
        memory=tuple(_memory(base["memory"], other["memory"])),
        times=tuple(_times(base["time"], other["time"])),
        groups=_groups(base["groups"], other["groups"]),
        sentences=tuple(map(str, (content["memory"], *content["time"], *content["hints"]))),
        notes=tuple(map(str, content["remarks"])),
    )


def _types(base: dict[str, Any], other: dict[str, Any]) -> list[Row]:
    counts = [_counted(side["census"]["kinds"]) for side in (base, other)]
    reasons: dict[str, dict[str, None]] = {}
    for kind in other["census"]["kinds"]:
        reasons.setdefault(str(kind["function"]), {})[str(kind["why"])] = None
    names = dict.fromkeys([*counts[1], *counts[0]])
    return [
        Row(name, (counts[0].get(name, "–"), counts[1].get(name, "–"), ", ".join(reasons.get(name, {}))))
        for name in names
    ]


def _counted(kinds: list[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, dict[str, int]] = {}
    for kind in kinds:
        of = found.setdefault(str(kind["function"]), {})
        of[str(kind["dtype"])] = of.get(str(kind["dtype"]), 0) + int(kind["count"])
    return {name: ", ".join(f"{n} {dtype}" for dtype, n in of.items()) for name, of in found.items()}


def _memory(base: dict[str, Any], other: dict[str, Any]) -> list[Row]:
    rows = []
    for words, keys in MEMORY:
        pair = [sum(float(side[key]) for key in keys) for side in (base, other)]
        if any(pair):
            is_bound = words.endswith("peak") and not other["exact"]
            share = of_all(pair[1] / pair[0]) if pair[0] else "–"
            name = f"{words}, at most" if is_bound else words
            rows.append(Row(name, (*(f"{size / MIB:,.1f}" for size in pair), share)))
    return rows


def _times(base: dict[str, Any], other: dict[str, Any]) -> list[Row]:
    rows = []
    whole = max(float(side["seconds"]) for side in (base, other))
    for name in list(dict.fromkeys([*other["by_kind"], *base["by_kind"]]))[:KINDS]:
        one, two = (side["by_kind"].get(name, {}) for side in (base, other))
        seconds = [float(part.get("seconds", 0.0)) for part in (one, two)]
        if max(seconds) < LEAST * whole:
            continue
        faster = f"{seconds[0] / seconds[1]:.2f}" if all(seconds) else "–"
        share = f"{of_all(float(two.get('size', 0.0)) / float(other['bytes']))}" if other["bytes"] else "–"
        bound = "memory" if float(two.get("moving", 0.0)) > 0.5 * seconds[1] else "arithmetic"
        rows.append(Row(str(name), (*map(_ms, seconds), faster, share, bound if two else "–")))
    both = [float(side["seconds"]) for side in (base, other)]
    rows.append(Row("all", (*map(_ms, both), f"{both[0] / both[1]:.2f}" if both[1] else "–", "", "")))
    return rows


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


def _groups(
    base: dict[str, Any], other: dict[str, Any]
) -> dict[str, tuple[tuple[float, float], tuple[float, float]]]:
    found = {}
    for name in dict.fromkeys([*base["seconds"], *other["seconds"]]):
        mib = [float(side["activations"].get(name, 0.0)) / MIB for side in (base, other)]
        ms = [1e3 * float(side["seconds"].get(name, 0.0)) for side in (base, other)]
        if not all(map(math.isfinite, (*mib, *ms))):
            raise ValueError(f"{name}: a figure that is no number")
        found[str(name)] = ((mib[0], mib[1]), (ms[0], ms[1]))
    return found
