"""Modules kept in fp32 under any backend (`precision.keep_fp32`), each with all that is below it.

A kept module takes fp32, computes with the backend's casts off and with fp32 weights, and gives fp32. Under a
backend with half weights, which casts nothing between modules, the other modules with weights cast what they
are given to their weights' type.

A module is kept wherever it is used, if any of its names is matched. Where weights are half, a weight has one
type: what shares one with a kept module is kept, too.
"""

import functools
from collections.abc import Callable, Sequence
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
    """What was asked to be kept cannot be; the message is one line."""


def keep_in_fp32(
    model: nn.Module,
    patterns: Sequence[str] | str,
    *,
    half_weights: bool,
    casts_off: Callable[[str], AbstractContextManager[Any]],
    device_type: str,
) -> list[str]:
    """Mark the modules that the patterns match as kept, and have their forward compute in fp32.

    Args:
        model: The network, before the backend converts it.
        patterns: Names of modules, with stars; a list or separated by commas.
        half_weights: Whether the backend makes weights half, so that modules that share a weight are kept
            together.
        casts_off: The context in which the backend casts nothing, given a device type.
        device_type: Such as "cuda".

    Returns:
        The names of the kept modules, without those below them.

    Raises:
        KeepFp32Error: A pattern matches no module, or a module is compiled by torch.jit.
    """
    names = match_modules(model, patterns)
    by_name = dict(model.named_modules(remove_duplicate=False))
    kept = {inner for name in names for inner in by_name[name].modules()}
    while more := _find_tied_modules(model, kept, half_weights):
        names += [name for name, module in by_name.items() if module in more]
        kept |= {inner for module in more for inner in module.modules()}
    how: dict[str, Any] = {"context": casts_off, "device_type": device_type}
    for module in kept:
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{type(module).__name__} is compiled by torch.jit, and its forward cannot be changed"
            raise KeepFp32Error(f"{OPTION}: {what}; leave it out")
        vars(module)["kept_in_fp32"] = True
        wrap_forward(module, inputs=torch.float32, outputs=torch.float32, **how)
    return [name or "(the whole network)" for name in names]


def cast_inputs_to_weights(model: nn.Module) -> None:
    """Have each module with half weights, once converted, cast its inputs to the dtype of its weights.

    Raises:
        KeepFp32Error: The backend has made the weights of a kept module half.
    """
    for module in model.modules():
        weights = [p.dtype for p in module.parameters(recurse=False) if p.dtype in SIXTEEN_BIT_DTYPES]
        if weights and is_kept_in_fp32(module):
            why = "the backend has made weights half that are to stay in fp32"
            raise KeepFp32Error(f"{OPTION}: {why}; let its convert call convert_network")
        if weights:
            hook = functools.partial(_cast_inputs, weights[0])  # so that the model can be copied, pickled
            module.register_forward_pre_hook(hook, with_kwargs=True)


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A hook before the forward of what has half weights and is not kept."""
    return cast_floating((args, kwargs), dtype)


def _own_tensors(module: nn.Module) -> set[Tensor]:
    return {*module.parameters(recurse=False), *module.buffers(recurse=False)}


def _find_tied_modules(model: nn.Module, kept: set[nn.Module], half_weights: bool) -> set[nn.Module]:
    """What cannot be of another type than the kept modules: who reads the weights of one without calling it,
    and, where weights are half, who has one of its weights as well.
    """
    others = [module for module in model.modules() if module not in kept]
    found: set[nn.Module] = {m for m in others if isinstance(m, nn.MultiheadAttention) and m.out_proj in kept}
    if half_weights:
        theirs = {tensor for module in kept for tensor in _own_tensors(module)}
        found |= {module for module in others if _own_tensors(module) & theirs}
    return found


def match_modules(model: nn.Module, patterns: Sequence[str] | str) -> list[str]:
    """The names of the modules that the patterns match, in the network's order; "" is the network itself.

    Those below a matched one are left out. Raises KeepFp32Error for a pattern that matches none, with the names
    that are near.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    >>> matching(net, "*.0"), matching(net, ["1", "1.0"]), matching(net, "*")
    (['1.0'], ['1'], [''])
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parts = patterns.split(",") if isinstance(patterns, str) else patterns
    matched: set[str] = set()
    for pattern in filter(None, map(str.strip, parts)):
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            what = f"{OPTION}={pattern!r}: no module of the network has such a name"
            raise KeepFp32Error(f"{what}; {_suggest_names(pattern, names[1:])}")
        matched |= found
    if "" in matched:
        return [""]
    below = tuple(f"{name}." for name in matched)
    return [name for name in names if name in matched and not name.startswith(below)]


def _suggest_names(pattern: str, known: Sequence[str]) -> str:
    """What may have been meant, or what there is."""
    ends = dict.fromkeys(f"*.{name.rpartition('.')[2]}" for name in known if "." in name)
    if near := get_close_matches(pattern, [*known, *ends]):
        return f"did you mean {' or '.join(near)}?"
    top = [name for name in known if "." not in name]
    return f"it has {', '.join(top[:_MAX_SHOWN]) or 'no modules in it'}{', ...' if top[_MAX_SHOWN:] else ''}"
