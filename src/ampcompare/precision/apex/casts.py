"""Putting the O1 casts in force and taking them away without a trace.

Functions are wrapped in place (a function mode would be popped inside `backward`, where activation checkpointing runs
the forward again, and costs more: see docs). The wrappers are installed while anybody needs them and inert in every
thread that is not inside a context.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing

from ampcompare.precision.apex.rules import RULES
from ampcompare.precision.apex.state import STATE
from ampcompare.precision.apex.tables import entries

_MISSING = object()
_lock = threading.RLock()
_users = 0
_user_rules: dict[tuple[int, str], tuple[Any, str, str]] = {}  # (id of namespace, name) -> namespace, name, rule
_installed: list[tuple[Any, str, Any]] = []  # namespace, name, what its own dict held before
_wrappers: dict[tuple[int, str], tuple[Any, Any]] = {}  # (id of namespace, name) -> original, wrapper


@contextmanager
def casts(*, device_type: str | None = None, allow_banned: bool | None = None) -> Iterator[None]:
    """The context in which O1's casts are in force, in this thread.

    Inside another such context (or with casts on everywhere) it changes nothing but what is named. `device_type` is
    that of the tensors to cast; by default cuda where there is one.
    """
    own = vars(STATE)
    outermost = not own.get("on", False)
    before = {name: own.get(name, _MISSING) for name in ("on", "device_type", "allow_banned")}
    if device_type is None:
        device_type = STATE.device_type if STATE.on else default_device_type()
    if allow_banned is None:
        allow_banned = STATE.allow_banned if STATE.on else False
    install()
    if outermost:
        STATE.cache.clear()  # weights may have been edited since in ways that leave no version (`.data`)
    own.update(on=True, device_type=device_type, allow_banned=allow_banned)
    try:
        yield
    finally:
        for name, value in before.items():
            own.pop(name, None) if value is _MISSING else own.__setitem__(name, value)
        if outermost:
            STATE.cache.clear()
        uninstall()


@contextmanager
def disable_casts() -> Iterator[None]:
    """The context in which no casts are in force, in this thread."""
    own = vars(STATE)
    before = own.get("on", _MISSING)
    own["on"] = False
    try:
        yield
    finally:
        own.pop("on") if before is _MISSING else own.__setitem__("on", before)


def default_device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def install() -> None:
    """Wrap every listed function, unless that is done already; each call needs its `uninstall`."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for namespace, name, rule in _all_entries():
                _wrap(namespace, name, rule)
            _wrap_checkpointing()


def uninstall() -> None:
    """Put the original functions back when the last user is gone."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _installed:
                namespace, name, before = _installed.pop()
                if before is _MISSING:
                    delattr(namespace, name)
                else:
                    setattr(namespace, name, before)


@contextmanager
def installed() -> Iterator[None]:
    """Keep the wrappers in place, inert, so that contexts inside open at no cost."""
    install()
    try:
        yield
    finally:
        uninstall()


def register(namespace: Any, name: str, rule: str) -> None:
    """Add a function of the user's to the lists, or move one that is listed. Raises ValueError if there is none."""
    if not hasattr(namespace, name):
        where = getattr(namespace, "__name__", repr(namespace))
        raise ValueError(f"No function named {name} in module {where}.")
    with _lock:
        _user_rules[id(namespace), name] = (namespace, name, rule)
        if _users:
            _restore_one(namespace, name)
            _wrap(namespace, name, rule)


def forget_registered() -> None:
    """Drop the user's additions."""
    with _lock:
        for namespace, name, _ in _user_rules.values():
            _wrappers.pop((id(namespace), name), None)
            if _users:
                _restore_one(namespace, name)
        rules = {(id(n), name): (n, name, rule) for n, name, rule in entries()}
        again = [rules[key] for key in _user_rules if key in rules]
        _user_rules.clear()
        if _users:
            for namespace, name, rule in again:
                _wrap(namespace, name, rule)


def _all_entries() -> Iterator[tuple[Any, str, str]]:
    for namespace, name, rule in entries():
        if (id(namespace), name) not in _user_rules:
            yield namespace, name, rule
    yield from _user_rules.values()


def _wrap(namespace: Any, name: str, rule: str) -> None:
    own = vars(namespace) if hasattr(namespace, "__dict__") else {}
    before = own.get(name, _MISSING)
    original = before if isinstance(before, staticmethod | classmethod) else getattr(namespace, name)
    key = (id(namespace), name)
    known = _wrappers.get(key)
    if known is None or known[0] is not original:
        if isinstance(original, staticmethod | classmethod):
            wrapper: Any = type(original)(RULES[rule](original.__func__))
        else:
            wrapper = RULES[rule](original)
        known = _wrappers[key] = (original, wrapper)
    _installed.append((namespace, name, before))
    setattr(namespace, name, known[1])


def _restore_one(namespace: Any, name: str) -> None:
    for index, (where, what, before) in enumerate(_installed):
        if where is namespace and what == name:
            del _installed[index]
            delattr(namespace, name) if before is _MISSING else setattr(namespace, name, before)
            _wrappers.pop((id(namespace), name), None)
            return


def _wrap_checkpointing() -> None:
    """Make a forward that is run again inside `backward`, in whichever thread, run under the casts of its first time.

    Both kinds of activation checkpointing look these names up in their module, also when the user imported
    `checkpoint` by name before.
    """
    for namespace, name in (
        (checkpointing.CheckpointFunction, "apply"),
        (checkpointing, "_checkpoint_without_reentrant_generator"),
    ):
        before = vars(namespace).get(name, _MISSING)
        original = getattr(namespace, name)

        def wrapper(function: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            return _original(_with_these_casts(function) if STATE.on else function, *args, **kwargs)

        _installed.append((namespace, name, before))
        setattr(namespace, name, staticmethod(wrapper) if isinstance(namespace, type) else wrapper)


def _with_these_casts(function: Any) -> Any:
    device_type, allow_banned = STATE.device_type, STATE.allow_banned

    def run(*args: Any, **kwargs: Any) -> Any:
        with casts(device_type=device_type, allow_banned=allow_banned):
            return function(*args, **kwargs)

    return run
