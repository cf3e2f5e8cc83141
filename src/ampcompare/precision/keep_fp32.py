"""Modules that are kept in fp32 under any backend (`precision.keep_fp32`), with their submodules.

A kept module casts its inputs to fp32, computes with fp32 weights and without the backend's casts, and
returns fp32. A backend with 16-bit weights casts nothing between modules. There the other modules with
weights cast their inputs to the dtype of their weights.

A module that has several names is kept if a pattern matches any of them. Under a backend with 16-bit weights,
modules that share a weight with a kept module are kept as well, since a weight has one dtype.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES, cast_floating, is_kept_in_fp32, wrap_forward

OPTION = "precision.keep_fp32"
_MAX_SHOWN = 8


class KeepFp32Error(ValueError):
    """A module cannot be kept in fp32; the message is one line."""


def keep_in_fp32(
    model: nn.Module,
    patterns: Sequence[str] | str,
    *,
    half_weights: bool,
    casts_off: Callable[[str], AbstractContextManager[Any]],
    device_type: str,
) -> list[str]:
    """Mark the modules that the patterns match as kept, and make their forward compute in fp32.

    Args:
        model: The network, before the backend converts it.
        patterns: Names of modules with "*" as wildcard, as a list or separated by commas.
        half_weights: Whether the backend has 16-bit weights, so that modules that share a weight are kept
            together.
        casts_off: Returns the context that turns off the backend's casts, for a device type.
        device_type: Such as "cuda".

    Returns:
        The names of the kept modules, without their submodules.

    Raises:
        KeepFp32Error: A pattern matches no module, or a module is compiled by torch.jit.
    """
    names = match_modules(model, patterns)
    by_name = dict(model.named_modules(remove_duplicate=False))
    kept = {inner for name in names for inner in by_name[name].modules()}
    while True:
        tied = _find_tied_modules(model, kept, half_weights)
        if not tied:
            break
        names += [name for name, module in by_name.items() if module in tied]
        kept |= {inner for module in tied for inner in module.modules()}
    for module in kept:
        if isinstance(module, torch.jit.ScriptModule):
            raise KeepFp32Error(
                f"{OPTION}: {type(module).__name__} is compiled by torch.jit, "
                "and its forward cannot be changed; leave it out"
            )
        vars(module)["kept_in_fp32"] = True
        wrap_forward(
            module,
            inputs=torch.float32,
            outputs=torch.float32,
            context=casts_off,
            device_type=device_type,
        )
    return [name or "(the whole network)" for name in names]


def cast_inputs_to_weights(model: nn.Module, dtypes: Collection[torch.dtype] = SIXTEEN_BIT_DTYPES) -> None:
    """Make each module with weights in one of the dtypes cast its inputs to the dtype of its weights.

    Raises:
        KeepFp32Error: The backend converted the weights of a kept module to 16 bits.
    """
    for module in model.modules():
        weights = [p.dtype for p in module.parameters(recurse=False) if p.dtype in dtypes]
        if is_kept_in_fp32(module):
            if any(dtype in SIXTEEN_BIT_DTYPES for dtype in weights):
                raise KeepFp32Error(
                    f"{OPTION}: the backend converted weights to 16 bits that must stay in fp32; "
                    "call convert_network in its convert"
                )
        elif weights:
            hook = functools.partial(_cast_inputs, weights[0])  # can be copied
            module.register_forward_pre_hook(hook, with_kwargs=True)


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Cast a module's inputs, as a forward pre-hook."""
    return cast_floating((args, kwargs), dtype)


def _list_own_tensors(module: nn.Module) -> set[Tensor]:
    return {*module.parameters(recurse=False), *module.buffers(recurse=False)}


def _find_tied_modules(model: nn.Module, kept: set[nn.Module], half_weights: bool) -> set[nn.Module]:
    """Return the modules that must have the same dtype as the kept ones.

    These are modules that read the weights of a kept module without calling it, and, under a backend with
    16-bit weights, modules that share a weight with a kept one.
    """
    others = [module for module in model.modules() if module not in kept]
    attentions = [module for module in others if isinstance(module, nn.MultiheadAttention)]
    tied: set[nn.Module] = {attention for attention in attentions if attention.out_proj in kept}
    if half_weights:
        kept_tensors = {tensor for module in kept for tensor in _list_own_tensors(module)}
        tied |= {module for module in others if _list_own_tensors(module) & kept_tensors}
    return tied


def match_modules(model: nn.Module, patterns: Sequence[str] | str) -> list[str]:
    """Return the names of the modules that the patterns match, in the network's order.

    The name of the network itself is "". Submodules of a matched module are left out.

    Raises:
        KeepFp32Error: A pattern matches no module. The message has similar names.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    >>> match_modules(net, "*.0"), match_modules(net, ["1", "1.0"]), match_modules(net, "*")
    (['1.0'], ['1'], [''])
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parts = patterns.split(",") if isinstance(patterns, str) else patterns
    matched: set[str] = set()
    for pattern in filter(None, map(str.strip, parts)):
        new = {name for name in names if fnmatchcase(name, pattern)}
        if not new:
            raise KeepFp32Error(
                f"{OPTION}={pattern!r}: no module of the network has such a name; "
                f"{_suggest_names(pattern, names[1:])}"
            )
        matched |= new
    if "" in matched:
        return [""]
    below = tuple(f"{name}." for name in matched)
    return [name for name in names if name in matched and not name.startswith(below)]


def _suggest_names(pattern: str, known: Sequence[str]) -> str:
    """Return a hint with similar names, or with the names of the top modules."""
    ends = dict.fromkeys(f"*.{name.rpartition('.')[2]}" for name in known if "." in name)
    near = get_close_matches(pattern, [*known, *ends])
    if near:
        return f"did you mean {' or '.join(near)}?"
    top = [name for name in known if "." not in name]
    if not top:
        return "it has no modules in it"
    shown = ", ".join(top[:_MAX_SHOWN])
    return f"it has {shown}, ..." if len(top) > _MAX_SHOWN else f"it has {shown}"
