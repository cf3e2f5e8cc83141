"""Read trained weights from a file, and load them into a network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.errors import UserError, reason
from ampcompare.runtime.formatting import some

OPTION = "--weights"
NESTED = ("model", "state_dict", "model_state_dict")  # keys under which programs save a state dict
PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict by name: of a checkpoint of a run, a torch file or safetensors.

    Raises:
        UserError: The file cannot be read, or has no state dict.
    """
    if path.suffix == ".safetensors":
        content = _read_safetensors(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as problem:  # damage raises a dozen types of exception
            raise UserError(
                f"{OPTION} {path}: cannot be read with weights_only=True ({reason(problem)}); "
                "save a state dict: torch.save(model.state_dict(), FILE)"
            ) from None
    tensors = _tensors_in(content)
    if not tensors:
        raise UserError(
            f"{OPTION} {path}: has no state dict; expected a checkpoint of a run, or the tensors by name, as "
            "torch.save(model.state_dict(), FILE) writes them"
        )
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _tensors_in(content: Any) -> dict[str, Tensor]:
    """Return the tensors of a state dict that a file has, alone or beside other things; empty without one."""
    if not isinstance(content, Mapping):
        return {}
    nested = (content[key] for key in NESTED if isinstance(content.get(key), Mapping))
    state = next(nested, content)
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UserError(f"{OPTION} {path}: needs the package safetensors; install it") from None
    try:
        return load_file(path)
    except Exception as problem:  # the package's own error, or one of the system
        raise UserError(f"{OPTION} {path}: cannot be read ({reason(problem)})") from None


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy the weights into a network.

    Raises:
        UserError: Names or shapes differ from those of the network.
    """
    own = model.state_dict()
    problems = []
    missing = [name for name in own if name not in weights]
    if missing:
        problems.append(f"names that only the network has: {some(missing)}")
    unexpected = [name for name in weights if name not in own]
    if unexpected:
        problems.append(f"names that only the file has: {some(unexpected)}")
    shapes = [
        f"{name} {list(weights[name].shape)} in the file, {list(tensor.shape)} in the network"
        for name, tensor in own.items()
        if isinstance(tensor, Tensor) and name in weights and weights[name].shape != tensor.shape
    ]
    if shapes:
        problems.append(f"other shapes: {some(shapes)}")
    if problems:
        raise UserError(f"{OPTION} {path}: does not fit the network; {'; '.join(problems)}")
    model.load_state_dict(dict(weights))
