"""Putting the O1 casts in force and taking them away without a trace.

Functions are wrapped in place (a function mode would be popped inside `backward`, where activation
checkpointing runs the forward again, and costs more: see docs). The wrappers are installed while anybody
needs them and inert in every thread that is not inside a context.
"""

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from ampcompare.precision.o1 import cast_wrappers
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.cast_lists import list_entries
from ampcompare.precision.o1.cast_wrappers import Function

_MISSING = object()
# Where pickle finds PyTorch's functions while the wrappers stand in their places.
ORIGINALS = f"{__package__}.originals"
_lock = threading.RLock()  # of all below, which is the process's: threads open contexts of their own
_users = 0
_registered: list[tuple[Any, str, str]] = []  # by the user: namespace, name, rule
_installed: list[tuple[Any, str, Any]] = []  # namespace, name, what its own dict held before


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
    if device_type is None and not STATE.on:
        device_type = get_default_device_type()
    asked = {"device_type": device_type, "allow_banned": allow_banned, "half": half}
    if is_outermost:
        STATE.copies.clear()  # weights may have been edited since in ways that leave no version (`.data`)
    try:
        with (
            install_wrappers(),
            _override_state(on=True, **{k: v for k, v in asked.items() if v is not None}),
        ):
            yield
    finally:
        if is_outermost:
            STATE.copies.clear()


def disable_casts() -> AbstractContextManager[None]:
    """The context in which no casts are in force, in this thread."""
    return _override_state(on=False)


@contextmanager
def _override_state(**context: Any) -> Iterator[None]:
    own = vars(STATE)
    before = dict(own)
    own.update(context)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


def get_default_device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def install_wrappers() -> Iterator[None]:
    """Keep every listed function wrapped, inert, so that contexts inside open at no cost."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _wrap_functions()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _unwrap_functions()


def register(namespace: Any, name: str, rule: str) -> None:
    """Add a function of the user's to the lists, or move one that is listed. Raises ValueError for none."""
    if not hasattr(namespace, name):
        where = getattr(namespace, "__name__", repr(namespace))
        raise ValueError(f"No function named {name} in module {where}.")
    with _lock:
        _unwrap_functions()
        _registered.append((namespace, name, rule))
        _wrap_functions()


def clear_registered() -> None:
    """Drop the user's additions."""
    with _lock:
        _unwrap_functions()
        _registered.clear()
        _wrap_functions()


def _wrap_functions() -> None:
    if not _users:
        return
    listed = {(id(entry[0]), entry[1]): entry for entry in (*list_entries(), *_registered)}  # the last counts
    for namespace, name, rule in listed.values():
        written = inspect.getattr_static(namespace, name, None)  # here or in a base class
        # `getattr` would bind a class method; what `again` wraps takes the forward first, so no class.
        if isinstance(written, staticmethod | classmethod) and rule != "again":
            wrapper: Any = type(written)(RULES[rule](written.__func__))
        else:
            wrapper = RULES[rule](getattr(namespace, name))
        own = vars(namespace).get(name, _MISSING)
        _installed.append((namespace, name, own))
        setattr(namespace, name, wrapper)
        if isinstance(own, FunctionType) and own.__module__ == F.__name__:
            own.__module__ = ORIGINALS


def _unwrap_functions() -> None:
    while _installed:
        namespace, name, own = _installed.pop()
        delattr(namespace, name) if own is _MISSING else setattr(namespace, name, own)
        if isinstance(own, FunctionType) and own.__module__ == ORIGINALS:
            own.__module__ = F.__name__


def find_original(name: str) -> Any:
    """Return the function `name` of `torch.nn.functional` without O1's casts. Raises AttributeError."""
    for namespace, installed_name, own in _installed:
        if namespace is F and installed_name == name:
            return own
    return getattr(F, name)


def again(function: Function) -> Function:
    """Have a forward that is run again inside `backward`, in whichever thread, do so under its first casts.

    It is what activation checkpointing's functions take first.
    """

    @functools.wraps(function)
    def wrapper(forward: Function, *args: Any, **kwargs: Any) -> Any:
        on, half, device_type, allow = STATE.on, STATE.half, STATE.device_type, STATE.allow_banned

        def run(*args: Any, **kwargs: Any) -> Any:
            with casts(half=half, device_type=device_type, allow_banned=allow) if on else disable_casts():
                return forward(*args, **kwargs)

        return function(run, *args, **kwargs)

    return wrapper


RULES = cast_wrappers.RULES | {"again": again}
