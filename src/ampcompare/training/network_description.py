"""Describes everything of a network that its computation may depend on, except the values of its state.

Compiled code holds what a network's Python code reads: attributes that are neither parameters nor buffers,
hooks, replaced methods. Another network may use the code if its description is equal. What cannot be
described (a tensor outside of parameters and buffers, a random generator, an object of an extension) equals
nothing, so that code which depends on it is never shared.
"""

import enum
import functools
import re
import types
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

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
_STATE = ("_parameters", "_buffers", "_modules")
_HOOKS = re.compile(r"_\w*hooks\w*")  # of nn.Module: by a number that differs in each network


class _Unknown:
    """Something that cannot be described; it equals nothing but itself."""


def describe_network(model: nn.Module) -> dict[str, Any]:
    """Return what the computation of a network may depend on, by the path of module and attribute.

    Shapes, strides, dtypes and flags of parameters and buffers are included, their values are not.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    describer = _Describer(modules, _list_state(model))
    description: dict[str, Any] = {}
    for path, module in modules.items():
        prefix = f"{path}." if path else ""
        description[f"{prefix}__class__"] = type(module)
        description[f"{prefix}__globals__"] = describer.describe(_methods(type(module)))
        for name in _STATE:
            entries = vars(module)[name].items()
            description[prefix + name] = tuple((key, describer.describe(value)) for key, value in entries)
        for name, value in vars(module).items():
            if name in _STATE:
                continue
            if _HOOKS.fullmatch(name) and isinstance(value, Mapping):
                value = [*value.values()]
            description[prefix + name] = describer.describe(value)
    for name, tensor in _list_state(model).items():
        description[f"{name} (tensor)"] = _describe_tensor(tensor)
    return description


def find_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first path at which two descriptions differ, "" if they are equal."""
    for path in (*one, *(path for path in other if path not in one)):
        if path not in one or path not in other or one[path] != other[path]:
            return path
    return ""


def describe_callable(function: Any) -> Any:
    """Return a description of a function with its arguments and closure, such as a loss."""
    return _Describer({}, {}).describe(function)


def _list_state(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _describe_tensor(tensor: Tensor) -> tuple[Any, ...]:
    is_strided = tensor.layout is torch.strided
    return (
        type(tensor),
        tensor.shape,
        tensor.stride() if is_strided else None,
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
    )


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
        except RecursionError:
            return _Unknown()

    def _describe_object(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            parts: list[Any] = [value.__defaults__, value.__kwdefaults__, *self._closure(value)]
            parts += _globals(value).items()
            return value.__code__, self.describe(parts)
        if isinstance(value, types.MethodType):
            return "method", self.describe(value.__func__), self.describe(value.__self__)
        if isinstance(value, weakref.ref):  # recurrent modules refer to their weights so
            return "reference", self.describe(value())
        if isinstance(value, functools.partial):
            return "partial", self.describe([value.func, value.args, value.keywords])
        if isinstance(value, np.ndarray):
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, np.generic):
            return type(value), value.tobytes()
        if isinstance(value, Tensor | torch.Generator):
            return _Unknown()
        contents: list[Any] = []
        if isinstance(value, Mapping):
            contents += [item for pair in value.items() for item in pair]
        elif isinstance(value, list | tuple | deque):
            contents += value
        elif isinstance(value, set | frozenset):
            return type(value), frozenset(map(self.describe, value)), len(value)
        elif not hasattr(value, "__dict__") and not _slots(value):
            return _Unknown()
        attributes = _slots(value) | getattr(value, "__dict__", {})
        return (
            type(value),
            tuple(map(self.describe, contents)),
            tuple((name, self.describe(attribute)) for name, attribute in attributes.items()),
        )

    @staticmethod
    def _closure(function: types.FunctionType) -> list[Any]:
        cells = function.__closure__ or ()
        return [cell.cell_contents for cell in cells if cell != types.CellType()]


def _methods(kind: type) -> list[types.FunctionType]:
    """Return the methods of a class of the user's, also of its base classes."""
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins")]
    return [value for base in own for value in vars(base).values() if isinstance(value, types.FunctionType)]


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the global values that a function's own code reads, and the functions of its file."""
    found = {
        name: function.__globals__[name]
        for name in function.__code__.co_names
        if name in function.__globals__
    }
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, _GLOBALS) or getattr(value, "__globals__", None) is function.__globals__
    }


def _slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that lie in slots."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
