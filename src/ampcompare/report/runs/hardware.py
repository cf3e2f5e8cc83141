"""Whether two names are of one card: as its driver names it, and as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What says nothing of how fast a card is.
MAKERS = frozenset(
    "nvidia amd intel geforce tesla quadro gpu cpu gpus graphics card single one 1x x1".split()
)
_FORM = re.compile(r"sxm\d*|pcie?|hbm\d*e?|nvl|server|edition")
_SIZE = re.compile(r"(\d+) ?gi?b\b")


def is_same_card(published: str, devices: Iterable[str]) -> bool:
    """Whether all devices are the published one. An unknown name is no other's.

    >>> is_same_card("Tesla V100", ["Tesla V100-SXM2-16GB"]), is_same_card("RTX 2080", ["RTX 2080 Ti"])
    (True, False)
    """
    theirs, ours = _words(published), [_words(device) for device in devices]
    return bool(theirs[0] and ours) and all(_is_one(theirs, here) for here in ours)


def _is_one(one: tuple[frozenset[str], str], other: tuple[frozenset[str], str]) -> bool:
    sizes = {size for size in (one[1], other[1]) if size}
    return one[0] == other[0] and len(sizes) < 2


def _words(name: str) -> tuple[frozenset[str], str]:
    """What tells the card from others, and its memory in GB where the name says it."""
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    size = _SIZE.search(text)
    words = re.split(r"[^a-z0-9.]+", _SIZE.sub(" ", text))
    told = frozenset(w for w in words if w and w not in MAKERS and not _FORM.fullmatch(w))
    return told, size[1] if size else ""
