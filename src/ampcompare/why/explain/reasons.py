"""Why an op ran in its type: what autocast and the O1 lists say of it, asked of them as they are installed.

Autocast's lists are the ops for which PyTorch's dispatcher has a kernel of autocast's on this kind of device;
O1's own table names Python functions. A backend without either casts weights and inputs once, and each op takes the types
that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from ampcompare.precision.apex.state import STATE
from ampcompare.precision.apex.tables import entries

LISTED_HALF, LISTED_FP32 = "listed low", "listed fp32"
PROMOTED, MIXED, ALONE, CAST = "promoted", "mixed inputs", "left alone", "cast"
WORDS = {
    LISTED_HALF: "on the list of what runs in the low type",
    LISTED_FP32: "on the list of what runs in fp32",
    PROMOTED: "listed: runs in the widest type of its inputs",
    MIXED: "not listed; inputs of two types, of which PyTorch takes the wider",
    ALONE: "not listed: runs in the type that it is given",
    CAST: "a cast",
}
HALF = ("float16", "bfloat16")

# AT_FORALL_PROMOTE in ATen/autocast_mode.h of PyTorch 2.14, and what autocast_mode.cpp adds on a CPU.
PROMOTES = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add "
    "stack cat index_copy".split()
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
    plain = aten.strip("_").removeprefix("native_").removesuffix("_forward")
    names = {function, aten, plain, *CALLERS.get(aten, ())} - {""}
    listed = {name for name in names if _is_listed(name, device_type)}
    if listed & PROMOTES:
        return PROMOTED
    if listed:
        return LISTED_HALF if dtype in HALF else LISTED_FP32
    return ALONE


class Functions:
    """The functions of the O1 lists by identity, taken before anybody wraps them."""

    def __init__(self) -> None:
        self._rules: dict[int, tuple[str, str]] = {}
        self._kept: list[Callable[..., Any]] = []  # or an id could be another's
        for name, function, rule in _listed():
            self._rules.setdefault(id(function), (name, rule))
            self._kept.append(function)

    def by_lists(self, function: Any) -> str:
        """What the O1 lists make of an op that this Python function called."""
        # A wrapped function of Python's names itself by what its module has in its place: the wrapper.
        _, rule = self._rules.get(id(getattr(function, "__wrapped__", function)), ("", ""))
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
    found = ALONE
    if STATE.on:
        found = functions.by_lists(function)
    elif cast and kinds:
        found = by_autocast(getattr(function, "__name__", ""), aten, dtype, device_type)
    is_mixed = found == ALONE and len(kinds) > 1 and dtype not in HALF
    return MIXED if is_mixed else found
