"""Putting the O1 casts in force and taking them away without a trace.

Functions are wrapped in place (a function mode would be popped inside `backward`, where activation
checkpointing runs the forward again, and costs more: see docs). The wrappers are installed while anybody
needs them and inert in every thread that is not inside a context.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing

from ampcompare.precision.apex import attention, recurrent, rules
from ampcompare.precision.apex.state import HALF, STATE
from ampcompare.precision.apex.tables import entries

RULES = rules.RULES | recurrent.RULES | attention.RULES
_MISSING = object()
_lock = threading.RLock()
_users = 0
Key = tuple[int, str]  # id of namespace, name
_user_rules: dict[Key, tuple[Any, str, str]] = {}  # namespace, name, rule
_wrappers: dict[Key, tuple[Any, Any]] = {}  # original, wrapper
# Namespace, name, what its own dict held before, what it holds now.
_installed: list[tuple[Any, str, Any, Any]] = []


@contextmanager
def casts(
    *, device_type: str | None = None, allow_banned: bool | None = None, half: torch.dtype | None = None
) -> Iterator[None]:
    """The context in which O1's casts are in force, in this thread.

    Inside another such context (or with casts on everywhere) it changes nothing but what is named.
    `device_type` is that of the tensors to cast; by default cuda where there is one. `half` is the type of
    the half lists: float16 as in apex, by default; bfloat16 is ours.
    """
    contexts, cache = STATE.contexts, STATE.cache
    nested = STATE.on or bool(contexts)
    if device_type is None:
        device_type = STATE.device_type if nested else default_device_type()
    if allow_banned is None:
        allow_banned = STATE.allow_banned if nested else False
    if half is None:
        half = STATE.half if nested else HALF
    install()
    try:
        if not any(context["on"] for context in contexts):
            cache.clear()  # weights may have been edited since in ways that leave no version (`.data`)
        with _in_force(on=True, half=half, device_type=device_type, allow_banned=allow_banned):
            yield
    finally:
        if not any(context["on"] for context in contexts):
            cache.clear()
        uninstall()


@contextmanager
def disable_casts() -> Iterator[None]:
    """The context in which no casts are in force, in this thread."""
    now = {"half": STATE.half, "device_type": STATE.device_type, "allow_banned": STATE.allow_banned}
    with _in_force(on=False, **now):
        yield


@contextmanager
def _in_force(**context: Any) -> Iterator[None]:
    """Open a context in this thread; the innermost that is open holds.

    Contexts in generators may close in any order and, when collected, in another thread, so that going back
    to what was found on opening would leave casts on for good.
    """
    own = vars(STATE)
    contexts = own["contexts"]
    contexts.append(context)
    own.update(context)
    try:
        yield
    finally:
        contexts[:] = [other for other in contexts if other is not context]
        for name in context:
            own.pop(name, None)
        if contexts:
            own.update(contexts[-1])


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
                _put_back(*_installed.pop())


@contextmanager
def installed() -> Iterator[None]:
    """Keep the wrappers in place, inert, so that contexts inside open at no cost."""
    install()
    try:
        yield
    finally:
        uninstall()


def register(namespace: Any, name: str, rule: str) -> None:
    """Add a function of the user's to the lists, or move one that is listed. Raises ValueError for none."""
    if not hasattr(namespace, name):
        where = getattr(namespace, "__name__", repr(namespace))
        raise ValueError(f"No function named {name} in module {where}.")
    with _lock:
        _user_rules[id(namespace), name] = (namespace, name, rule)
        _unwrap(namespace, name)
        if _users:
            _wrap(namespace, name, rule)


def forget_registered() -> None:
    """Drop the user's additions."""
    with _lock:
        for namespace, name, _ in _user_rules.values():
            _unwrap(namespace, name)
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
    original = getattr(namespace, name)
    if isinstance(namespace, type):
        static = inspect.getattr_static(namespace, name)  # own or inherited; getattr binds a class method
        original = static if isinstance(static, staticmethod | classmethod) else original
    key = (id(namespace), name)
    known = _wrappers.get(key)
    if known is None or known[0] is not original:
        bound = isinstance(original, staticmethod | classmethod)
        wrapper = type(original)(RULES[rule](original.__func__)) if bound else RULES[rule](original)
        known = _wrappers[key] = (original, wrapper)
    _install_one(namespace, name, before, known[1])


def _install_one(namespace: Any, name: str, before: Any, wrapper: Any) -> None:
    _installed.append((namespace, name, before, wrapper))
    setattr(namespace, name, wrapper)


def _put_back(namespace: Any, name: str, before: Any, wrapper: Any) -> None:
    if vars(namespace).get(name) is not wrapper:
        return  # replaced by somebody else meanwhile: theirs to put back
    delattr(namespace, name) if before is _MISSING else setattr(namespace, name, before)


def _unwrap(namespace: Any, name: str) -> None:
    """Forget the wrapper of one function, and put the original back where it is installed."""
    _wrappers.pop((id(namespace), name), None)
    for index, (where, what, before, wrapper) in enumerate(_installed):
        if where is namespace and what == name:
            del _installed[index]
            _put_back(where, what, before, wrapper)
            return


def _wrap_checkpointing() -> None:
    """Have a forward that is run again inside `backward`, in whichever thread, do so under its first casts.

    Both kinds of activation checkpointing look these names up in their module, also when the user imported
    `checkpoint` by name before. The generator got its `_impl` between PyTorch 2.11 and 2.14.
    """
    generator = "_checkpoint_without_reentrant_generator"
    name_here = f"{generator}_impl" if hasattr(checkpointing, f"{generator}_impl") else generator
    for namespace, name in ((checkpointing.CheckpointFunction, "apply"), (checkpointing, name_here)):
        before = vars(namespace).get(name, _MISSING)
        original = getattr(namespace, name)

        def wrapper(function: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            return _original(_with_these_casts(function), *args, **kwargs)

        ours = staticmethod(wrapper) if isinstance(namespace, type) else wrapper
        _install_one(namespace, name, before, ours)


def _with_these_casts(function: Any) -> Any:
    on = STATE.on
    how: dict[str, Any] = {
        "half": STATE.half,
        "device_type": STATE.device_type,
        "allow_banned": STATE.allow_banned,
    }

    def run(*args: Any, **kwargs: Any) -> Any:
        with casts(**how) if on else disable_casts():
            return function(*args, **kwargs)

    return run
