"""Casts of nested tensors, of networks, and of the inputs and outputs of a forward."""

import copy
import weakref
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

SIXTEEN_BIT_DTYPES = (torch.float16, torch.bfloat16)


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """Cast every floating-point tensor in nested lists, tuples and mappings; anything else stays as it is.

    An object of a user's class is cast by its own `to(dtype)`, if it has one, as in apex.
    """

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf
        if isinstance(leaf, MutableMapping):  # a mapping that pytree does not know: a library's output
            result = copy.copy(leaf)  # keeps its class and other attributes
            for key, item in leaf.items():
                result[key] = cast_floating(item, dtype)
            return result
        has_to = callable(getattr(leaf, "to", None)) and not isinstance(leaf, nn.Module | type)
        return leaf.to(dtype) if has_to else leaf

    return tree_map(cast, value)


def view_as_real(x: Tensor) -> Tensor:
    """Return a complex tensor as a view of real numbers, [..., 2], and any other as it is."""
    return torch.view_as_real(x) if x.is_complex() else x


def stored_values(x: Tensor) -> Tensor:
    """Return the values that a tensor stores, as real numbers; of a sparse gradient one for each element.

    The values of a coalesced tensor, and of a dense one, share its memory.
    """
    return view_as_real(x.coalesce().values() if x.is_sparse else x)


def copy_tensors(targets: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy each value into its target, in one launch; dtypes may differ."""
    target_list = list(targets)
    if target_list:  # PyTorch refuses an empty list
        torch._foreach_copy_(target_list, list(values))


def copy_to_fp32(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return fp32 copies, made in one launch."""
    originals = list(tensors)
    copies = [torch.empty_like(x, dtype=torch.float32) for x in originals]
    copy_tensors(copies, originals)
    return copies


def replace_parameters(optimizer: Optimizer, old: Iterable[Tensor], new: Iterable[Tensor]) -> None:
    """Replace parameters of the optimizer, and give the new ones the states of the old ones."""
    replacements = dict(zip(old, new, strict=True))
    for group in optimizer.param_groups:
        group["params"][:] = [replacements.get(p, p) for p in group["params"]]
    for before, after in replacements.items():
        if before in optimizer.state:
            optimizer.state[after] = optimizer.state.pop(before)


class WrappedForward:
    """A model's forward with casts of inputs and outputs, inside a context.

    It is an object rather than a closure, so that a copy of the model has its own forward. It has a weak
    reference to the model, so that an unused model is freed at once.

    Args:
        inputs: The dtype of floating-point inputs, None to leave them.
        outputs: The dtype of floating-point outputs, None to leave them.
        context: A module-level function that returns the context of the forward.
        **context_options: The arguments of `context`.
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
        self.model: Callable[[], Any] = weakref.ref(model)
        self.inner = vars(model).get("forward")  # an earlier wrapper of this instance
        self.inputs = inputs
        self.outputs = outputs
        self.context = context
        self.context_options = context_options

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"model": self.model()}  # copied with its model

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"model": weakref.ref(state["model"])})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward."""
        if self.inputs is not None:
            args, kwargs = cast_floating((args, kwargs), self.inputs)
        model = self.model()
        forward = MethodType(type(model).forward, model) if self.inner is None else self.inner
        with self.context(**self.context_options):
            result = forward(*args, **kwargs)
        return result if self.outputs is None else cast_floating(result, self.outputs)


def wrap_forward(model: nn.Module, **options: Any) -> None:
    """Wrap the model's forward in a `WrappedForward` with these options."""
    model.forward = WrappedForward(model, **options)
    model._replicate_for_data_parallel = refuse_data_parallel  # type: ignore[method-assign]


def unwrap_forward(model: nn.Module) -> None:
    """Undo the last `wrap_forward` of the model."""
    inner = vars(model).pop("forward").inner
    if inner is not None:
        model.forward = inner
    if not isinstance(inner, WrappedForward):
        del model._replicate_for_data_parallel


def refuse_data_parallel() -> NoReturn:
    """Refuse `nn.DataParallel`, whose replicas would compute with the weights of the original.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        "nn.DataParallel cannot copy a model whose forward casts; use nn.parallel.DistributedDataParallel"
    )


def is_kept_in_fp32(module: nn.Module) -> bool:
    """Return whether `precision.keep_fp32` keeps the module in fp32, by its own name or its parent's."""
    return "kept_in_fp32" in vars(module)


def keeps_own_dtype(module: nn.Module) -> bool:
    """Return whether the module's own weights are frozen or quantised and keep their dtype.

    `weight_dtypes.mark_frozen_parts` marks such modules.
    """
    return "keeps_own_dtype" in vars(module)


def convert_network(model: nn.Module, dtype: torch.dtype, *, keep_batchnorm_fp32: bool) -> None:
    """Convert floating-point parameters and buffers in place.

    Modules that are kept in fp32 (`keep_fp32.py`) and marked frozen parts (`weight_dtypes.py`) do not change.
    Source: `apex/fp16_utils/fp16util.py`.

    Args:
        dtype: Their new dtype.
        keep_batchnorm_fp32: Whether BatchNorm with weights stays as it is.
    """
    for module in model.modules():
        is_norm = isinstance(module, _BatchNorm) and module.affine
        if is_kept_in_fp32(module) or keeps_own_dtype(module) or (is_norm and keep_batchnorm_fp32):
            continue
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
                if tensor.grad is not None:
                    tensor.grad.data = tensor.grad.data.to(dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN needs the weights in one buffer


def find_scripted(model: nn.Module) -> list[str]:
    """Return the names of modules that torch.jit compiled, or that have a compiled function as attribute.

    Submodules of such a module are left out. The name of the model itself is "".
    """
    compiled = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
    names: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(not outer or name.startswith(f"{outer}.") for outer in names)
        parts = (module, *vars(module).values())
        if not is_inside and any(isinstance(part, compiled) for part in parts):
            names.append(name)
    return names


def save_in_fp32(model: nn.Module) -> list[RemovableHandle]:
    """Make `state_dict` of the model and its submodules fp32, so that a plain model can load it.

    Submodules that torch.jit compiled have no hook of their own; the hook of the model converts their values.

    Returns:
        The handles of the hooks.

    Raises:
        ValueError: torch.jit compiled the model itself, which supports no such hook.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("the state_dict of a model that is compiled by torch.jit cannot be made fp32")
    modules = (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))
    return [module.register_state_dict_post_hook(_to_fp32) for module in modules]


def _to_fp32(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
    for key, value in state.items():
        if key.startswith(prefix) and isinstance(value, Tensor) and value.dtype in SIXTEEN_BIT_DTYPES:
            state[key] = value.float()
