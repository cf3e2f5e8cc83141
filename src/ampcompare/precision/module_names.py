"""Modules of a network by their names, with shell-style stars: `layer4.2,*.bn3,fc`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

OPTION = "precision.keep_fp32"
_NEAR, _SHOWN = 3, 8


class CannotKeep(ValueError):
    """What was asked to be kept cannot be; the message is one line."""


def matching(model: nn.Module, patterns: Sequence[str] | str) -> list[str]:
    """The names of the modules that the patterns match, in the network's order; "" is the network itself.

    Those below a matched one are left out. Raises CannotKeep for a pattern that matches none, with the names
    that are near.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    >>> matching(net, "*.0"), matching(net, ["1", "1.0"]), matching(net, "*")
    (['1.0'], ['1'], [''])
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    matched: set[str] = set()
    for pattern in split(patterns):
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            what = f"{OPTION}={pattern!r}: no module of the network has such a name"
            raise CannotKeep(f"{what}; {_near(pattern, names)}")
        matched |= found
    return [name for name in names if name in matched and not any(above in matched for above in _above(name))]


def split(patterns: Sequence[str] | str) -> list[str]:
    """The patterns one by one, of a text those between its commas."""
    parts = patterns.split(",") if isinstance(patterns, str) else patterns
    return [part.strip() for part in parts if part.strip()]


def _above(name: str) -> Iterable[str]:
    """The names of the modules that a name lies below: "" and `a` of `a.b`."""
    parts = name.split(".") if name else []
    return (".".join(parts[:count]) for count in range(len(parts)))


def _near(pattern: str, names: Sequence[str]) -> str:
    """What may have been meant, or what there is."""
    known = [name for name in names if name]
    if not known:
        return "it has no modules in it; * is the whole of it"
    word = pattern.strip("*").strip(".").lower()
    near = get_close_matches(word, known, _NEAR, 0.6)
    if not near:  # `*.bn9`: by what names end in, however long the way there is
        ends = list(dict.fromkeys(name.rpartition(".")[2] for name in known))
        near = [_example(end, known) for end in get_close_matches(word.rpartition(".")[2], ends, _NEAR, 0.6)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    top = [name for name in known if "." not in name]
    return f"it has {', '.join(top[:_SHOWN])}{', ...' if top[_SHOWN:] else ''}"


def _example(end: str, names: Sequence[str]) -> str:
    having = [name for name in names if name.rpartition(".")[2] == end]
    return having[0] if len(having) == 1 else f"*.{end}"
