"""Putting the O1 casts in force and taking them away without a trace.

Functions are wrapped in place (a function mode would be popped inside `backward`, where activation
checkpointing runs the forward again, and costs more: see docs). The wrappers are installed while anybody
needs them and inert in every thread that is not inside a context.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing

from ampcompare.precision.o1 import attention, recurrent, rules
from ampcompare.precision.o1.tables import entries
from ampcompare.precision.o1.weights import STATE

RULES = rules.RULES | recurrent.RULES | attention.RULES
_MISSING = object()
Key = tuple[int, str]  # id of namespace, name
_users = 0
_registered: dict[Key, tuple[Any, str, str]] = {}  # by the user: namespace, name, rule
_wrappers: dict[tuple[int, str, str], tuple[Any, Any]] = {}  # by namespace, name, rule: original, wrapper
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
    is_outermost = not vars(STATE).get("on")  # also where casts are on everywhere
    if device_type is None:
        device_type = STATE.device_type if STATE.on else default_device_type()
    allow = STATE.allow_banned if allow_banned is None else allow_banned
    install()
    try:
        if is_outermost:
            STATE.copies.clear()  # weights may have been edited since in ways that leave no version (`.data`)
        with _in_force(on=True, half=half or STATE.half, device_type=device_type, allow_banned=allow):
            yield
    finally:
        if is_outermost:
            STATE.copies.clear()
        uninstall()


@contextmanager
def disable_casts() -> Iterator[None]:
    """The context in which no casts are in force, in this thread."""
    with _in_force(on=False):
        yield


@contextmanager
def _in_force(**context: Any) -> Iterator[None]:
    own = vars(STATE)
    before = dict(own)
    own.update(context)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


def default_device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def install() -> None:
    """Wrap every listed function, unless that is done already; each call needs its `uninstall`."""
    global _users
    _users += 1
    if _users == 1:
        _put_on()


def uninstall() -> None:
    """Put the original functions back when the last user is gone."""
    global _users
    _users -= 1
    if _users == 0:
        _take_off()


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
    _take_off()
    _registered[id(namespace), name] = (namespace, name, rule)
    if _users:
        _put_on()


def forget_registered() -> None:
    """Drop the user's additions."""
    _take_off()
    _registered.clear()
    if _users:
        _put_on()


def _put_on() -> None:
    rules = {(id(namespace), name): (namespace, name, rule) for namespace, name, rule in entries()}
    for namespace, name, rule in (rules | _registered).values():
        _wrap(namespace, name, rule)
    _wrap_checkpointing()


def _take_off() -> None:
    while _installed:
        namespace, name, before, wrapper = _installed.pop()
        if vars(namespace).get(name) is not wrapper:
            continue  # replaced by somebody else meanwhile: theirs to put back
        delattr(namespace, name) if before is _MISSING else setattr(namespace, name, before)


def _wrap(namespace: Any, name: str, rule: str) -> None:
    before = vars(namespace).get(name, _MISSING)
    original = getattr(namespace, name)
    if isinstance(namespace, type):
        static = inspect.getattr_static(namespace, name)  # own or inherited; getattr binds a class method
        original = static if isinstance(static, staticmethod | classmethod) else original
    known = _wrappers.get((id(namespace), name, rule))
    if known is None or known[0] is not original:
        bound = isinstance(original, staticmethod | classmethod)
        wrapper = type(original)(RULES[rule](original.__func__)) if bound else RULES[rule](original)
        known = _wrappers[id(namespace), name, rule] = (original, wrapper)
    _install_one(namespace, name, before, known[1])


def _install_one(namespace: Any, name: str, before: Any, wrapper: Any) -> None:
    _installed.append((namespace, name, before, wrapper))
    setattr(namespace, name, wrapper)


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
