"""Somebody else's function, called with arguments that the user named: `model.kwargs.width=64`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from ampcompare.errors import UserError, did_you_mean

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def call(
    function: Callable[..., Any], given: Mapping[str, Any], *, key: str, name: str, ours: Mapping[str, Any]
) -> Any:
    """What the function returns for the user's arguments, which `key` (`model.kwargs`) gives to `name`.

    `ours` are arguments that it gets where its signature takes them, by name or as `**kwargs`, and the user
    does not set them. Raises UserError for an argument that its signature does not take, or lacks; what the
    function raises goes on.
    """
    signature = signature_of(function)
    arguments = {**{k: v for k, v in ours.items() if takes(signature, k)}, **given}
    named = [p for p in signature.parameters.values() if p.kind in NAMED]
    for unknown in (argument for argument in given if not takes(signature, argument)):
        known = [p.name for p in named]
        near = did_you_mean(unknown, known)
        what = f"it takes {', '.join(known)}" if known else "it takes none"
        raise UserError(f"{key}.{unknown}: {name} has no such argument; {what}{near and f'; {near}'}")
    for missing in (p.name for p in named if p.default is p.empty and p.name not in arguments):
        at = f"{key}.{missing}"
        raise UserError(f"{at}: missing, {name} cannot be called without it; set {at}=...")
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
