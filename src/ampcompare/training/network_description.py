"""Describes everything of a network that its computation may depend on, except the values of its state.

Compiled code holds what a network's Python code reads: attributes that are neither parameters nor buffers,
hooks, replaced methods. Another network may use the code if its description is equal. What cannot be
described (a tensor outside of parameters and buffers, a random generator, an object of an extension) equals
nothing, so that code which depends on it is never shared.
"""

import enum
import re
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (
    *(bool, int, str, bytes, range, slice, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_BY_IDENTITY = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, enum.Enum),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
_GLOBALS = bool, int, float, complex, str, bytes, list, tuple, dict, set, Tensor, np.ndarray, torch.Generator
_HOOKS = re.compile(r"_\w*hooks\w*")  # of nn.Module: by a number that differs in each network
_MISSING = "", None


class _Unknown:
    """Something that cannot be described; it equals nothing but itself. `kind` is its type."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class Description(NamedTuple):
    """The description of an object, which can be compared with ==.

    Attributes:
        kind: What the object is, apart from its parts.
        parts: The name and the description of each part, a `Description` or another value.
    """

    kind: Any
    parts: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Difference:
    """The first difference between two descriptions.

    Attributes:
        where: The part that differs, such as `network.blocks.0.config.rate`.
        is_class: Whether modules at one path have different classes: these are two different networks.
        unknown: The type of an object that cannot be compared; None: the difference is known.
    """

    where: str
    is_class: bool
    unknown: type | None


def describe_training(model: nn.Module, loss: Callable[..., Any]) -> Description:
    """Return what the computation of a network and its loss may depend on.

    Shapes, strides, dtypes and flags of parameters and buffers are included, their values are not.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    state: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    describer = _Describer(modules, state)
    parts = [("loss", describer.describe(loss))]
    for path, module in modules.items():
        parts.append((f"network.{path}" if path else "network", describer.describe_module(module)))
    for name, tensor in state.items():
        parts.append((f"network.{name}", _describe_tensor(tensor)))
    return Description("training", tuple(parts))


def find_difference(one: Description, other: Description) -> Difference | None:
    """Return the first difference of two descriptions; None if they are equal."""
    if one == other:
        return None
    names: list[str] = []
    left: Any = one
    right: Any = other
    while isinstance(left, Description) and isinstance(right, Description) and left.kind == right.kind:
        pairs = zip_longest(left.parts, right.parts, fillvalue=_MISSING)
        (name, left), (other_name, right) = next(pair for pair in pairs if pair[0] != pair[1])
        names.append(name or other_name)
        if name != other_name:
            break
    unknown = next((value.kind for value in (right, left) if isinstance(value, _Unknown)), None)
    return Difference(".".join(names), names[-1:] == ["class"], unknown)


def _describe_tensor(tensor: Tensor) -> Description:
    is_strided = tensor.layout is torch.strided
    parts = {
        "type": type(tensor),
        "shape": tensor.shape,
        "stride": tensor.stride() if is_strided else None,
        "dtype": tensor.dtype,
        "device": tensor.device,
        "requires_grad": tensor.requires_grad,
    }
    return Description("tensor", tuple(parts.items()))


class _Describer:
    """Describes values. Objects may refer to each other in cycles, and to parts of the network.

    Args:
        modules: The modules of the network by path.
        state: Its parameters and buffers by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> None:
        self._names = {id(module): f"module {path}" for path, module in reversed([*modules.items()])}
        self._names |= {id(tensor): f"tensor {name}" for name, tensor in state.items()}
        self._described: dict[int, int] = {}  # by id: the number of the object
        self._kept: list[Any] = []  # an id must not be given to another object meanwhile

    def describe_module(self, module: nn.Module) -> Description:
        """Return the class and the attributes of a module of the network."""
        parts = [("class", type(module)), *_class_parts(type(module))]
        for name, value in vars(module).items():
            is_hooks = _HOOKS.fullmatch(name) and isinstance(value, Mapping)
            parts.append((name, [*value.values()] if is_hooks else value))
        return self._join("module", parts)

    def describe(self, value: Any) -> Any:
        """Return a description that can be compared with ==."""
        if value is None or isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, float | complex):
            return type(value), repr(value)
        if isinstance(value, _BY_IDENTITY):
            return value
        if name := self._names.get(id(value)):
            return name
        if id(value) in self._described:
            return "described before", self._described[id(value)]
        self._described[id(value)] = len(self._described)
        self._kept.append(value)
        try:
            return self._describe_object(value)
        except Exception:  # too deep, or it cannot be read: a config of OmegaConf with a missing value
            return _Unknown(type(value))

    def _describe_object(self, value: Any) -> Any:
        if isinstance(value, Tensor | torch.Generator):
            return _Unknown(type(value))
        if isinstance(value, set | frozenset):
            return type(value), frozenset(map(self.describe, value)), len(value)
        if isinstance(value, types.FunctionType):
            return self._join(value.__code__, _function_parts(value))
        kind: Any = type(value)
        parts = [*getattr(value, "__dict__", {}).items()]
        if isinstance(value, types.MethodType):
            parts = [("__func__", value.__func__), ("__self__", value.__self__)]
        elif isinstance(value, weakref.ref):  # recurrent modules refer to their weights so
            parts.append(("referent", value()))
        elif isinstance(value, Mapping):
            kind = kind, self.describe([*value])
            parts += [(str(key), entry) for key, entry in value.items()]
        elif isinstance(value, list | tuple | deque):
            parts += [(str(number), entry) for number, entry in enumerate(value)]
        else:  # what `pickle` would need: attributes in slots, the state of an extension's object
            parts.append(("state", value.__reduce_ex__(4)))
        return self._join(kind, parts)

    def _join(self, kind: Any, parts: Iterable[tuple[str, Any]]) -> Description:
        return Description(kind, tuple((name, self.describe(part)) for name, part in parts))


def _class_parts(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods, properties and plain attributes of a class of the user's and of its base classes."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            part: Any = value
            if isinstance(value, staticmethod | classmethod):
                part = value.__func__
            elif isinstance(value, property):
                part = value.fget
            is_plain = isinstance(part, _GLOBALS) and not name.startswith("__")
            if is_plain or isinstance(part, types.FunctionType):
                yield f"{base.__name__}.{name}", part


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function computes with besides its arguments and its code, by name."""
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # it is not empty
            yield name, cell.cell_contents
    # The global values that its own code reads, and the functions of its file.
    for name in dict.fromkeys(_names_of(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, _GLOBALS) or getattr(value, "__globals__", None) is function.__globals__:
            yield name, value


def _names_of(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code reads, also in its lambdas and comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)
