"""The dtypes of a network's weights: trainable weights become fp32, frozen and quantised parts stay.

A network may arrive with 16-bit weights; `from_pretrained` loads many so. Every backend gets trainable
weights in fp32 and converts them itself if it has 16-bit weights. Otherwise "fp32" would train in 16 bits,
and the backends would start from different weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES, is_kept_in_fp32, keeps_own_dtype, name_dtype

FP32 = torch.float32
ONCE = {"once": True}  # as `extra` of a log message that a command prints once (`runtime.console`)
MAX_SHOWN = 3  # names of frozen parts in a message


def list_trainable_dtypes(parameters: Iterable[Tensor]) -> list[str]:
    """Return the names of the floating-point dtypes of all parameters that require a gradient, sorted."""
    trainable = [p for p in parameters if p.requires_grad and p.is_floating_point()]
    return sorted({name_dtype(p.dtype) for p in trainable})


def find_16bit_dtype(dtypes: Iterable[str]) -> str:
    """Return the first 16-bit dtype among names of dtypes, "" if there is none."""
    sixteen_bit = [name_dtype(dtype) for dtype in SIXTEEN_BIT_DTYPES]
    return next((dtype for dtype in dtypes if dtype in sixteen_bit), "")


def mark_frozen_parts(model: nn.Module) -> None:
    """Mark modules whose own weights keep their dtype under every backend (`casting.keeps_own_dtype`).

    These are quantised modules, and frozen modules with weights in another dtype than fp32 that
    `precision.keep_fp32` does not name.
    """
    for module in model.modules():
        weights = _list_weights(module)
        is_frozen_in_other_dtype = _is_frozen(module) and any(w.dtype is not FP32 for w in weights)
        if _is_quantised(module) or (is_frozen_in_other_dtype and not is_kept_in_fp32(module)):
            vars(module)["keeps_own_dtype"] = True


def convert_to_fp32(model: nn.Module) -> dict[str, int]:
    """Convert trainable weights to fp32 in place, with the buffers that had the same dtype.

    The parameters stay the same objects, so an optimizer that has them stays valid. A module with trainable
    weights is converted with its frozen ones, which have to fit them. Modules that `mark_frozen_parts` marked
    stay, and so do all buffers of parts without trainable weights.

    Returns:
        The number of converted trainable parameters by the dtype that they had.
    """
    counts: Counter[torch.dtype] = Counter()
    converted_modules = [module for module in model.modules() if not keeps_own_dtype(module)]
    for module in converted_modules:
        for parameter in module.parameters(recurse=False):
            is_other = parameter.is_floating_point() and parameter.dtype is not FP32
            if is_other and not is_lazy(parameter):
                counts[parameter.dtype] += parameter.requires_grad
                _convert(parameter)
    frozen_buffers = _find_frozen_buffers(model)
    for module in converted_modules:
        for buffer in module.buffers(recurse=False):
            if counts[buffer.dtype] and buffer not in frozen_buffers:
                _convert(buffer)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN needs the weights in one buffer
    return {name_dtype(dtype): count for dtype, count in counts.items() if count}


def _convert(tensor: Tensor) -> None:
    tensor.data = tensor.data.to(FP32)
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(FP32)


def _find_frozen_buffers(model: nn.Module) -> set[Tensor]:
    """Return the buffers of modules that have parameters, themselves or inside, and no trainable one."""
    buffers: set[Tensor] = set()
    for module in model.modules():
        parameters = [*module.parameters()]
        if parameters and not any(p.requires_grad for p in parameters) and not is_kept_in_fp32(module):
            buffers |= {*module.buffers()}
    return buffers


def has_mixed_dtypes(model: nn.Module) -> bool:
    """Return whether marked modules have floating-point weights in another dtype than the rest."""
    dtypes: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for module in model.modules():
        if not _is_quantised(module):
            weights = [p for p in module.parameters(recurse=False) if p.is_floating_point()]
            dtypes[keeps_own_dtype(module)] |= {p.dtype for p in weights}
    return bool(dtypes[True]) and len(dtypes[True] | dtypes[False]) > 1


def describe_frozen_parts(model: nn.Module) -> dict[str, str]:
    """Return the dtypes of frozen or quantised parts that are not fp32, by the name of the module.

    Modules in one part of the network that have the same dtypes are one entry, under the name of the part.
    """
    parts: dict[str, str] = {}
    uniform: tuple[str, ...] = ()  # the beginnings of names inside parts that are one entry
    for raw_name, module in model.named_modules():
        name = raw_name.removeprefix("module.")  # of DDP
        if name.startswith(uniform):
            continue
        own, *others = {_describe_frozen(inner) for inner in module.modules() if _list_weights(inner)} or {""}
        if name and own and not others:
            parts[name] = own
            uniform += (f"{name}.",)
        elif _describe_frozen(module):
            parts[name] = _describe_frozen(module)
    return parts


def _describe_frozen(module: nn.Module) -> str:
    """Return the dtypes of a module's own weights if they are frozen or quantised, and not fp32, else ""."""
    dtypes = sorted({name_dtype(weight.dtype) for weight in _list_weights(module)})
    is_described = (_is_frozen(module) or _is_quantised(module)) and dtypes != ["float32"]
    return ", ".join(dtypes) if is_described else ""


def _list_weights(module: nn.Module) -> list[Tensor]:
    """Return the module's own parameters, and the buffers of a quantised module, which may be its weights."""
    weights: list[Tensor] = [*module.parameters(recurse=False)]
    if _is_quantised(module):
        weights += module.buffers(recurse=False)
    return weights


def _is_frozen(module: nn.Module) -> bool:
    """Return whether the module has parameters of its own, and none of them requires a gradient."""
    parameters = [*module.parameters(recurse=False)]
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _is_quantised(module: nn.Module) -> bool:
    """Return whether the module trains nothing and has a tensor with one byte an element, such as int8."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    is_trained = any(t.requires_grad for t in own)
    return not is_trained and any(t.dtype.itemsize == 1 and t.dtype is not torch.bool for t in own)


def find_lazy_modules(model: nn.Module) -> list[str]:
    """Return the names of the modules whose weights get their shapes in the first forward."""
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if any(is_lazy(t) for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
    ]


def find_complex_weights(model: nn.Module) -> list[str]:
    """Return the names of the trainable weights that are complex numbers."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.is_complex()]


def describe_conversion(converted: Mapping[str, int], frozen: Mapping[str, str]) -> str:
    """Return the message that a network's weights were converted to fp32.

    Args:
        converted: What `convert_to_fp32` returned.
        frozen: What `describe_frozen_parts` returned.
    """
    line = (
        f"{sum(converted.values())} trainable weight tensors of the network arrive in "
        f"{' and '.join(converted)} and are converted to float32 before the backend prepares them; "
        "precision.weights=keep leaves them"
    )
    if not frozen:
        return line
    named = [f"{name or '(the network)'} ({dtype})" for name, dtype in frozen.items()]
    shown = ", ".join(named[:MAX_SHOWN])
    if len(named) > MAX_SHOWN:
        shown = f"{shown}, ..."
    return f"{line}; frozen or quantised parts keep their dtype: {shown}"
