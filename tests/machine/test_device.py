"""What depends on the kind of device is answered in one room, also for a kind without float64."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from support.quick import ROOT
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.machine import device as answers
from ampcompare.machine.device import Memory, has_float64, marker, wait_for
from ampcompare.train.build import build_trainer, make_loader
from ampcompare.train.fit import Fit

CPU, MPS = torch.device("cpu"), torch.device("mps")


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


def test_mps_has_no_float64_and_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    waits: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("here"))
    assert [has_float64(device) for device in (CPU, torch.device("cuda"), MPS)] == [True, True, False]
    wait_for(CPU)
    assert waits == []
    wait_for(MPS)
    assert isinstance(marker(MPS)(), float)
    assert len(waits) == 2


def test_mps_keeps_no_peak_and_none_is_logged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 * 2**20)
    memory = Memory(MPS)
    memory.reset()
    assert (memory.peak_mib(), memory.reserved_mib()) == (None, 3)


# In precision/ the kind is what autocast and the casts are for.
ROOMS = ("train", "checkpoint", "tracking", "measure", "data", "program", "config", "experiment.py")
ASKS = {"type", "is_cuda", "is_cpu", "is_mps"}


def asks_for_the_kind(node: ast.AST) -> bool:
    """`device.type`, `x.device.type`, `torch.device(...).type`, `x.is_cuda`."""
    if not isinstance(node, ast.Attribute) or node.attr not in ASKS:
        return False
    of = node.value.func if isinstance(node.value, ast.Call) else node.value
    name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
    return node.attr != "type" or name.endswith("device")


def test_training_asks_the_machine_what_kind_of_device_it_has():
    source = ROOT / "src" / "ampcompare"
    files: list[Path] = []
    for room in ROOMS:
        files += sorted((source / room).rglob("*.py")) if (source / room).is_dir() else [source / room]
    asking = {f.name for f in files for node in ast.walk(ast.parse(f.read_text())) if asks_for_the_kind(node)}
    assert asking == set()
    tree = ast.parse((source / "machine" / "device.py").read_text())
    assert any(asks_for_the_kind(node) for node in ast.walk(tree))  # so it would be found
