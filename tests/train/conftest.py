"""A step as a CUDA graph, without a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcompare.train import captured
from ampcompare.train.meter import Result


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Capture without a GPU: each launch runs the step and fills the tensors that the capture gave out."""
    calls: list[str] = []

    def capture(step: Any, device: torch.device) -> tuple[Callable[[], None], Any]:
        calls.append("capture")
        compute = weakref.WeakMethod(step.func)  # a real launch knows its graph alone, not the trainer
        (plan,) = step.args
        out = Result(torch.zeros(()), 0, [(torch.zeros(8, dtype=torch.bool), torch.zeros(8).long())], {})

        def launch() -> None:
            calls.append("launch")
            result = compute()(plan)  # type: ignore[misc]
            out.loss.copy_(result.loss)
            for kept, new in zip(out.right[0], result.right[0], strict=True):
                kept.copy_(new)
            for key, value in result.looks.items():
                out.looks.setdefault(key, torch.zeros_like(value)).copy_(value)  # type: ignore[attr-defined]

        return launch, out

    monkeypatch.setattr(captured, "capture", capture)
    return calls
