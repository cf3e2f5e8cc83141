"""A Fragment as bytes that give the same Fragment again: a checksum, a head as JSON, and the arrays.

Only plain values come back: nothing in the bytes can name a class or run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.records.run import Fragment

MAGIC = b"ampcompare run 1\n"
SUM_BYTES, SIZE_BYTES = 32, 8
# They follow from where a file lies and when it was written, not from what is in it.
OUTSIDE = frozenset({"path", "last_write", "state"})


def pack(fragment: Fragment) -> bytes:
    """The fragment as bytes. Raises TypeError, ValueError or RecursionError for what JSON cannot hold."""
    arrays: list[np.ndarray] = []
    head = {"stem": fragment.path.stem, "fields": _fields(fragment, arrays)}
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    parts = [len(text).to_bytes(SIZE_BYTES, "little"), text, *(array.tobytes() for array in arrays)]
    content = b"".join(parts)
    return b"".join((MAGIC, hashlib.sha256(content).digest(), content))


def _fields(value: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(value) if f.name not in OUTSIDE]
    return {name: _packed(getattr(value, name), arrays) for name in names}


def _packed(value: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    """The value as JSON that says its type; of an array its type and length, itself put behind the others."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {"objects": value.tolist()}
        if value.dtype not in (np.float64, np.int64):
            raise TypeError(f"an array of {value.dtype}")
        arrays.append(value)
        return {value.dtype.name: len(value)}
    if isinstance(value, dict) and any(isinstance(inner, np.ndarray) for inner in value.values()):
        return {"dict": {name: _packed(inner, arrays) for name, inner in value.items()}}
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, tuple):
        return {"tuple": list(value)}
    if dataclasses.is_dataclass(value):
        return {"fields": _fields(value, arrays)}
    return {"json": value}


def unpack(content: bytes, path: Path) -> Fragment | None:
    """The fragment of the file at `path`; None if it was that of a file of another name.

    Raises ValueError where the content is not what `pack` made.
    """
    begin = len(MAGIC) + SUM_BYTES
    if content[: len(MAGIC)] != MAGIC:
        raise ValueError("not of this format")
    if hashlib.sha256(memoryview(content)[begin:]).digest() != content[len(MAGIC) : begin]:
        raise ValueError("its checksum is wrong")
    try:
        head_begin = begin + SIZE_BYTES
        head_end = head_begin + int.from_bytes(content[begin:head_begin], "little")
        head = json.loads(content[head_begin:head_end])
        # A copy, which may be written to as what a reader makes.
        unpacking = _Unpacking(bytearray(content[head_end:]))
        if head["stem"] != path.stem:
            return None
        fragment = Fragment(path=path, id="", state="crashed")
        unpacking.fill(fragment, head["fields"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as problem:
        raise ValueError(f"malformed: {problem}") from None
    return fragment


class _Unpacking:
    """What `_packed` packed; the arrays are taken one after the other."""

    def __init__(self, arrays: bytearray) -> None:
        self._arrays, self._at = arrays, 0
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "json": lambda said: said,
            "tuple": tuple,
            "datetime": datetime.fromisoformat,
            "dict": lambda said: {name: self.value(inner) for name, inner in said.items()},
            "objects": _as_objects,
            "float64": lambda count: self._array(np.float64, count),
            "int64": lambda count: self._array(np.int64, count),
        }

    def fill(self, target: Any, fields: dict[str, Any]) -> None:
        """Set the fields of a dataclass; those that are one themselves are filled in place."""
        for name, said in fields.items():
            before = getattr(target, name)
            if "fields" in said:
                self.fill(before, said["fields"])
            else:
                setattr(target, name, self.value(said))

    def value(self, said: dict[str, Any]) -> Any:
        """One value."""
        ((kind, inner),) = said.items()
        return self._kinds[kind](inner)

    def _array(self, dtype: type, count: int) -> np.ndarray:
        found: np.ndarray = np.empty(0, dtype)
        if count:
            found = np.frombuffer(self._arrays, dtype, count, self._at)
        self._at += found.nbytes
        return found


def _as_objects(values: list[Any]) -> np.ndarray:
    cells = np.full(len(values), None, dtype=object)
    for number, value in enumerate(values):
        cells[number] = value
    return cells
