"""The rehearsal sees what it is for: each fault, put into a real step, is found with its place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.rehearsal.stage import rehearse
from support.rehearsal.watch import (
    CPU_WORK,
    EARLY,
    FROZEN_RATE,
    MIX,
    QUEUED_TO_HOST,
    READ,
    STRIDES,
    TO_DEVICE,
    TO_HOST,
    WAIT,
    RehearsalError,
)
from torch import Tensor, nn

from ampcompare.training.loop import TrainingLoop

HERE = "test_positive_controls.py"


def too_early(logits: Tensor) -> None:
    arrived = torch.empty(logits.shape, pin_memory=True)
    arrived.copy_(logits, non_blocking=True)
    arrived.tolist()


# A step's logits come to these.
FAULTS: list[tuple[str, Callable[[Tensor], Any]]] = [
    (READ, lambda logits: logits.sum().item()),
    (TO_HOST, lambda logits: logits.cpu()),
    (TO_DEVICE, lambda logits: torch.tensor([1.0, 2.0], device="cuda")),
    (MIX, lambda logits: logits * torch.tensor(2.0)),
    (WAIT, lambda logits: (logits + 1, torch.cuda.synchronize())),
    (STRIDES, lambda logits: torch._foreach_add([logits[:10]], [logits[:10].T])),
    (EARLY, too_early),
]


def into_steps(*faults: Callable[[Any], Any], captured: bool = False) -> Callable[[TrainingLoop], None]:
    """Let each training step meet faults; if `captured`, only the one that is being captured."""

    def hook(module: nn.Module, inputs: Any, logits: Tensor) -> None:
        if module.training and (not captured or torch.cuda.is_current_stream_capturing()):
            for fault in faults:
                fault(logits)

    return lambda fit: fit.trainer.model.register_forward_hook(hook) and None


def test_faults_in_a_step_are_noted_with_their_place():
    words = ("model.name=tiny", "max_steps=1", "log.every=10")
    found = rehearse(words, into_steps(*(fault for _, fault in FAULTS)))
    here = [c.kind for c in found.contacts if c.place.startswith(HERE) and c.kind != QUEUED_TO_HOST]
    assert here == [kind for kind, _ in FAULTS]


def freeze(fit: TrainingLoop) -> None:
    """Make the learning rate a Python number."""
    into_steps(lambda logits: fit.trainer.optimizer.param_groups[0].update(lr=0.1), captured=True)(fit)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (into_steps(FAULTS[0][1], captured=True), f"{READ}: .* at {HERE} "),
        (into_steps(lambda logits: torch.arange(3) + 1, captured=True), f"{CPU_WORK}: .* at {HERE} "),
        (freeze, f"{FROZEN_RATE}: SGD.step at "),
    ],
)
def test_a_fault_in_a_capture_is_an_error_that_names_its_place(
    prepare: Callable[[TrainingLoop], None], said: str
):
    with pytest.raises(RehearsalError, match=f"inside a capture: {said}"):
        rehearse(("model.name=tiny", "execution=cuda_graph", "epochs=2"), prepare)
