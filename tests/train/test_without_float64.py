"""A training on a device without float64, as MPS is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.training import fit
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.machine import device


class Refusing(TorchDispatchMode):
    """As a device that has no float64: an op that gives such a tensor is a TypeError."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves(result)):
            raise TypeError(f"{func}: this device has no float64")
        return result


@pytest.mark.parametrize("backend", ["none", "native_bf16", "bf16"])
def test_a_training_makes_no_float64_on_a_device_that_has_none(backend: str, monkeypatch: pytest.MonkeyPatch):
    """One with rows, gradients looked at, and evaluations."""
    monkeypatch.setattr(device, "has_float64", lambda device: False)
    made, rows = fit(f"backend={backend}", "training.clip_norm=5", "log.every=2")
    with Refusing():
        made.run()
        made.load_state_dict(made.state_dict())
    logged = set().union(*rows)
    assert {"train/loss", "eval/accuracy", "grad/underflow_fraction", "grad/exponents", "grad/norm"} <= logged
