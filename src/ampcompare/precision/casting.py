"""Casts of trees of tensors, of networks, and of what goes into a forward and comes out of it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

HALF_TYPES = (torch.float16, torch.bfloat16)
_KEPT = "_kept_in_fp32"  # on a module rather than in a list: whoever converts or casts modules can ask it


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """Every floating tensor in nested lists, tuples and mappings as `dtype`; anything else as it is.

    A batch class of the user's is cast by its own `to(dtype)`, if it has one, as apex documented it.
    """
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cast_floating(v, dtype) for v in value))
    if isinstance(value, list | tuple):
        return type(value)([cast_floating(v, dtype) for v in value])
    if isinstance(value, MutableMapping):
        same_kind = copy.copy(value)  # with whatever else it carries: default factory, encodings, attributes
        for key, item in value.items():
            same_kind[key] = cast_floating(item, dtype)
        return same_kind
    if isinstance(value, Mapping):
        return {k: cast_floating(v, dtype) for k, v in value.items()}
    if callable(getattr(value, "to", None)) and not isinstance(value, nn.Module | type):
        return value.to(dtype)
    return value


def copy_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors as `dtype`, in new memory, in one launch."""
    copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


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
        context: Callable[..., AbstractContextManager[Any]] = nullcontext,
        **context_options: Any,
    ) -> None:
        self._model = weakref.ref(model)
        self.inputs, self.outputs = inputs, outputs
        self.context, self.context_options = context, context_options
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
        with self.context(**self.context_options):
            if self.inner is not None:
                result = self.inner(*args, **kwargs)
            else:
                result = type(model).forward(model, *args, **kwargs)
        return result if self.outputs is None else cast_floating(result, self.outputs)


def wrap_forward(model: nn.Module, **how: Any) -> None:
    """Put a WrappedForward on the model; see there for the options."""
    model.forward = WrappedForward(model, **how)


def wrapped_forward(model: nn.Module) -> WrappedForward | None:
    """What `wrap_forward` put on the model, if it did."""
    found = vars(model).get("forward")
    return found if isinstance(found, WrappedForward) else None


def unwrap_forward(model: nn.Module) -> None:
    """Give the model the forward back that it had before `wrap_forward`."""
    if (wrapped := wrapped_forward(model)) is None:
        return
    if wrapped.inner is None:
        del model.forward
    else:
        model.forward = wrapped.inner


def mark_kept(module: nn.Module) -> None:
    """Have the module stay in fp32 whatever its network is converted to."""
    vars(module)[_KEPT] = True


def is_kept(module: nn.Module) -> bool:
    """Whether the module computes in fp32 whatever the backend, itself or as a part of one that does."""
    return bool(vars(module).get(_KEPT))


def convert_network(model: nn.Module, dtype: torch.dtype, *, keep_batchnorm_fp32: bool) -> None:
    """Floating parameters and buffers as `dtype`, in place; affine BatchNorm stays fp32 if asked, and so do
    modules that are kept (`keep.py`).

    Source: `apex/fp16_utils/fp16util.py`.
    """
    for module in model.modules():
        if is_kept(module):
            continue
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine:
            continue
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
                if tensor.grad is not None:
                    tensor.grad.data = tensor.grad.data.to(dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants the weights in one piece of memory


def save_in_fp32(model: nn.Module) -> list[RemovableHandle]:
    """Make `state_dict` of the model and of its parts fp32, so that a checkpoint loads into a plain model."""
    return [module.register_state_dict_post_hook(_to_fp32) for module in model.modules()]


def _to_fp32(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
    for key, value in state.items():
        if key.startswith(prefix) and isinstance(value, Tensor) and value.dtype in HALF_TYPES:
            state[key] = value.float()
