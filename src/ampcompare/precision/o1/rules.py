"""The O1 rules: for each a wrapper around one function, inert while casts are off.

A wrapper reads one flag when off. When on it touches only floating tensors of the target device (also inside
lists and tuples whose elements all are floating tensors), returns those of the right type as they are, and
never changes the caller's arguments. `out=` is where the result goes, not what goes in: it is left alone.
Half is the type of the context in force: fp16, as in apex, or bf16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ampcompare.precision.o1.weights import STATE, flat_copies, half_weight

Function = Callable[..., Any]
Cast = Callable[[Tensor], Tensor]
Args = Sequence[Any]
Kwargs = dict[str, Any]
Arguments = tuple[Args, Kwargs]
Change = Callable[[str, Args, Kwargs], Arguments]
FLOAT = torch.float32
SEQUENCES = (list, tuple)
NESTED = (Tensor, list, tuple)


def _castable(x: Any) -> bool:
    """Whether x is a floating tensor, or a list or tuple of nothing else (nested ones too)."""
    if isinstance(x, Tensor):
        return x.dtype.is_floating_point
    return isinstance(x, list | tuple) and all(_castable(y) for y in x)


def _floating(values: Iterable[Any]) -> Iterator[Tensor]:
    """The floating tensors that a cast of these values would look at."""
    for x in values:
        if isinstance(x, Tensor):
            if x.dtype.is_floating_point:
                yield x
        elif isinstance(x, SEQUENCES) and _castable(x):
            yield from _floating(x)


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


def _arguments(cast: Cast, args: Args, kwargs: Kwargs) -> Arguments:
    new_args = [
        cast(x) if isinstance(x, Tensor) else _map(cast, x) if isinstance(x, SEQUENCES) else x for x in args
    ]
    if kwargs:
        kwargs = {k: v if k == "out" else _map(cast, v) for k, v in kwargs.items()}
    return new_args, kwargs


def _is_ours(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.is_floating_point and x.device.type == STATE.device_type


def to_half(x: Tensor) -> Tensor:
    """x in the half type; the cached copy of an fp32 parameter."""
    dtype, half = x.dtype, STATE.half
    if dtype is half or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    if dtype is FLOAT and isinstance(x, Parameter):
        return half_weight(x)
    return x.to(half)


def to_float(x: Tensor) -> Tensor:
    """x in fp32; fp64 goes down too."""
    dtype = x.dtype
    if dtype is FLOAT or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    return x.to(FLOAT)


def rule(change: Change) -> Callable[[Function], Function]:
    """A rule by what it makes of the arguments of a function while casts are on."""

    def wrap(function: Function) -> Function:
        name = getattr(function, "__name__", str(function))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if STATE.on:
                args, kwargs = change(name, args, kwargs)  # type: ignore[assignment]
            return function(*args, **kwargs)

        return wrapper

    return wrap


@rule
def half(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the half type."""
    return _arguments(to_half, args, kwargs)


@rule
def float_(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in fp32."""
    return _arguments(to_float, args, kwargs)


@rule
def promote(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the widest of the arguments' types: {half, float} is float, any other mix raises.

    Types count, not dimensions: a 0-d fp32 tensor promotes.
    """
    given = list(_floating([*args, *(x for key, x in kwargs.items() if key != "out")]))
    found = {x.dtype for x in given}
    if len(found) < 2 or not any(map(_is_ours, given)):
        return args, kwargs
    if found != {STATE.half, FLOAT}:
        names = ", ".join(sorted(map(_name, found)))
        raise NotImplementedError(
            f"apex O1 does not know how to promote {{{names}}} in {name}: only a mix of "
            f"{_name(STATE.half)} and float32 is defined; cast one of the arguments yourself"
        )
    return _arguments(to_float, args, kwargs)


@rule
def match(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the type of the tensor that is changed in place: the other arguments follow it."""
    target: Any = args[0] if args else kwargs.get("input")
    return _others(target.dtype, args, kwargs) if _is_ours(target) else (args, kwargs)


@rule
def refuse(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Refuse to change a half tensor in place: the result is fp32 and does not fit into it."""
    target: Any = args[0] if args else kwargs.get("input")
    if not _is_ours(target):
        return args, kwargs
    if target.dtype is STATE.half:
        instead = name.rstrip("_")
        raise NotImplementedError(
            f"apex O1 runs {instead} in float32, so {name} cannot write into a {_name(target.dtype)} tensor; "
            f"use {instead}, or call .float() first"
        )
    return _others(FLOAT, args, kwargs)


def _others(dtype: torch.dtype, args: Args, kwargs: Kwargs) -> Arguments:
    """Cast all arguments but the target: the first, or the one called `input`."""

    def cast(x: Tensor) -> Tensor:
        if dtype is STATE.half:
            return to_half(x)
        return x.to(dtype) if _is_ours(x) else x

    new_args, new_kwargs = _arguments(cast, args[1:], kwargs)
    return ([args[0], *new_args], new_kwargs) if args else ([], {**new_kwargs, "input": kwargs["input"]})


@rule
def banned(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Refuse half arguments, unless banned functions are allowed: then run in fp32."""
    if STATE.allow_banned:
        return _arguments(to_float, args, kwargs)
    if any(x.dtype is STATE.half and _is_ours(x) for x in _floating((*args, *kwargs.values()))):
        raise NotImplementedError(
            f"apex O1 does not run {name} on {_name(STATE.half)}: the log of a sigmoid output underflows "
            "there. Drop the sigmoid and use torch.nn.functional.binary_cross_entropy_with_logits "
            "(BCEWithLogitsLoss), or pass allow_banned=True to run it in float32"
        )
    return args, kwargs


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# What PyTorch runs in one function where apex saw its parts.


@rule
def attention(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in half what adds a mask to products: attention in one function, and `baddbmm`, by which
    MultiheadAttention does it where the weights are asked for.

    apex added an fp32 mask to the products in fp32, so that a large negative number was no infinity, of which
    a row full makes NaN: here it stays within half of half's range.
    """
    place = 0 if name == "baddbmm" else 3
    args = [_bounded(x) if index == place else x for index, x in enumerate(args)]
    return _arguments(to_half, args, {k: _bounded(v) if k == "attn_mask" else v for k, v in kwargs.items()})


def _bounded(mask: Any) -> Any:
    """A floating mask of a wider type, no number below what half can hold a sum with; -inf stays."""
    if not _is_ours(mask) or mask.dtype is STATE.half:
        return mask
    return torch.where(mask.isinf(), mask, mask.clamp(min=torch.finfo(STATE.half).min / 2))


def slow(function: Function) -> Function:
    """Whether attention may be evaluated by one fused function: not under the casts, which it does not know.

    PyTorch decides likewise under autocast.
    """
    return functools.wraps(function)(lambda: not STATE.on and function())


@rule
def recurrent(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in half, the copies of the weights (the one list among the arguments) in one buffer.

    Source: `apex/amp/{rnn_compat,wrap}.py` at the last commit that had them.
    """
    return _arguments(to_half, [flat_copies(x) if isinstance(x, list) else x for x in args], kwargs)


@rule
def recurrent_input(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """`RNNBase.check_input` for input of another type than the weights: the casts make them one type."""
    network, x, *others = args
    if _is_ours(x):  # its shape is what is left to be checked
        x = torch.empty_like(x, dtype=network._flat_weights[0].dtype, device="meta")
    return (network, x, *others), kwargs


RULES: dict[str, Callable[[Function], Function]] = {
    "half": half,
    "float": float_,
    "promote": promote,
    "match": match,
    "refuse": refuse,
    "banned": banned,
    "attention": attention,
    "slow": slow,
    "recurrent": recurrent,
    "recurrent_input": recurrent_input,
}
