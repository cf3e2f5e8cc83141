"""Whether two names are of one card: as its driver names it, and as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What says nothing of how fast a card is.
MAKERS = frozenset(
    "nvidia amd intel geforce tesla quadro gpu cpu gpus graphics card single one 1x x1 server edition".split()
)
_MORE = re.compile(r"\d+gb|hbm\d*e?|(?:sxm|pci|nvl)[\de]*")  # memory and form, which a name may leave out


def is_same_card(published: str, devices: Iterable[str]) -> bool:
    """Whether all devices are the published one: the same words, of which one name may leave out memory and
    form. An unknown name is no other's.

    >>> is_same_card("Tesla V100", ["Tesla V100-SXM2-16GB"]), is_same_card("RTX 2080", ["RTX 2080 Ti"])
    (True, False)
    >>> is_same_card("H100 PCIe", ["NVIDIA H100 SXM"])
    False
    """
    theirs, ours = _words(published), [_words(device) for device in devices]
    return bool(theirs and ours) and all(
        (theirs <= here or here <= theirs) and all(map(_MORE.fullmatch, theirs ^ here)) for here in ours
    )


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    text = re.sub(r"(\d+)[ -]?gi?b\b", r" \1gb ", text)
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", text) if word and word not in MAKERS)
