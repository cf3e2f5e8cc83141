"""Which memory is held and what for: each storage counted once, however many tensors are views of it."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import Tensor

TEMPORARY = "temporary"


class Held:
    """Bytes by kind: what is held now, and what was held when it was most.

    A storage that an op makes is temporary until somebody says what it is, and gone when nobody holds it any
    more, as an allocator without a cache would see it.
    """

    def __init__(self) -> None:
        self.now: dict[str, int] = defaultdict(int)
        self.at_peak: dict[str, int] = {}
        self.peak = 0
        self.most: dict[str, int] = defaultdict(int)  # of each kind by itself
        self.by_module: dict[str, dict[str, int]] = {}  # kind to bytes by module, of what `settle` settled
        self._known: dict[int, tuple[str, int, str, Any]] = {}  # by id of the storage

    def born(self, tensor: Tensor, module: str) -> None:
        """A tensor that an op made: new memory, if its storage is new."""
        self._take(tensor, TEMPORARY, module)
        total = sum(self.now.values())
        if total > self.peak:
            self.peak, self.at_peak = total, dict(self.now)

    def own(self, kind: str, tensors: Iterable[Any]) -> None:
        """These are of that kind, if nobody said before what they are."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._take(tensor, kind, "")

    def kind(self, tensor: Tensor) -> str:
        """Of what kind a tensor's storage is; empty: one that nobody has seen."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        return known[0] if known else ""

    def settle(self, kind: str) -> None:
        """What is temporary and still held has come to stay: it is of that kind."""
        found: dict[str, int] = defaultdict(int)
        for key, (known, size, module, reference) in list(self._known.items()):
            if known == TEMPORARY:
                self._known[key] = (kind, size, module, reference)
                self.now[TEMPORARY] -= size
                self._add(kind, size)
                found[module] += size
        if sum(found.values()) > sum(self.by_module.get(kind, {}).values()):
            self.by_module[kind] = dict(found)

    def _take(self, tensor: Tensor, kind: str, module: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is None:
            size = storage.nbytes()
            reference = weakref.ref(storage, lambda _: self._gone(key))
            self._known[key] = (kind, size, module, reference)
            self._add(kind, size)
        elif known[0] == TEMPORARY and kind != TEMPORARY:
            self.now[TEMPORARY] -= known[1]
            self._known[key] = (kind, *known[1:])
            self._add(kind, known[1])

    def _gone(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.now[known[0]] -= known[1]

    def _add(self, kind: str, size: int) -> None:
        self.now[kind] += size
        self.most[kind] = max(self.most[kind], self.now[kind])
