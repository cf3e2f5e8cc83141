"""Activation of the O1 casts: functions are wrapped in place and restored afterwards.

A function mode would not work: it is inactive inside `backward`, where activation checkpointing runs the
forward again, and it costs more (see docs). The wrappers are installed while any thread needs them. They do
nothing in threads that are not inside a context.
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
# The module where pickle finds PyTorch's functions while the wrappers are installed.
ORIGINALS = f"{__package__}.originals"
_lock = threading.RLock()  # guards all variables below, which threads share
_users = 0
_registered: list[tuple[Any, str, str]] = []  # the user's functions: namespace, name, rule
_installed: list[tuple[Any, str, Any]] = []  # namespace, name, entry of its dict before


@contextmanager
def casts(
    *, device_type: str | None = None, allow_banned: bool | None = None, half: torch.dtype | None = None
) -> Iterator[None]:
    """Return the context in which O1's casts are active in this thread.

    Inside another such context, or with casts active everywhere, it changes only the given settings.

    Args:
        device_type: The device type of the tensors that are cast; by default cuda if there is a GPU.
        allow_banned: Whether banned functions run in fp32 rather than raise.
        half: The 16-bit dtype: torch.float16 as in apex (the default), or torch.bfloat16.
    """
    is_outermost = not vars(STATE).get("on")  # also if casts are active everywhere
    if device_type is None and not STATE.on:
        device_type = get_default_device_type()
    settings = {"device_type": device_type, "allow_banned": allow_banned, "half": half}
    if is_outermost:
        STATE.copies.clear()  # an edit of `.data` does not change a weight's version
    try:
        with (
            install_wrappers(),
            _override_state(on=True, **{k: v for k, v in settings.items() if v is not None}),
        ):
            yield
    finally:
        if is_outermost:
            STATE.copies.clear()


def disable_casts() -> AbstractContextManager[None]:
    """Return the context in which no casts are active in this thread."""
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
    """Return "cuda" if there is a GPU, otherwise "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def install_wrappers() -> Iterator[None]:
    """Return a context that keeps the wrappers installed, so that `casts` inside costs nothing."""
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
    """Add a user's function to the lists, or change the rule of a listed one.

    Args:
        namespace: The module or class that has the function.
        name: The name of the function.
        rule: The name of a rule in RULES.

    Raises:
        ValueError: There is no such function.
    """
    if not hasattr(namespace, name):
        where = getattr(namespace, "__name__", repr(namespace))
        raise ValueError(f"No function named {name} in module {where}.")
    with _lock:
        _unwrap_functions()
        _registered.append((namespace, name, rule))
        _wrap_functions()


def clear_registered() -> None:
    """Remove the user's functions from the lists."""
    with _lock:
        _unwrap_functions()
        _registered.clear()
        _wrap_functions()


def _wrap_functions() -> None:
    if not _users:
        return
    # A later entry for a function overrides an earlier one.
    listed = {(id(entry[0]), entry[1]): entry for entry in (*list_entries(), *_registered)}
    for namespace, name, rule in listed.values():
        attribute = inspect.getattr_static(namespace, name, None)  # here or in a base class
        # `getattr` would bind a class method; a function under `carry_casts` gets the forward first.
        if isinstance(attribute, staticmethod | classmethod) and rule != "carry_casts":
            wrapper: Any = type(attribute)(RULES[rule](attribute.__func__))
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
    """Return a function of `torch.nn.functional` without O1's casts.

    Raises:
        AttributeError: There is no such function.
    """
    for namespace, installed_name, own in _installed:
        if namespace is F and installed_name == name:
            return own
    return getattr(F, name)


def carry_casts(function: Function) -> Function:
    """Wrap a function of activation checkpointing, so that the forward always has the same casts.

    The function's first argument is the forward. It runs again inside `backward`, perhaps in another thread.
    """

    @functools.wraps(function)
    def wrapper(forward: Function, *args: Any, **kwargs: Any) -> Any:
        on, half, device_type, allow = STATE.on, STATE.half, STATE.device_type, STATE.allow_banned

        def run(*args: Any, **kwargs: Any) -> Any:
            with casts(half=half, device_type=device_type, allow_banned=allow) if on else disable_casts():
                return forward(*args, **kwargs)

        return function(run, *args, **kwargs)

    return wrapper


RULES = cast_wrappers.RULES | {"carry_casts": carry_casts}
