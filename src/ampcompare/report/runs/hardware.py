"""Whether two names are of one card: as its driver names it, and as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What says nothing of how fast a card is.
MAKERS = frozenset(
    "nvidia amd intel geforce tesla quadro gpu cpu gpus graphics card single one 1x x1 server edition".split()
)
_MEMORY_KIND = re.compile(r"hbm\d*e?")
_FORM = re.compile(r"(sxm|pci|nvl)[\de]*")  # of which one name may say nothing, but not another
_SIZE = re.compile(r"(\d+) ?gi?b\b")
Words = tuple[frozenset[str], str, str]


def is_same_card(published: str, devices: Iterable[str]) -> bool:
    """Whether all devices are the published one. An unknown name is no other's.

    >>> is_same_card("Tesla V100", ["Tesla V100-SXM2-16GB"]), is_same_card("RTX 2080", ["RTX 2080 Ti"])
    (True, False)
    >>> is_same_card("H100 PCIe", ["NVIDIA H100 SXM"])
    False
    """
    theirs, ours = _words(published), [_words(device) for device in devices]
    return bool(theirs[0] and ours) and all(_is_one(theirs, here) for here in ours)


def _is_one(one: Words, other: Words) -> bool:
    return one[0] == other[0] and all(
        not a or not b or a == b for a, b in zip(one[1:], other[1:], strict=True)
    )


def _words(name: str) -> Words:
    """What tells the card from others, its memory in GB and its form, where the name says them."""
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    size = _SIZE.search(text)
    words = [w for w in re.split(r"[^a-z0-9.]+", _SIZE.sub(" ", text)) if w and not _MEMORY_KIND.fullmatch(w)]
    form = next((found[1] for w in words if (found := _FORM.fullmatch(w))), "")
    told = frozenset(w for w in words if w not in MAKERS and not _FORM.fullmatch(w))
    return told, size[1] if size else "", form
