"""The O1 rules: for each a wrapper around one function, inert while casts are off.

A wrapper reads one flag when off. When on it touches only floating tensors of the target device (also inside
lists and tuples whose elements all are floating tensors), returns those of the right type as they are, and
never changes the caller's arguments. `out=` is where the result goes, not what goes in: it is left alone.
Half is the type of the context in force: fp16, as in apex, or bf16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

from ampcompare.precision.apex.state import STATE

Function = Callable[..., Any]
Cast = Callable[[Tensor], Tensor]
FLOAT = torch.float32
SEQUENCES = (list, tuple)
NESTED = (Tensor, list, tuple)


def _castable(x: Any) -> bool:
    """Whether x is a floating tensor, or a list or tuple of nothing else (nested ones too)."""
    if isinstance(x, Tensor):
        return x.dtype.is_floating_point
    return isinstance(x, list | tuple) and all(_castable(y) for y in x)


def _map(cast: Cast, x: Any) -> Any:
    """Cast a castable argument, list and tuple types kept; anything else as it is."""
    if isinstance(x, Tensor):
        return cast(x)
    # The look at the first element spares a convolution's stride and padding the walk through `_castable`.
    if isinstance(x, SEQUENCES) and x and isinstance(x[0], NESTED) and _castable(x):
        items = [_map(cast, y) for y in x]
        if all(new is old for new, old in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def _arguments(cast: Cast, args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[list, dict]:
    new_args = [
        cast(x) if isinstance(x, Tensor) else _map(cast, x) if isinstance(x, SEQUENCES) else x for x in args
    ]
    if kwargs:
        kwargs = {k: v if k == "out" else _map(cast, v) for k, v in kwargs.items()}
    return new_args, kwargs


def to_half(x: Tensor) -> Tensor:
    """x in the half type; the cached copy of an fp32 parameter."""
    dtype, half = x.dtype, STATE.half
    if dtype is half or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    if dtype is FLOAT and isinstance(x, Parameter):
        return STATE.cache.half(x, half)
    return x.to(half)


def to_float(x: Tensor) -> Tensor:
    """x in fp32; fp64 goes down too."""
    dtype = x.dtype
    if dtype is FLOAT or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    return x.to(FLOAT)


def _cast_all(cast: Cast, function: Function) -> Function:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            args, kwargs = _arguments(cast, args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return wrapper


def half(function: Function) -> Function:
    """Run in the half type."""
    return _cast_all(to_half, function)


def float_(function: Function) -> Function:
    """Run in fp32."""
    return _cast_all(to_float, function)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _types(x: Any, found: set[torch.dtype]) -> bool:
    """Collect the floating types in x; whether any of its floating tensors is on the target device."""
    if isinstance(x, Tensor):
        if not x.dtype.is_floating_point:
            return False
        found.add(x.dtype)
        return x.device.type == STATE.device_type
    if isinstance(x, list | tuple) and _castable(x):
        return sum(_types(y, found) for y in x) > 0  # a sum, since every element must be looked at
    return False


def promote(function: Function) -> Function:
    """Run in the widest of the arguments' types: {half, float} is float, any other mix raises.

    Types count, not dimensions: a 0-d fp32 tensor promotes.
    """
    name = getattr(function, "__name__", str(function))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            found: set[torch.dtype] = set()
            ours = False
            for x in args:
                ours |= _types(x, found)
            for key, x in kwargs.items():
                ours |= key != "out" and _types(x, found)
            if len(found) > 1 and ours:
                if found != {STATE.half, FLOAT}:
                    names = ", ".join(sorted(map(_name, found)))
                    raise NotImplementedError(
                        f"apex O1 does not know how to promote {{{names}}} in {name}: only a mix of "
                        f"{_name(STATE.half)} and float32 is defined; cast one of the arguments yourself"
                    )
                args, kwargs = _arguments(to_float, args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return wrapper


def sequence(function: Function) -> Function:
    """Like promote for the sequence that comes first (torch.cat, torch.stack); else PyTorch is to judge."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            tensors = args[0] if args else kwargs.get("tensors")
            if _mixes_half_and_float(tensors):
                cast = [to_float(x) for x in tensors]
                if args:
                    args = (cast, *args[1:])
                else:
                    kwargs = {**kwargs, "tensors": cast}
        return function(*args, **kwargs)

    return wrapper


def _mixes_half_and_float(tensors: Any) -> TypeGuard[list[Tensor] | tuple[Tensor, ...]]:
    if not isinstance(tensors, list | tuple) or not all(isinstance(x, Tensor) for x in tensors):
        return False
    return {x.dtype for x in tensors if x.dtype.is_floating_point} == {STATE.half, FLOAT}


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor that is changed in place, if it is ours: the first argument, or the one called `input`."""
    target = args[0] if args else kwargs.get("input")
    if not isinstance(target, Tensor) or target.device.type != STATE.device_type:
        return None
    return target if target.dtype.is_floating_point else None


def _others(cast: Cast, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list, dict]:
    """Cast all arguments but the target."""
    new_args, new_kwargs = _arguments(cast, args[1:], kwargs)
    return ([args[0], *new_args], new_kwargs) if args else ([], {**new_kwargs, "input": kwargs["input"]})


def match(function: Function) -> Function:
    """Run in the type of the tensor that is changed in place: the other arguments follow it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on and (target := _target(args, kwargs)) is not None:
            dtype = target.dtype
            known = to_half if dtype is STATE.half else to_float if dtype is FLOAT else None
            cast = known or functools.partial(_to, dtype)
            args, kwargs = _others(cast, args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return wrapper


def _to(dtype: torch.dtype, x: Tensor) -> Tensor:
    ours = x.dtype.is_floating_point and x.device.type == STATE.device_type
    return x.to(dtype) if ours else x


def refuse(function: Function) -> Function:
    """Refuse to change a half tensor in place: the result is fp32 and does not fit into it."""
    name = getattr(function, "__name__", str(function))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on and (target := _target(args, kwargs)) is not None:
            if target.dtype is STATE.half:
                raise NotImplementedError(
                    f"apex O1 runs {name.rstrip('_')} in float32, so {name} cannot write into a "
                    f"{_name(target.dtype)} tensor; use {name.rstrip('_')}, or call .float() first"
                )
            args, kwargs = _others(to_float, args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return wrapper


def banned(function: Function) -> Function:
    """Refuse half arguments, unless banned functions are allowed: then run in fp32."""
    name = getattr(function, "__name__", str(function))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            if STATE.allow_banned:
                args, kwargs = _arguments(to_float, args, kwargs)  # type: ignore[assignment]
            elif any(_has_half(x) for x in (*args, *kwargs.values())):
                raise NotImplementedError(
                    f"apex O1 does not run {name} on {_name(STATE.half)}: the log of a sigmoid output "
                    "underflows there. Drop the sigmoid and use "
                    "torch.nn.functional.binary_cross_entropy_with_logits (BCEWithLogitsLoss), "
                    "or pass allow_banned=True to run it in float32"
                )
        return function(*args, **kwargs)

    return wrapper


def _has_half(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.dtype is STATE.half and x.device.type == STATE.device_type
    return isinstance(x, list | tuple) and any(_has_half(y) for y in x)


RULES: dict[str, Callable[[Function], Function]] = {
    rule.__name__.rstrip("_"): rule for rule in (half, float_, promote, sequence, match, refuse, banned)
}
