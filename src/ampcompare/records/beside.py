"""The settings that trainers leave beside their logs: Lightning's `hparams.yaml`, timm's `args.yaml`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from ampcompare.errors import reason

NAMES = ("hparams.yaml", "args.yaml", "hparams.yml")  # the last is accelerate's
MOST_BYTES = 4_000_000
MOST_VALUES = 100_000


# The last two: yaml's own, of a tag with a value that is none, `!!bool maybe`, `!!int ""`, `!!timestamp x`.
UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, LookupError, AttributeError)


class _Loader(yaml.SafeLoader):
    """Reads what is tagged as an object of Python (Lightning writes such) as what is in it."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _untagged)


def settings_beside(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the settings' file in a folder says, and what is wrong with it; both empty where there is none."""
    for name in NAMES:
        path = folder / name
        try:
            if not path.is_file():
                continue
            if path.stat().st_size > MOST_BYTES:
                return {}, [f"{name} is larger than {MOST_BYTES:,} bytes and was not read."]
            found = yaml.load(path.read_bytes(), _Loader)  # noqa: S506 - a SafeLoader
        except UNREADABLE as problem:
            return {}, [f"{name} cannot be read: {reason(problem)}."]
        if _size(found, set()) > MOST_VALUES:
            return {}, [f"{name} holds more than {MOST_VALUES:,} values and was not read."]
        if isinstance(found, dict):
            return {str(key): value for key, value in found.items()}, []
        if found is not None:
            return {}, [f"{name} holds no settings: it is a {type(found).__name__}."]
    return {}, []


def _size(value: Any, above: set[int], counted: int = 0) -> float:
    """How many values there are when references are written out; endless for one that contains itself."""
    if not isinstance(value, dict | list) or counted > MOST_VALUES:
        return 1
    if id(value) in above:
        return math.inf
    above.add(id(value))
    size = 1.0
    for inner in value.values() if isinstance(value, dict) else value:
        size += _size(inner, above, counted + int(min(size, MOST_VALUES)))
        if size > MOST_VALUES:
            break
    above.discard(id(value))
    return size
