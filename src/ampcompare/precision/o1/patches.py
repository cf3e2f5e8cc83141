"""Activation of the O1 casts: functions are wrapped in place and restored afterwards.

A function mode would not work: it is inactive inside `backward`, where activation checkpointing runs the
forward again, and it costs more (see docs). The wrappers are installed while any thread needs them. They do
nothing in threads that are not inside a context.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.precision.o1 import cast_wrappers
from ampcompare.precision.o1.cast_cache import STATE
from ampcompare.precision.o1.cast_lists import list_entries
from ampcompare.precision.o1.cast_wrappers import Function

_MISSING = object()
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
    given = {name: value for name, value in settings.items() if value is not None}
    if is_outermost:
        STATE.copies.clear()  # an edit of `.data` does not change a weight's version
    try:
        with install_wrappers(), _override_state(on=True, **given):
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
        rule: A key of RULES.

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


def list_registered_functions() -> frozenset[tuple[Any, str, str]]:
    """Return the user's functions: namespace, name, rule."""
    return frozenset(_registered)


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


def _unwrap_functions() -> None:
    while _installed:
        namespace, name, own = _installed.pop()
        if own is _MISSING:
            delattr(namespace, name)
        else:
            setattr(namespace, name, own)


def carry_casts(function: Function) -> Function:
    """Wrap a function of activation checkpointing, so that the forward always has the same casts.

    The function's first argument is the forward. It runs again inside `backward`, perhaps in another thread.
    """

    @functools.wraps(function)
    def wrapper(forward: Function, *args: Any, **kwargs: Any) -> Any:
        return function(_with_current_casts(forward), *args, **kwargs)

    return wrapper


def _with_current_casts(function: Function) -> Function:
    """Return the function so that it runs under the casts of now, whenever and in whatever thread it runs."""
    make_context = _capture_casts()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with make_context():
            return function(*args, **kwargs)

    return run


def _capture_casts() -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes the context of the casts of now."""
    if not STATE.on:
        return disable_casts
    return functools.partial(
        casts, half=STATE.half, device_type=STATE.device_type, allow_banned=STATE.allow_banned
    )


def remember_casts(function: Function) -> Function:
    """Wrap the constructor of a custom function's node, which then remembers the casts of the forward.

    apex's functions were replaced in the backward, too. So a custom function's `backward` may multiply a
    16-bit gradient by an fp32 weight.
    """

    @functools.wraps(function)
    def wrapper(node: Any, *args: Any, **kwargs: Any) -> None:
        function(node, *args, **kwargs)
        node.make_o1_context = _capture_casts()

    return wrapper


def restore_casts(function: Function) -> Function:
    """Wrap the method of an autograd node that runs a custom `backward`, with the casts of its forward.

    Autograd may run it in a thread of its own, where no casts are active.
    """

    @functools.wraps(function)
    def wrapper(node: Any, *args: Any, **kwargs: Any) -> Any:
        make_context = getattr(node, "make_o1_context", nullcontext)  # not if made before the installation
        with make_context():
            return function(node, *args, **kwargs)

    return wrapper


def carry_casts_to_hooks(function: Function) -> Function:
    """Wrap a function that registers hooks of the backward, so that these run under the casts of now.

    Its arguments after the first are hooks, lists of hooks, or anything else. What a hook returns gets the
    dtypes of the gradients that it was given, since autograd refuses other dtypes.
    """

    def carry(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [carry(item) for item in value]
        if not callable(value) or isinstance(value, nn.Module):
            return value
        hook = _with_current_casts(value)

        @functools.wraps(value)
        def run(*args: Any) -> Any:
            gradients = args[1] if isinstance(args[0], nn.Module) else args[0]
            return _match_dtypes(hook(*args), gradients)

        return run

    @functools.wraps(function)
    def wrapper(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not STATE.on:
            return function(owner, *args, **kwargs)
        args = tuple(carry(value) for value in args)
        kwargs = {name: carry(value) for name, value in kwargs.items()}
        return function(owner, *args, **kwargs)

    return wrapper


def _match_dtypes(result: Any, gradients: Any) -> Any:
    """Return the result of a hook with the dtypes of the gradients: a tensor, a tuple, or None."""
    if isinstance(result, Tensor) and isinstance(gradients, Tensor):
        return result.to(gradients.dtype)
    if isinstance(result, tuple) and isinstance(gradients, tuple) and len(result) == len(gradients):
        return tuple(map(_match_dtypes, result, gradients))
    return result


RULES = cast_wrappers.RULES | {
    rule.__name__: rule for rule in (carry_casts, remember_casts, restore_casts, carry_casts_to_hooks)
}
