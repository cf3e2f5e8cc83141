"""Nested settings rebuilt from the updates and removals in which W&B logs config and summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from ampcompare.records.table import Path, parse_json, path_of

MOST_BITS = 14_000  # of a whole number; Python writes none of more than 4,300 digits
MAX_DEPTH = 100  # groups within groups; below Python's limit, whatever reads the tree by calling itself


_ABSENT = object()


class Removed(Enum):
    """A removed path: one that was written before made groups of what lies above it."""

    UNSEEN = 0
    WRITTEN = 1


class Tree:
    """The last text written at each path, in order of writing.

    Keeping texts means that a value that is overwritten a million times is parsed once. Applying the last
    write of each path, in the order of these last writes, gives the same tree as applying them all: what lies
    below a path is forgotten when that is written.
    """

    def __init__(self) -> None:
        self._writes: dict[Path, str | Removed] = {}
        self._above: set[Path] = set()  # what some written path lies below
        self.bad_values = 0

    def apply(self, record: Any) -> None:
        """Take in a protobuf ConfigRecord or SummaryRecord."""
        for item in record.update:
            self.write(path_of(item), item.value_json)
        writes = self._writes
        for item in record.remove:
            path = path_of(item)
            before = [*self._forget_below(path), writes.pop(path, Removed.UNSEEN)]
            unseen = all(write is Removed.UNSEEN for write in before)
            writes[path] = Removed.UNSEEN if unseen else Removed.WRITTEN

    def write(self, path: Path, text: str) -> None:
        """Take in the JSON text of the value at a path."""
        self._forget_below(path)
        self._writes.pop(path, None)  # so that the order is that of the last writes
        self._writes[path] = text
        self._above.update(path[:end] for end in range(1, len(path)))

    def _forget_below(self, path: Path) -> list[str | Removed]:
        if path not in self._above:
            return []
        self._above.discard(path)
        below = [p for p in self._writes if len(p) > len(path) and p[: len(path)] == path]
        return [self._writes.pop(p) for p in below]

    def build(self) -> dict[str, Any]:
        """The nested dictionary. W&B's own `_wandb` key is left out."""
        root: dict[str, Any] = {}
        for path, text in self._writes.items():
            if path[0] == "_wandb":
                continue
            try:
                if len(path) > MAX_DEPTH:
                    raise ValueError("nested too deeply")
                value = None if isinstance(text, Removed) else parse_json(text)
            except ValueError:
                self.bad_values += 1
                continue
            node = root
            for part in path[:-1]:
                inner = node.get(part)
                if not isinstance(inner, dict):
                    if text is Removed.UNSEEN:
                        break
                    inner = node[part] = {}
                node = inner
            else:
                if isinstance(text, Removed):
                    node.pop(path[-1], None)
                else:
                    node[path[-1]] = value
        return root


def flatten(tree: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested dictionary, depth first; what is deeper is one value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and depth:
            yield from flatten(value, f"{prefix}{as_text(key)}.", depth - 1)
        else:
            yield f"{prefix}{as_text(key)}", value


def as_text(value: Any) -> str:
    """Any value of a record as text: Python has none for a number of 5,000 digits, or for deep nesting."""
    try:
        return "null" if value is None else str(value)
    except (ValueError, RecursionError):
        return f"{type(value).__name__} that cannot be written"


def plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value as JSON has it, itself where it is so: keys are texts, and so is whatever else JSON lacks or
    nobody could write or read (a number of thousands of digits, what is nested deeper than `depth`).
    """
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MOST_BITS else as_text(value)
    if not isinstance(value, Mapping | list | tuple) or not depth:
        return as_text(value)
    if isinstance(value, Mapping):
        inner: Any = {k if isinstance(k, str) else as_text(k): plain(v, depth - 1) for k, v in value.items()}
        is_same = isinstance(value, dict) and all(inner.get(k, inner) is v for k, v in value.items())
    else:
        inner = [plain(v, depth - 1) for v in value]
        is_same = all(a is b for a, b in zip(inner, value, strict=True))
    return value if is_same else inner


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
