"""A training on a device without float64, as MPS is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.machine import device as answers
from ampcompare.train.build import build_trainer
from ampcompare.train.loaders import make_loader
from ampcompare.train.loop import Fit

CPU = torch.device("cpu")


class Refusing(TorchDispatchMode):
    """As a device that has no float64: an op that gives such a tensor is a TypeError."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves(result)):
            raise TypeError(f"{func}: this device has no float64")
        return result


def train(quick_overrides: tuple[str, ...], *words: str) -> list[dict[str, Any]]:
    """A training with rows, gradients looked at, and evaluations; on a device without float64."""
    config = load_config(None, [*quick_overrides, "training.clip_norm=5", "data.train_limit=80", *words])
    data = build_dataset("synthetic", None, 80, config.data.test_limit)
    loader, test = (
        make_loader(config, part, CPU, training=part is data.train) for part in (data.train, data.test)
    )
    rows: list[dict[str, Any]] = []
    with Refusing():
        fit = Fit(build_trainer(config, data, loader, CPU), loader, test, config, on_row=rows.append)
        fit.run()
        fit.load_state_dict(fit.state_dict())
    return rows


@pytest.mark.parametrize("words", [("backend=none",), ("backend=native_bf16",), ("backend=bf16",)])
def test_a_training_makes_no_float64_on_a_device_that_has_none(
    quick_overrides: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(answers, "has_float64", lambda device: False)
    rows = train(quick_overrides, *words)
    logged = set().union(*rows)
    assert {"train/loss", "eval/accuracy", "grad/underflow_fraction", "grad/exponents", "grad/norm"} <= logged
