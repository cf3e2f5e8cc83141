"""A step as a CUDA graph, without a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcompare.train import graph
from ampcompare.train.trainer import StepResult


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Capture without a GPU: each launch runs the step and fills the tensors that the capture gave out."""
    calls: list[str] = []

    def capture(step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
        calls.append("capture")
        compute = weakref.WeakMethod(step)  # a real launch knows its graph alone, not the trainer
        if step.__name__ == "_add_captured":  # an evaluation, which adds to its sums in place
            answers = torch.zeros(16, dtype=torch.uint8)

            def evaluate() -> None:
                calls.append("launch")
                answers.copy_(compute()())  # type: ignore[misc]

            return evaluate, answers
        out = StepResult(torch.zeros(()), [(torch.zeros(8, 10), torch.zeros(8, dtype=torch.int64))], 0, {})

        def launch() -> None:
            calls.append("launch")
            result = compute()()  # type: ignore[misc]
            out.loss.copy_(result.loss)
            for kept, new in zip(out.outputs[0], result.outputs[0], strict=True):
                kept.copy_(new)
            for key, value in result.gradients.items():
                out.gradients.setdefault(key, torch.zeros_like(value)).copy_(value)

        return launch, out

    monkeypatch.setattr(graph, "capture", capture)
    return calls
