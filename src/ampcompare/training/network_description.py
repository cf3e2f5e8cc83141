"""Describes everything of a network that its computation may depend on, except the values of its state.

Compiled code holds what a network's Python code reads: attributes that are neither parameters nor buffers,
hooks, replaced methods. Another network may use the code if its description is equal. What cannot be
described (a tensor outside of parameters and buffers, a random generator, an object of an extension) equals
nothing, so that code which depends on it is never shared.
"""

import enum
import functools
import random
import re
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
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
_STATE = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
_HOOKS = re.compile(r"_\w*hooks\w*")  # of nn.Module: by a number that differs in each network


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
        where: The part that differs, from the innermost name to the outermost:
            "attribute rate in attribute config in module blocks.0".
        is_class: Whether modules at one path have different classes: these are two different networks.
        unknown: The type of an object that cannot be compared; None: the difference is known.
    """

    where: str
    is_class: bool
    unknown: type | None


def describe_network(model: nn.Module) -> Description:
    """Return what the computation of a network may depend on, by module and attribute.

    Shapes, strides, dtypes and flags of parameters and buffers are included, their values are not.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    describer = _Describer(modules, _list_state(model))
    parts: list[tuple[str, Any]] = []
    for path, module in modules.items():
        parts.append((f"module {path}" if path else "the network", _describe_module(module, describer)))
    for name, tensor in _list_state(model).items():
        parts.append((f"tensor {name}", _describe_tensor(tensor)))
    return Description("network", tuple(parts))


def _describe_module(module: nn.Module, describer: "_Describer") -> Description:
    parts: list[tuple[str, Any]] = [("class", type(module))]
    parts += [(name, describer.describe(value)) for name, value in _class_parts(type(module))]
    for name, noun in _STATE.items():
        entries = getattr(module, name).items()  # torch.jit keeps them elsewhere
        described = tuple((f"{noun} {key}", describer.describe(value)) for key, value in entries)
        parts.append((f"its {noun}s", Description(noun, described)))
    for name, value in vars(module).items():
        if name in _STATE:
            continue
        if _HOOKS.fullmatch(name) and isinstance(value, Mapping):
            value = [*value.values()]
        parts.append((f"attribute {name}", describer.describe(value)))
    return Description("module", tuple(parts))


def find_difference(one: Description, other: Description) -> Difference | None:
    """Return the first difference of two descriptions; None if they are equal."""
    if one == other:
        return None
    names: list[str] = []
    left: Any = one
    right: Any = other
    while isinstance(left, Description) and isinstance(right, Description) and left.kind == right.kind:
        ours, theirs = dict(left.parts), dict(right.parts)
        lacking = ours.keys() ^ theirs.keys()
        differing = (name for name in (*ours, *theirs) if name in lacking or ours[name] != theirs[name])
        name = next(differing, None)
        if name is None:  # the same parts in another order
            break
        names.append(name)
        left, right = ours.get(name), theirs.get(name)
    unknown = next((value.kind for value in (right, left) if isinstance(value, _Unknown)), None)
    is_class = names[-1:] == ["class"]
    return Difference(" in ".join(reversed(names)), is_class, unknown)


def describe_callable(function: Any) -> Any:
    """Return a description of a function with its arguments and closure, such as a loss."""
    return _Describer({}, {}).describe(function)


def _list_state(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


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
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, np.generic):
            return type(value), value.tobytes()
        if isinstance(value, random.Random):
            return type(value), value.getstate()
        if isinstance(value, set | frozenset):
            return type(value), frozenset(map(self.describe, value)), len(value)
        parts = _parts_of(value)
        if parts is None:
            return _Unknown(type(value))
        kind = value.__code__ if isinstance(value, types.FunctionType) else type(value)
        return Description(kind, tuple((name, self.describe(part)) for name, part in parts.items()))


@functools.singledispatch
def _parts_of(value: Any) -> dict[str, Any] | None:
    """Return the parts of an object by name; None if they cannot be read."""
    return _attributes(value) if hasattr(value, "__dict__") or _slots(value) else None


@_parts_of.register
def _(value: Tensor | torch.Generator) -> None:
    return None


@_parts_of.register
def _(method: types.MethodType) -> dict[str, Any]:
    return {"its function": method.__func__, "its object": method.__self__}


@_parts_of.register
def _(reference: weakref.ref) -> dict[str, Any]:  # recurrent modules refer to their weights so
    return {"its object": reference()}


@_parts_of.register
def _(call: functools.partial) -> dict[str, Any]:
    parts = {"its function": call.func}
    parts |= {f"argument {number}": argument for number, argument in enumerate(call.args)}
    return parts | {f"keyword argument {name}": argument for name, argument in call.keywords.items()}


@_parts_of.register
def _(mapping: Mapping) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for number, (key, entry) in enumerate(mapping.items()):
        parts[f"key {number}"] = key
        parts[f"entry {key!r}" if type(key) in (str, int) else f"entry number {number}"] = entry
    return parts | _attributes(mapping)


@_parts_of.register
def _(sequence: list | tuple | deque) -> dict[str, Any]:
    return {f"entry {number}": entry for number, entry in enumerate(sequence)} | _attributes(sequence)


def _attributes(value: Any) -> dict[str, Any]:
    attributes = _slots(value) | getattr(value, "__dict__", {})
    return {f"attribute {name}": attribute for name, attribute in attributes.items()}


@_parts_of.register
def _(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function computes with besides its arguments and its code, by name."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    parts = {f"default of {name}": value for name, value in zip(names, defaults, strict=True)}
    parts |= {f"default of {name}": value for name, value in (function.__kwdefaults__ or {}).items()}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # it is not empty
            parts[f"closure variable {name}"] = cell.cell_contents
    file = Path(code.co_filename).name
    for name, value in _globals(function).items():
        noun = "function" if isinstance(value, types.FunctionType) else "global"
        parts[f"{noun} {name} of {file}"] = value
    return parts


def _class_parts(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods, properties and plain attributes of a class of the user's and of its base classes."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            if isinstance(value, types.FunctionType):
                yield f"method {name} of {base.__name__}", value
            elif isinstance(value, staticmethod | classmethod):
                yield f"method {name} of {base.__name__}", value.__func__
            elif isinstance(value, property):
                yield f"property {name} of {base.__name__}", value.fget
            elif isinstance(value, _GLOBALS) and not name.startswith("__"):
                yield f"class attribute {name} of {base.__name__}", value


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the global values that a function's own code reads, and the functions of its file."""
    found = {
        name: function.__globals__[name]
        for name in dict.fromkeys(_names_of(function.__code__))
        if name in function.__globals__
    }
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, _GLOBALS) or getattr(value, "__globals__", None) is function.__globals__
    }


def _names_of(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code reads, also in its lambdas and comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that lie in slots."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        own = [slots] if isinstance(slots, str) else slots
        private = f"_{kind.__name__.lstrip('_')}"
        names += [private + n if n.startswith("__") and not n.endswith("__") else n for n in own]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
