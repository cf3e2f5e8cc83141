"""Nested settings: read from JSON, stored at paths as W&B logs config and summary, and looked up."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_DEPTH = 100  # nesting depth; below Python's recursion limit
Path = tuple[str, ...]

_ABSENT = object()


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse a value as W&B writes it. Texts for NaN and infinity become floats at any depth.

    Raises:
        ValueError: The text is no JSON, or is nested too deeply.
    """
    try:
        return with_floats(json.loads(text if isinstance(text, str) else text.decode(), **options))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def with_floats(value: Any) -> Any:
    """Replace W&B's texts for NaN and infinity by floats, at any depth."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: with_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_floats(inner) for inner in value]
    return value


def is_number(value: Any) -> bool:
    """Return whether a value is a number in JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(number: float) -> float:
    """Return the number as a float, infinite for an integer beyond 1e308."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def path_of(item: Any) -> Path:
    """Return the parts of a protobuf item's key, at most MAX_DEPTH. Most keys have one part."""
    return tuple(item.nested_key[:MAX_DEPTH]) or (item.key,)


def write(tree: dict[str, Any], path: Path, value: Any) -> None:
    """Store a value at a path. Values on the way that are no groups become groups."""
    for part in path[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):
            inner = tree[part] = {}
        tree = inner
    tree[path[-1]] = value


def remove(tree: dict[str, Any], path: Path) -> None:
    """Remove what is at a path, if anything."""
    for part in path[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):
            return
        tree = inner
    tree.pop(path[-1], None)


def flatten(tree: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of a nested dictionary, depth first. What is deeper is one value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and depth:
            yield from flatten(value, f"{prefix}{as_text(key)}.", depth - 1)
        else:
            yield f"{prefix}{as_text(key)}", value


def as_text(value: Any) -> str:
    """Return any value of a record as text.

    Python cannot convert deeply nested values; they give their type.
    """
    try:
        return "null" if value is None else str(value)
    except RecursionError:
        return f"{type(value).__name__} that cannot be written"


def lookup(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value at a dotted key.

    A key that was logged flat (`optimizer.lr` by a sweep) is found, and so are names that contain dots (`a.b`
    with `c` in it).
    """
    if key in tree:
        return tree[key]
    parts = key.split(".")
    for count in range(1, len(parts)):
        inner = tree.get(".".join(parts[:count]))
        if not isinstance(inner, Mapping):
            continue
        value = lookup(inner, ".".join(parts[count:]), _ABSENT)
        if value is not _ABSENT:
            return value
    return default
