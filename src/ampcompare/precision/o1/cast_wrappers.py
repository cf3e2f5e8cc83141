"""The O1 rules: for each a wrapper around one function, which reads one flag while casts are off.

When on it touches only floating tensors of the target device (also inside lists and tuples of nothing else)
and never changes the caller's arguments. `out=` is where the result goes, not what goes in: it is left alone.
Half is the type of the context in force: fp16, as in apex, or bf16.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ampcompare.precision.o1.cast_cache import STATE, cast_weight, copy_to_flat_buffer

Function = Callable[..., Any]
Cast = Callable[[Tensor], Tensor]
Args = Sequence[Any]
Kwargs = dict[str, Any]
Arguments = tuple[Args, Kwargs]
FLOAT = torch.float32
SEQUENCES = (list, tuple)


def _list_floating(x: Any) -> list[Tensor]:
    """The floating tensors that a cast of x looks at: x, or all in a list or tuple of nothing else."""
    if isinstance(x, Tensor):
        return [x] if x.dtype.is_floating_point else []
    found: list[Tensor] = []
    if isinstance(x, SEQUENCES):
        for item in x:
            if not (inner := _list_floating(item)):
                return []
            found += inner
    return found


def _list_arguments(args: Args, kwargs: Kwargs) -> list[Tensor]:
    values = (*args, *(x for key, x in kwargs.items() if key != "out"))
    return [tensor for x in values for tensor in _list_floating(x)]


def _cast_nested(cast: Cast, x: Any) -> Any:
    """Cast what is to be cast, list and tuple types kept; anything else as it is."""
    if isinstance(x, Tensor):
        return cast(x)
    if not _list_floating(x):
        return x
    items = [_cast_nested(cast, y) for y in x]
    if all(new is old for new, old in zip(items, x, strict=True)):
        return x
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


def _cast_arguments(cast: Cast, args: Args, kwargs: Kwargs) -> Arguments:
    # Most are tensors or numbers: those are not worth a call.
    new_args = [
        cast(x) if isinstance(x, Tensor) else _cast_nested(cast, x) if isinstance(x, SEQUENCES) else x
        for x in args
    ]
    if kwargs:
        kwargs = {k: v if k == "out" else _cast_nested(cast, v) for k, v in kwargs.items()}
    return new_args, kwargs


def _is_cast_target(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.is_floating_point and x.device.type == STATE.device_type


def to_half(x: Tensor) -> Tensor:
    """x in the half type; the cached copy of an fp32 parameter."""
    dtype, half = x.dtype, STATE.half
    if dtype is half or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    if dtype is FLOAT and isinstance(x, Parameter):
        return cast_weight(x)
    return x.to(half)


def to_float(x: Tensor) -> Tensor:
    """x in fp32; fp64 goes down too."""
    dtype = x.dtype
    if dtype is FLOAT or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    return x.to(FLOAT)


def make_rule(change: Callable[[str, Args, Kwargs], Arguments]) -> Callable[[Function], Function]:
    """A rule by what it makes of the arguments of a function, of such a name, while casts are on."""

    @functools.wraps(change)
    def wrap(function: Function) -> Function:
        name = getattr(function, "__name__", str(function))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if STATE.on:
                args, kwargs = change(name, args, kwargs)  # type: ignore[assignment]
            return function(*args, **kwargs)

        return wrapper

    return wrap


@make_rule
def half(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the half type."""
    return _cast_arguments(to_half, args, kwargs)


@make_rule
def float_(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in fp32."""
    return _cast_arguments(to_float, args, kwargs)


@make_rule
def promote(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the widest of the arguments' types: {half, float} is float, any other mix raises.

    Types count, not dimensions: a 0-d fp32 tensor promotes.
    """
    given = _list_arguments(args, kwargs)
    found = {x.dtype for x in given}
    if len(found) < 2 or not any(map(_is_cast_target, given)):
        return args, kwargs
    if found != {STATE.half, FLOAT}:
        what = (
            f"apex O1 does not know how to promote {{{', '.join(sorted(map(_name_dtype, found)))}}} in {name}"
        )
        why = f"only a mix of {_name_dtype(STATE.half)} and float32 is defined"
        raise NotImplementedError(f"{what}: {why}; cast one of the arguments yourself")
    return _cast_arguments(to_float, args, kwargs)


@make_rule
def match(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the type of the tensor that is changed in place: the other arguments follow it."""
    args, kwargs = _target_first(args, kwargs)
    return _cast_others(args[0].dtype, args, kwargs) if _is_cast_target(args[0]) else (args, kwargs)


@make_rule
def refuse(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Refuse to change a half tensor in place: the result is fp32 and does not fit into it."""
    args, kwargs = _target_first(args, kwargs)
    if not _is_cast_target(args[0]):
        return args, kwargs
    if args[0].dtype is STATE.half:
        instead = name.rstrip("_")
        why = f"{name} cannot write into a {_name_dtype(STATE.half)} tensor"
        todo = f"use {instead}, or call .float() first"
        raise NotImplementedError(f"apex O1 runs {instead} in float32, so {why}; {todo}")
    return _cast_others(FLOAT, args, kwargs)


def _target_first(args: Args, kwargs: Kwargs) -> Arguments:
    """The arguments of a function in place, its target the first, also where it was given as `input`."""
    return (args, kwargs) if args else ((kwargs["input"],), {k: v for k, v in kwargs.items() if k != "input"})


def _cast_others(dtype: torch.dtype, args: Args, kwargs: Kwargs) -> Arguments:
    others, kwargs = _cast_arguments(lambda x: x.to(dtype) if _is_cast_target(x) else x, args[1:], kwargs)
    return [args[0], *others], kwargs


@make_rule
def banned(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Refuse half arguments, unless banned functions are allowed: then run in fp32."""
    if STATE.allow_banned:
        return _cast_arguments(to_float, args, kwargs)
    if any(x.dtype is STATE.half and _is_cast_target(x) for x in _list_arguments(args, kwargs)):
        what = f"apex O1 does not run {name} on {_name_dtype(STATE.half)}"
        why = "the log of a sigmoid output underflows there. Drop the sigmoid and use"
        use = "torch.nn.functional.binary_cross_entropy_with_logits (BCEWithLogitsLoss)"
        raise NotImplementedError(f"{what}: {why} {use}, or pass allow_banned=True to run it in float32")
    return args, kwargs


def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@make_rule
def attention(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in half what adds a mask to products: attention in one function, and `baddbmm`, by which
    MultiheadAttention does it where the weights are asked for.

    apex added an fp32 mask to the products in fp32, so that a large negative number was no infinity, of which
    a row full makes NaN: here it stays within half of half's range; -inf stays.
    """

    def bounded(mask: Any) -> Any:
        if not _is_cast_target(mask) or mask.dtype is STATE.half:
            return mask
        least = max(torch.finfo(dtype).min for dtype in (mask.dtype, STATE.half)) / 2
        return torch.where(mask.isinf(), mask, mask.clamp(min=least))

    place = 0 if name == "baddbmm" else 3
    args = [bounded(x) if index == place else x for index, x in enumerate(args)]
    return _cast_arguments(
        to_half, args, {k: bounded(v) if k == "attn_mask" else v for k, v in kwargs.items()}
    )


def slow(function: Function) -> Function:
    """Whether attention may be evaluated by one fused function: not under the casts, which it does not know.

    PyTorch decides likewise under autocast.
    """
    return functools.wraps(function)(lambda: not STATE.on and function())


@make_rule
def recurrent(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in half, the copies of the weights (the one list among the arguments) in one buffer.

    Source: `apex/amp/{rnn_compat,wrap}.py` at the last commit that had them.
    """
    return _cast_arguments(
        to_half, [copy_to_flat_buffer(x) if isinstance(x, list) else x for x in args], kwargs
    )


@make_rule
def recurrent_input(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """`RNNBase.check_input` for input of another type than the weights: the casts make them one type."""
    network, x, *others = args
    if _is_cast_target(x):  # its shape is what is left to be checked
        x = torch.empty_like(x, dtype=network._flat_weights[0].dtype, device="meta")
    return (network, x, *others), kwargs


_RULE_FUNCTIONS = (half, float_, promote, match, refuse, banned, attention, slow, recurrent, recurrent_input)
RULES: dict[str, Callable[[Function], Function]] = {f.__name__.rstrip("_"): f for f in _RULE_FUNCTIONS}
