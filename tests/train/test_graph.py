"""The step as one CUDA graph. On a CPU the capture is played: recorded, then run again at each launch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.properties import backends
from support.training import fit, timeless

from ampcompare.precision import REGISTRY
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


@backends(REGISTRY)
def test_a_graphed_run_logs_what_an_eager_one_does(backend: str, played: list[str]):
    words = (
        f"backend={backend}",
        "precision.init_scale=65536",
        "training.clip_norm=5",
        "diagnostics.every=7",
    )
    eager, eager_rows = fit(*words)
    eager.run()
    graphed, graphed_rows = fit(*words, "execution=cuda_graph")
    graphed.run()
    assert timeless(graphed_rows) == timeless(eager_rows)
    # Three epochs of six batches, the last of each short. Not launched: three at first, short ones, looks (7,
    # 14).
    assert played.count("capture") == 1
    assert played.count("launch") == 18 - 3 - 3 - 2


def test_the_capture_is_no_step_to_time(played: list[str]):
    made, _ = fit("execution=cuda_graph", "diagnostics.every=null")
    loader = made.train
    results = [made.trainer.step([plan]) for plan in loader.plans(0)]  # type: ignore[attr-defined]
    assert [r.cold for r in results] == [False, False, False, True, False, False]
    assert [r.samples for r in results] == [8] * 5 + [5]
