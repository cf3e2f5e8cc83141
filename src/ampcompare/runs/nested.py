"""Nested settings: their values read from JSON, put at paths as W&B logs config and summary, looked up."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_DEPTH = 100  # groups within groups; below Python's limit, whatever reads the tree by calling itself
Path = tuple[str, ...]

_ABSENT = object()


def parse_json(text: str | bytes, **how: Any) -> Any:
    """A value as W&B writes it; its texts for NaN and infinity become floats, nested ones too.

    Raises ValueError for what is no JSON, or is nested deeper than can be read.
    """
    try:
        return with_floats(json.loads(text if isinstance(text, str) else text.decode(), **how))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def with_floats(value: Any) -> Any:
    """The value with W&B's texts for NaN and infinity as floats, at any depth."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: with_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_floats(inner) for inner in value]
    return value


def is_number(value: Any) -> bool:
    """Whether a value is a number, as JSON has them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(number: float) -> float:
    """The number as a float; infinite for a whole one beyond 1e308."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def path_of(item: Any) -> Path:
    """The key of a protobuf item: its parts, of which most keys have one. Those beyond MAX_DEPTH go."""
    return tuple(item.nested_key[:MAX_DEPTH]) or (item.key,)


def write(tree: dict[str, Any], path: Path, value: Any) -> None:
    """Put a value at a path; what is no group above it becomes one."""
    for part in path[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):
            inner = tree[part] = {}
        tree = inner
    tree[path[-1]] = value


def remove(tree: dict[str, Any], path: Path) -> None:
    """Take away what is at a path, if anything."""
    for part in path[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):
            return
        tree = inner
    tree.pop(path[-1], None)


def flatten(tree: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested dictionary, depth first; what is deeper is one value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and depth:
            yield from flatten(value, f"{prefix}{as_text(key)}.", depth - 1)
        else:
            yield f"{prefix}{as_text(key)}", value


def as_text(value: Any) -> str:
    """Any value of a record as text: Python has none for deep nesting."""
    try:
        return "null" if value is None else str(value)
    except RecursionError:
        return f"{type(value).__name__} that cannot be written"


def lookup(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value at a dotted key; a key that was logged flat (`optimizer.lr` by a sweep) is found too, and so
    are names with dots in them (`a.b` and within it `c`).
    """
    if key in tree:
        return tree[key]
    end = key.find(".")
    while end >= 0:
        inner = tree.get(key[:end])
        if isinstance(inner, Mapping) and (found := lookup(inner, key[end + 1 :], _ABSENT)) is not _ABSENT:
            return found
        end = key.find(".", end + 1)
    return default
