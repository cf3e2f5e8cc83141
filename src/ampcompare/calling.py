"""Somebody else's function, called with arguments that the user named: `model.kwargs.width=64`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from ampcompare.errors import UserError


def call(
    function: Callable[..., Any], given: Mapping[str, Any], *, key: str, name: str, ours: Mapping[str, Any]
) -> Any:
    """What the function returns for the user's arguments, which `key` (`model.kwargs`) gives to `name`.

    `ours` are arguments that it gets where its signature takes them, by name or as `**kwargs`, and the user
    does not set them. Raises UserError for an argument that its signature does not take, or lacks; what the
    function raises goes on.
    """
    signature = signature_of(function)
    arguments = {k: v for k, v in ours.items() if takes(signature, k)} | dict(given)
    try:
        signature.bind(**arguments)
    except TypeError as problem:
        raise UserError(f"{key}: {name}{signature} {problem}") from None
    return function(**arguments)


def signature_of(function: Callable[..., Any]) -> Signature:
    """Its signature; where it has none that can be read (some in C), one that takes anything."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return Signature([Parameter("anything", Parameter.VAR_KEYWORD)])


def takes(signature: Signature, name: str) -> bool:
    """Whether an argument may be given by this name."""
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True
