"""Why an op ran in its type: what autocast and the O1 lists say of it, asked of them as they are installed.

Autocast's lists are the ops for which PyTorch's dispatcher has a kernel of autocast's on this kind of device;
O1's own table names Python functions. A backend without either casts weights and inputs once, and each op
takes the types that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from ampcompare.precision.o1.tables import entries
from ampcompare.precision.o1.weights import STATE

LISTED_HALF, LISTED_FP32 = "listed low", "listed fp32"
PROMOTED, MIXED, ALONE, GIVEN, CAST = "promoted", "mixed inputs", "left alone", "as given", "cast"
ASKED = "asked for"
WORDS = {
    LISTED_HALF: "listed: the low type",
    LISTED_FP32: "listed: fp32",
    PROMOTED: "listed: the widest of its inputs",
    ASKED: "listed: fp32, but its caller asks for this type",
    MIXED: "not listed: the wider of two inputs",
    ALONE: "not listed: as it is given",
    GIVEN: "no lists in force: as it is given",
    CAST: "a cast",
}
HALF = ("float16", "bfloat16")

# AT_FORALL_PROMOTE in ATen/autocast_mode.h of PyTorch 2.14, and what autocast_mode.cpp adds on a CPU.
PROMOTES = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add "
    "stack cat index_copy".split()
)
PARTS = ("multi_head_attention_forward",)
# AT_FORALL_FP32_SET_OPT_DTYPE there: fp32, unless whoever calls them names a type.
TAKES_TYPE = frozenset(
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum".split()
)
# An op below the dispatcher's casts, and those above it that call it, where neither its name nor that of the
# Python function tells.
CALLERS: dict[str, tuple[str, ...]] = {
    "convolution": ("conv2d", "_convolution"),
    "mm": ("linear", "matmul"),
    "addmm": ("linear",),
    "bmm": ("matmul",),
    "_log_softmax": ("log_softmax",),
    "nll_loss_forward": ("nll_loss_nd", "nll_loss"),
    "nll_loss2d_forward": ("nll_loss_nd", "nll_loss2d"),
}


ATTENTION = "scaled_dot_product_attention"
KERNELS = {
    "convolution": "conv2d",
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "scaled_dot_product_flash_attention": ATTENTION,
    "scaled_dot_product_flash_attention_for_cpu": ATTENTION,
    "scaled_dot_product_efficient_attention": ATTENTION,
    "safe_softmax": "softmax",
}


def plain_name(aten: str) -> str:
    """The name of a kernel without what kernels add to it."""
    plain = aten.strip("_").removeprefix("native_").removesuffix("_forward").removesuffix("_backward_data")
    return KERNELS.get(plain, plain)


def is_of_parts(function: Any) -> bool:
    """Whether a Python function is a network of ops rather than one: attention in one call."""
    return getattr(function, "__name__", "").strip("_") in PARTS


@cache
def _is_listed(name: str, device_type: str) -> bool:
    """Whether autocast has a kernel of its own for an op of this name on this kind of device."""
    packet, key = getattr(torch.ops.aten, name, None), f"Autocast{device_type.upper()}"
    for overload in packet.overloads() if packet is not None else ():
        full = f"aten::{name}" if overload == "default" else f"aten::{name}.{overload}"
        try:
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, key):
                return True
        except RuntimeError:  # an overload of TorchScript's, which the dispatcher does not have
            continue
    return False


def by_autocast(function: str, aten: str, dtype: str, device_type: str) -> str:
    """What the lists of autocast make of an op that runs in `dtype`, called by a Python function."""
    plain = plain_name(aten)
    names = {function, aten, plain, *CALLERS.get(aten, ())} - {""}
    listed = {name for name in names if _is_listed(name, device_type)}
    if listed & PROMOTES:
        return PROMOTED
    if listed & TAKES_TYPE and dtype in HALF:
        return ASKED
    if listed:
        return LISTED_HALF if dtype in HALF else LISTED_FP32
    return ALONE


class Functions:
    """The functions of the O1 lists by identity, taken before anybody wraps them."""

    def __init__(self) -> None:
        self._rules: dict[int, tuple[str, str]] = {}
        self._by_name: dict[str, str] = {}
        self._kept: list[Callable[..., Any]] = []  # or an id could be another's
        for name, function, rule in _listed():
            self._rules.setdefault(id(function), (name, rule))
            self._by_name.setdefault(name, rule)
            self._kept.append(function)

    def by_lists(self, function: Any, plain: str) -> str:
        """What the O1 lists make of an op that this Python function called; one of many parts is known by the
        plain name of the part.
        """
        # A wrapped function of Python's names itself by what its module has in its place: the wrapper.
        _, rule = self._rules.get(id(getattr(function, "__wrapped__", function)), ("", ""))
        if not rule and (plain == ATTENTION or is_of_parts(function)):
            rule = self._by_name.get(plain, "")
        if rule in ("half", "attention", "recurrent"):
            return LISTED_HALF
        if rule in ("float", "banned", "refuse"):
            return LISTED_FP32
        return PROMOTED if rule else ALONE


def _listed() -> Iterator[tuple[str, Any, str]]:
    for namespace, name, rule in entries():
        function = getattr(namespace, name)
        yield name, getattr(function, "__wrapped__", function), rule


def why(
    function: Any, aten: str, dtype: str, kinds: set[str], device_type: str, functions: Functions, cast: bool
) -> str:
    """Why this op runs in `dtype`; `kinds` are the types of its floating inputs. `cast`: autocast is in force
    where it was called.
    """
    found = GIVEN
    if STATE.on:
        found = functions.by_lists(function, plain_name(aten))
    elif cast and kinds:
        found = by_autocast(getattr(function, "__name__", ""), aten, dtype, device_type)
    is_mixed = found in (ALONE, GIVEN) and len(kinds) > 1 and dtype not in HALF
    return MIXED if is_mixed else found
