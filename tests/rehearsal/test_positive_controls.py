"""The rehearsal sees what it is for: each fault, put into a real step, is found with its place."""

from __future__ import annotations

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

from ampcompare.train.loop import Fit

HERE = "test_positive_controls.py"


# A step's logits come to these.


def item(logits: Tensor) -> None:
    logits.sum().item()


def to_cpu(logits: Tensor) -> None:
    logits.cpu()


def of_numbers(logits: Tensor) -> None:
    torch.tensor([1.0, 2.0], device="cuda")


def cpu_scalar(logits: Tensor) -> None:
    logits * torch.tensor(2.0)


def boolean_index(logits: Tensor) -> None:
    logits[logits > 0]


def synchronize(logits: Tensor) -> None:
    logits + 1
    torch.cuda.synchronize()


def unlike_lists(logits: Tensor) -> None:
    square = logits[:10]
    torch._foreach_add([square], [square.T])


def too_early(logits: Tensor) -> None:
    arrived = torch.empty(logits.shape, pin_memory=True)
    arrived.copy_(logits, non_blocking=True)
    arrived.tolist()


def cpu_work(logits: Tensor) -> None:
    torch.arange(3) + 1


FAULTS: dict[Callable[[Tensor], None], str] = {
    item: READ,
    boolean_index: READ,
    to_cpu: TO_HOST,
    of_numbers: TO_DEVICE,
    cpu_scalar: MIX,
    synchronize: WAIT,
    unlike_lists: STRIDES,
    too_early: EARLY,
}


def into_steps(*faults: Callable[[Any], None], captured: bool = False) -> Callable[[Fit], None]:
    """Let each training step meet faults; if `captured`, only the one that is being captured."""

    def hook(module: nn.Module, inputs: Any, logits: Tensor) -> None:
        if module.training and (not captured or torch.cuda.is_current_stream_capturing()):
            for fault in faults:
                fault(logits)

    return lambda fit: fit.trainer.model.register_forward_hook(hook) and None


def test_faults_in_a_step_are_noted_with_their_places():
    found = rehearse(("model.name=tiny", "max_steps=1", "log.every=10"), into_steps(*FAULTS))
    here = [c for c in found.contacts if c.place.startswith(HERE) and c.kind != QUEUED_TO_HOST]
    expected = [(kind, f"{HERE} {fault.__name__}") for fault, kind in FAULTS.items()]
    assert [(c.kind, c.place) for c in here] == expected


def freeze(fit: Fit) -> None:
    """The learning rate is a number."""

    def rate(logits: Tensor) -> None:
        fit.trainer.optimizer.param_groups[0]["lr"] = 0.1

    into_steps(rate, captured=True)(fit)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (into_steps(item, captured=True), f"{READ}: .* at {HERE} item < "),
        (into_steps(cpu_work, captured=True), f"{CPU_WORK}: .* at {HERE} cpu_work < "),
        (freeze, f"{FROZEN_RATE}: SGD.step at "),
    ],
)
def test_a_fault_in_a_capture_is_an_error_that_names_its_place(prepare: Callable[[Fit], None], said: str):
    with pytest.raises(RehearsalError, match=f"inside a capture: {said}"):
        rehearse(("model.name=tiny", "execution=cuda_graph", "epochs=2"), prepare)
