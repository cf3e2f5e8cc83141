"""Whether casts are in force, and for what: per thread, as autocast is, with a process-wide default."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ampcompare.precision.apex.cache import WeightCache

HALF = torch.float16  # apex's own low type, and that of whoever names none


class CastState(threading.local):
    """The casts of the current thread.

    A thread that never entered a context follows the class's own values: `everywhere` sets those, which is
    what `amp.initialize` does for functions outside a model's forward, as the original did.
    """

    on = False
    half = HALF
    device_type = "cpu"
    allow_banned = False

    def __init__(self) -> None:
        self.cache = WeightCache()  # one for each thread: copies belong to the graph that the thread builds
        self.contexts: list[dict[str, Any]] = []  # those open in this thread, the one in force last


STATE = CastState()


def everywhere(on: bool, device_type: str = "cpu", allow_banned: bool = False) -> None:
    """Set what holds in every thread outside any context of its own."""
    CastState.on, CastState.device_type, CastState.allow_banned = on, device_type, allow_banned
