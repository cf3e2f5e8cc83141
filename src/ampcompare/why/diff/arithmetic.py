"""In which type a step computes and draws at random, whatever its modules name: fp64 as the truth, and the
same masks under every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

LOW = (torch.float16, torch.bfloat16, torch.float32)
DRAWN = torch.float32  # the type of all random numbers


class Arithmetic(TorchDispatchMode):
    """Every random number drawn in fp32 and then rounded, so that all types have the same Dropout masks; with
    `double` also every cast to a smaller floating type left out, as of `x.float()` in somebody's norm.

    `differs` are the ops, by name, of whose random numbers this could not be had: attention kernels with a
    dropout of their own.
    """

    def __init__(self, *, double: bool) -> None:
        super().__init__()
        self.double = double
        self.differs: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.double:
            if kwargs.get("dtype") in LOW:
                kwargs["dtype"] = torch.float64
            args, kwargs = _all_double(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw(func, args, kwargs)
        return func(*args, **kwargs)

    def _draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name
        if "attention" in name:
            if _dropout_of(func, args, kwargs):
                self.differs.add(name.partition("::")[2])
            return func(*args, **kwargs)
        if name == "aten::native_dropout":
            return _dropout(*args)
        if name.endswith("_") and isinstance(args[0], Tensor):
            own = args[0]
            if own.dtype is DRAWN or not own.is_floating_point():
                return func(*args, **kwargs)
            drawn = torch.empty_like(own, dtype=DRAWN)
            func(drawn, *tree_map(_as_drawn, args[1:]), **tree_map(_as_drawn, kwargs))
            return own.copy_(drawn)
        wanted = kwargs.get("dtype") or _type_of(args, kwargs)
        if wanted is None and "dtype" in {argument.name for argument in func._schema.arguments}:
            wanted = torch.get_default_dtype()
        if wanted is None or wanted is DRAWN or not wanted.is_floating_point:
            return func(*args, **kwargs)
        if "dtype" in {argument.name for argument in func._schema.arguments}:
            kwargs["dtype"] = DRAWN
        given = func(*tree_map(_as_drawn, args), **tree_map(_as_drawn, kwargs))
        return tree_map(lambda x: x.to(wanted) if _is_float(x) else x, given)


@contextmanager
def arithmetic(*, double: bool) -> Iterator[Arithmetic]:
    """The context of steps in fp64 (`double`), or in a backend's own types."""
    before = torch.get_default_dtype()
    mode = Arithmetic(double=double)
    if double:
        torch.set_default_dtype(torch.float64)  # of tensors that a forward makes
    try:
        with mode:
            yield mode
    finally:
        torch.set_default_dtype(before)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _as_drawn(value: Any) -> Any:
    return value.to(DRAWN) if _is_float(value) else value


def _type_of(args: Any, kwargs: Any) -> torch.dtype | None:
    return next((x.dtype for x in tree_flatten((args, kwargs))[0] if _is_float(x)), None)


def _all_double(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of an op that is given fp64 and less, such as a weight of a loss, all in fp64.

    What the op writes into stays: of a view or a copy it is the one tensor there is.
    """
    found = {x.dtype for x in tree_flatten((args, kwargs))[0] if _is_float(x)}
    if torch.float64 not in found or len(found) == 1:
        return args, kwargs
    written = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
    names = [a.name for a in func._schema.arguments]

    def wide(value: Any) -> Any:
        return tree_map(lambda x: x.double() if _is_float(x) and x.dtype in LOW else x, value)

    by_place = (x if name in written else wide(x) for name, x in zip(names, args, strict=False))
    return tuple(by_place), {name: x if name in written else wide(x) for name, x in kwargs.items()}


def _dropout_of(func: Any, args: Any, kwargs: dict[str, Any]) -> float:
    """The share that an attention kernel drops."""
    names = [a.name for a in func._schema.arguments]
    return float(({**dict(zip(names, args, strict=False)), **kwargs}).get("dropout_p") or 0.0)


def _dropout(given: Tensor, share: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """`native_dropout` by a mask drawn in fp32."""
    if train is False or share == 0:
        return given.clone(), torch.ones_like(given, dtype=torch.bool)
    mask = torch.rand(given.shape, dtype=DRAWN, device=given.device) >= share
    return given * mask * (1.0 / (1.0 - share) if share < 1 else 0.0), mask
