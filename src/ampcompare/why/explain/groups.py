"""A network's modules in as few groups as a table or a picture can show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

MOST = 14
T = TypeVar("T")


def grouping(names: Iterable[str], most: int = MOST) -> dict[str, str]:
    """Each module's group: the beginnings of their names, as many parts deep as gives `most` groups or fewer,
    but for a first part that all have. Names in brackets, which are no modules, are groups of their own.

    >>> grouping(["layer1.0.conv1", "layer1.1.conv1", "fc", "(loss)"], most=3)
    {'layer1.0.conv1': 'layer1', 'layer1.1.conv1': 'layer1', 'fc': 'fc', '(loss)': '(loss)'}
    """
    known = list(dict.fromkeys(names))
    found = {name: _beginning(name, 1) for name in known}
    for depth in range(2, 2 + max((name.count(".") for name in known), default=0)):
        deeper = {name: _beginning(name, depth) for name in known}
        if len(set(deeper.values())) > most:
            break
        found = deeper
    return found


def _beginning(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def summed(values: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """The values of modules added up by group."""
    found: dict[str, float] = dict.fromkeys(dict.fromkeys(groups.values()), 0.0)
    for name, value in values.items():
        found[groups.get(name, name)] = found.get(groups.get(name, name), 0.0) + value
    return found
