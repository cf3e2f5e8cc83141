"""The O1 rules: each makes a wrapper around a function that casts the function's arguments.

While casts are off, a wrapper only reads a flag. While casts are on, it casts floating-point tensors of the
target device, also inside lists and tuples that have nothing else. It never changes the caller's arguments,
and it does not cast `out=`. "Half" is the 16-bit dtype of the active context: fp16 as in apex, or bf16.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ampcompare.precision.casting import name_dtype
from ampcompare.precision.o1.cast_cache import STATE, cast_weight, copy_to_flat_buffer

Function = Callable[..., Any]
Cast = Callable[[Tensor], Tensor]
Args = Sequence[Any]
Kwargs = dict[str, Any]
Arguments = tuple[Args, Kwargs]
FLOAT = torch.float32
SEQUENCES = (list, tuple)


def _list_floating(x: Any) -> list[Tensor]:
    """Return the floating-point tensors to cast: x, or all items of a list or tuple of such tensors."""
    if isinstance(x, Tensor):
        return [x] if x.dtype.is_floating_point else []
    tensors: list[Tensor] = []
    if isinstance(x, SEQUENCES):
        for item in x:
            inner = _list_floating(item)
            if not inner:
                return []
            tensors += inner
    return tensors


def _list_arguments(args: Args, kwargs: Kwargs) -> list[Tensor]:
    values = (*args, *(x for key, x in kwargs.items() if key != "out"))
    return [tensor for x in values for tensor in _list_floating(x)]


def _cast_nested(cast: Cast, x: Any) -> Any:
    """Cast x, or the items of a list or tuple and keep its type; anything else stays as it is."""
    if isinstance(x, Tensor):
        return cast(x)
    if not _list_floating(x):
        return x
    items = [_cast_nested(cast, y) for y in x]
    if all(new is old for new, old in zip(items, x, strict=True)):
        return x
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


def _cast_arguments(cast: Cast, args: Args, kwargs: Kwargs) -> Arguments:
    cast_args: list[Any] = []
    for x in args:
        # Most arguments are tensors or numbers; a call of `_cast_nested` for each would cost too much.
        if isinstance(x, Tensor):
            cast_args.append(cast(x))
        elif isinstance(x, SEQUENCES):
            cast_args.append(_cast_nested(cast, x))
        else:
            cast_args.append(x)
    if kwargs:
        kwargs = {key: x if key == "out" else _cast_nested(cast, x) for key, x in kwargs.items()}
    return cast_args, kwargs


def _is_cast_target(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.is_floating_point and x.device.type == STATE.device_type


def to_half(x: Tensor) -> Tensor:
    """Return x in the 16-bit dtype, for an fp32 parameter its cached copy."""
    dtype = x.dtype
    half = STATE.half
    if dtype is half or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    if dtype is FLOAT and isinstance(x, Parameter):
        return cast_weight(x)
    return x.to(half)


def to_float(x: Tensor) -> Tensor:
    """Return x in fp32; fp64 is rounded."""
    dtype = x.dtype
    if dtype is FLOAT or not dtype.is_floating_point or x.device.type != STATE.device_type:
        return x
    return x.to(FLOAT)


def make_rule(change: Callable[[str, Args, Kwargs], Arguments]) -> Callable[[Function], Function]:
    """Make a rule, which wraps a function, from a function that changes arguments while casts are on.

    Args:
        change: Gets the name of the wrapped function, its positional and its keyword arguments, and returns
            the new arguments.
    """

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
    """Run in the 16-bit dtype."""
    return _cast_arguments(to_half, args, kwargs)


@make_rule
def float_(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in fp32."""
    return _cast_arguments(to_float, args, kwargs)


@make_rule
def promote(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the widest dtype of the arguments: {half, float} is float, any other mix raises.

    Unlike in PyTorch, a 0-d fp32 tensor promotes as well.
    """
    tensors = _list_arguments(args, kwargs)
    dtypes = {x.dtype for x in tensors}
    if len(dtypes) < 2 or not any(map(_is_cast_target, tensors)):
        return args, kwargs
    if dtypes != {STATE.half, FLOAT}:
        mix = ", ".join(sorted(map(name_dtype, dtypes)))
        raise NotImplementedError(
            f"apex O1 does not know how to promote {{{mix}}} in {name}: "
            f"only a mix of {name_dtype(STATE.half)} and float32 is defined; "
            "cast one of the arguments yourself"
        )
    return _cast_arguments(to_float, args, kwargs)


@make_rule
def cast_to_target_dtype(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the dtype of the tensor that is changed in place."""
    args, kwargs = _put_target_first(args, kwargs)
    target = args[0]
    if not _is_cast_target(target):
        return args, kwargs
    return _cast_all_but_target(target.dtype, args, kwargs)


@make_rule
def refuse_16_bit_target(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Raise if an fp32 function would change a 16-bit tensor in place, else run in fp32."""
    args, kwargs = _put_target_first(args, kwargs)
    target = args[0]
    if not _is_cast_target(target):
        return args, kwargs
    if target.dtype is STATE.half:
        function = name.rstrip("_")
        raise NotImplementedError(
            f"apex O1 runs {function} in float32, "
            f"so {name} cannot write into a {name_dtype(STATE.half)} tensor; "
            f"use {function}, or call .float() first"
        )
    return _cast_all_but_target(FLOAT, args, kwargs)


def _put_target_first(args: Args, kwargs: Kwargs) -> Arguments:
    """Return the arguments of an in-place function with its target first, even if it is named `input`."""
    if args:
        return args, kwargs
    others = {key: x for key, x in kwargs.items() if key != "input"}
    return (kwargs["input"],), others


def _cast_all_but_target(dtype: torch.dtype, args: Args, kwargs: Kwargs) -> Arguments:
    def cast(x: Tensor) -> Tensor:
        return x.to(dtype) if _is_cast_target(x) else x

    others, kwargs = _cast_arguments(cast, args[1:], kwargs)
    return [args[0], *others], kwargs


@make_rule
def banned(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Raise for 16-bit arguments; run in fp32 if banned functions are allowed."""
    if STATE.allow_banned:
        return _cast_arguments(to_float, args, kwargs)
    if any(x.dtype is STATE.half and _is_cast_target(x) for x in _list_arguments(args, kwargs)):
        raise NotImplementedError(
            f"apex O1 does not run {name} on {name_dtype(STATE.half)}: "
            "the log of a sigmoid output underflows there. Drop the sigmoid and use "
            "torch.nn.functional.binary_cross_entropy_with_logits (BCEWithLogitsLoss), "
            "or call .float() on its inputs"
        )
    return args, kwargs


@make_rule
def attention(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run attention in the 16-bit dtype and bound its mask.

    It applies to `scaled_dot_product_attention` and to `baddbmm`, which MultiheadAttention uses if it returns
    the weights. apex added an fp32 mask to the products in fp32, where a large negative number is finite. In
    fp16 it would be -inf, and a row of -inf gives NaN. So finite values are bounded to half of the 16-bit
    range; -inf stays.
    """

    def bound(mask: Any) -> Any:
        if not _is_cast_target(mask) or mask.dtype is STATE.half:
            return mask
        minimum = max(torch.finfo(dtype).min for dtype in (mask.dtype, STATE.half)) / 2
        return torch.where(mask.isinf(), mask, mask.clamp(min=minimum))

    mask_index = 0 if name == "baddbmm" else 3
    args = [bound(x) if index == mask_index else x for index, x in enumerate(args)]
    kwargs = {key: bound(x) if key == "attn_mask" else x for key, x in kwargs.items()}
    return _cast_arguments(to_half, args, kwargs)


def no_fast_path(function: Function) -> Function:
    """Make attention modules not use their fused fast path, which would bypass the casts.

    PyTorch does the same under autocast.
    """
    return functools.wraps(function)(lambda: not STATE.on and function())


@make_rule
def recurrent(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Run in the 16-bit dtype, with the weights (the only list among the arguments) in one buffer.

    Source: `apex/amp/{rnn_compat,wrap}.py` at the last commit that had them.
    """
    args = [copy_to_flat_buffer(x) if isinstance(x, list) else x for x in args]
    return _cast_arguments(to_half, args, kwargs)


@make_rule
def recurrent_input(name: str, args: Args, kwargs: Kwargs) -> Arguments:
    """Let `RNNBase.check_input` accept input of another dtype than the weights, since both are cast."""
    network, x, *others = args
    if _is_cast_target(x):  # the check still sees its shape
        x = torch.empty_like(x, dtype=network._flat_weights[0].dtype, device="meta")
    return (network, x, *others), kwargs


_RULE_FUNCTIONS = (
    half,
    float_,
    promote,
    cast_to_target_dtype,
    refuse_16_bit_target,
    banned,
    attention,
    no_fast_path,
    recurrent,
    recurrent_input,
)
RULES: dict[str, Callable[[Function], Function]] = {f.__name__.rstrip("_"): f for f in _RULE_FUNCTIONS}
