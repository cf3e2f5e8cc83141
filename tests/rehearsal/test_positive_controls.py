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


def into_steps(fault: Callable[[Any], None], *, captured: bool = False) -> Callable[[Fit], None]:
    """Let each training step meet a fault; if `captured`, only the one that is being captured."""

    def hook(module: nn.Module, inputs: Any, logits: Tensor) -> None:
        if module.training and (not captured or torch.cuda.is_current_stream_capturing()):
            fault(logits)

    return lambda fit: fit.trainer.model.register_forward_hook(hook) and None


ONE_STEP = ("model.name=tiny", "max_steps=1", "log.every=10")
GRAPH = ("model.name=tiny", "execution=cuda_graph", "epochs=2")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_step_is_noted_with_its_place(fault: Callable[[Tensor], None]):
    found = rehearse(ONE_STEP, into_steps(fault))
    here = [c for c in found.contacts if c.place.startswith(HERE) and c.kind != QUEUED_TO_HOST]
    assert [(c.kind, c.place) for c in here] == [(FAULTS[fault], f"{HERE} {fault.__name__}")]


@pytest.mark.parametrize(("fault", "kind"), [(item, READ), (of_numbers, CPU_WORK), (cpu_work, CPU_WORK)])
def test_a_fault_in_a_capture_is_an_error_that_names_its_place(fault: Callable[[Tensor], None], kind: str):
    with pytest.raises(RehearsalError, match=f"inside a capture: {kind}: .* at {HERE} {fault.__name__} < "):
        rehearse(GRAPH, into_steps(fault, captured=True))


def test_a_learning_rate_that_is_a_number_is_an_error_in_a_capture():
    def prepare(fit: Fit) -> None:
        def freeze(logits: Tensor) -> None:
            fit.trainer.optimizer.param_groups[0]["lr"] = 0.1

        into_steps(freeze, captured=True)(fit)

    with pytest.raises(RehearsalError, match=f"inside a capture: {FROZEN_RATE}: SGD.step at "):
        rehearse(GRAPH, prepare)


def transpose_gradient(fit: Fit) -> None:
    weight = next(p for p in fit.trainer.model.parameters() if p.dim() == 2)
    weight.register_hook(lambda gradient: gradient.T.contiguous().T)


def test_a_gradient_with_other_strides_than_its_parameter_is_noted():
    found = rehearse(ONE_STEP, transpose_gradient)
    (contact,) = [contact for contact in found.contacts if contact.kind == STRIDES]
    assert contact.place.endswith("backward")


def test_times_of_events_that_nobody_waited_for_are_an_error():
    def look(logits: Tensor) -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        logits + 1
        end.record()
        start.elapsed_time(end)

    with pytest.raises(RuntimeError, match="device not ready"):
        rehearse(ONE_STEP, into_steps(look))
