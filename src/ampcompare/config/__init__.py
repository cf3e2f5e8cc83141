"""The options of a run, read and checked; `load_config` and `Config` can be had from here and load on use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {"Config": "schema", "LEAVES": "schema", "load_config": "load"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
