"""A model's forward with something around it: casts in force, inputs and outputs in a given type."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """Every floating tensor in nested lists, tuples and mappings as `dtype`; anything else as it is.

    A batch class of the user's is cast by its own `to(dtype)`, if it has one, as apex documented it.
    """
    return each_floating(value, lambda x: x.to(dtype), lambda batch: batch.to(dtype))


def each_floating(value: Any, cast: Callable[[Tensor], Any], other: Callable[[Any], Any]) -> Any:
    """`value` with `cast` of every floating tensor in it, and `other` of every object that has a `to`."""
    if isinstance(value, Tensor):
        return cast(value) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(each_floating(v, cast, other) for v in value))
    if isinstance(value, list | tuple):
        return type(value)([each_floating(v, cast, other) for v in value])
    if isinstance(value, MutableMapping):
        same_kind = copy.copy(value)  # with whatever else it carries: default factory, encodings, attributes
        for key, item in value.items():
            same_kind[key] = each_floating(item, cast, other)
        return same_kind
    if isinstance(value, Mapping):
        return {k: each_floating(v, cast, other) for k, v in value.items()}
    if callable(getattr(value, "to", None)) and not isinstance(value, nn.Module | type):
        return other(value)
    return value


class WrappedForward:
    """`model.forward` with inputs and outputs cast and a context around it.

    An object rather than a closure, so that the model can still be copied and pickled: a copy's forward is
    its own. The model holds it and not the other way round, so that a model that is dropped is freed at once.
    `context` is a module-level callable that takes `context_options`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        inputs: torch.dtype | None = None,
        outputs: torch.dtype | None = None,
        context: Callable[..., AbstractContextManager[Any]] | None = None,
        **context_options: Any,
    ) -> None:
        self._model = weakref.ref(model)
        self.inputs, self.outputs = inputs, outputs
        self.context, self.context_options = context, context_options
        self.widen: Callable[[Tensor], Tensor] | None = None  # what an output was before it was rounded
        self.inner = vars(model).get("forward")  # an instance's own forward, where somebody else set one

    @property
    def model(self) -> nn.Module:
        """The model. Raises ReferenceError when there is none any more."""
        model = self._model()
        if model is None:
            raise ReferenceError("the model of this forward is gone: keep the model, and call it")
        return model

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_model": self.model}  # copied or pickled with the model that holds it

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_model": weakref.ref(state["_model"])})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        if self.inputs is not None:
            args, kwargs = cast_floating(args, self.inputs), cast_floating(kwargs, self.inputs)
        with self.context(**self.context_options) if self.context else nullcontext():
            if self.inner is not None:
                result = self.inner(*args, **kwargs)
            else:
                result = type(model).forward(model, *args, **kwargs)
        if self.widen is not None:
            result = each_floating(result, self.widen, lambda batch: batch)
        return result if self.outputs is None else cast_floating(result, self.outputs)


def wrap_forward(model: nn.Module, **how: Any) -> None:
    """Put a WrappedForward on the model; see there for the options."""
    model.forward = WrappedForward(model, **how)


def is_wrapped(model: nn.Module) -> bool:
    return isinstance(vars(model).get("forward"), WrappedForward)


def unwrap_forward(model: nn.Module) -> None:
    """Give the model the forward back that it had before `wrap_forward`."""
    wrapped = vars(model).get("forward")
    if not isinstance(wrapped, WrappedForward):
        return
    if wrapped.inner is None:
        del model.forward
    else:
        model.forward = wrapped.inner
