"""The rehearsal sees what it is for: each fault, put into a real step, is found with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rehearsal.stage import rehearse
from rehearsal.watch import (
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

from ampcompare.train.fit import Fit

HERE = "test_positive_controls.py"


# A step's logits come to these.


def item(logits: Tensor) -> None:
    logits.sum().item()


def truth(logits: Tensor) -> None:
    assert not bool(logits.sum() > 0)


def to_list(logits: Tensor) -> None:
    logits.tolist()


def to_cpu(logits: Tensor) -> None:
    logits.cpu()


def to_pageable_memory(logits: Tensor) -> None:
    torch.empty(logits.shape).copy_(logits, non_blocking=True)


def of_numbers(logits: Tensor) -> None:
    torch.tensor([1.0, 2.0], device="cuda")


def of_pageable_memory(logits: Tensor) -> None:
    torch.ones(3).to("cuda", non_blocking=True)


def cpu_scalar(logits: Tensor) -> None:
    logits * torch.tensor(2.0)


def boolean_index(logits: Tensor) -> None:
    logits[logits > 0]


def boolean_write(logits: Tensor) -> None:
    copy = logits.detach().clone()
    copy[copy > 0] = copy.new_ones(copy.numel())


def nonzero(logits: Tensor) -> None:
    logits.nonzero()


def equal(logits: Tensor) -> None:
    torch.equal(logits, logits + 1)


def synchronize(logits: Tensor) -> None:
    torch.cuda.synchronize()


def unlike_lists(logits: Tensor) -> None:
    square = logits[:10]
    torch._foreach_add([square], [square.T])


def too_early(logits: Tensor) -> None:
    arrived = torch.empty(logits.shape, pin_memory=True)
    arrived.copy_(logits, non_blocking=True)
    arrived.tolist()


def too_early_in_part(logits: Tensor) -> None:
    (logits.to("cpu", non_blocking=True)[0] + 1).max().item()


def cpu_work(logits: Tensor) -> None:
    torch.arange(3) + 1


FAULTS: dict[Callable[[Tensor], None], str] = {
    item: READ,
    truth: READ,
    to_list: READ,
    to_cpu: TO_HOST,
    to_pageable_memory: TO_HOST,
    of_numbers: TO_DEVICE,
    of_pageable_memory: TO_DEVICE,
    cpu_scalar: MIX,
    boolean_index: READ,
    boolean_write: READ,
    nonzero: READ,
    equal: READ,
    synchronize: WAIT,
    unlike_lists: STRIDES,
    too_early: EARLY,
    too_early_in_part: EARLY,
}


def into_steps(fault: Callable[[Any], None], *, captured: bool = False) -> Callable[[Fit], None]:
    """Let each training step meet a fault; if `captured`, only the one that is being captured."""

    def hook(module: nn.Module, inputs: Any, logits: Tensor) -> None:
        if module.training and (not captured or torch.cuda.is_current_stream_capturing()):
            fault(logits)

    return lambda fit: fit.trainer.model.register_forward_hook(hook) and None


ONE_STEP = ("model.name=tiny", "max_steps=1", "log.every=10")
GRAPH = ("model.name=tiny", "execution=cuda_graph", "epochs=2")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_step_is_noted_with_its_place(fault: Callable[[Tensor], None]):
    found = rehearse(ONE_STEP, into_steps(fault))
    here = [c for c in found.contacts if c.place.startswith(HERE) and c.kind != QUEUED_TO_HOST]
    assert [(c.kind, c.place) for c in here] == [(FAULTS[fault], f"{HERE} {fault.__name__}")]


@pytest.mark.parametrize("fault", [*FAULTS, cpu_work], ids=lambda fault: fault.__name__)
def test_a_fault_in_a_capture_is_an_error_that_names_its_place(fault: Callable[[Tensor], None]):
    with pytest.raises(RehearsalError, match=f"inside a capture: .* at {HERE} {fault.__name__} < ") as caught:
        rehearse(GRAPH, into_steps(fault, captured=True))
    begins_on_the_host = {to_pageable_memory, of_pageable_memory, of_numbers, cpu_scalar, too_early, cpu_work}
    kind = CPU_WORK if fault in begins_on_the_host else FAULTS[fault]
    if fault is too_early_in_part:
        kind = QUEUED_TO_HOST
    assert str(caught.value).startswith(f"inside a capture: {kind}: ")


def test_a_learning_rate_that_is_a_number_is_an_error_in_a_capture():
    def prepare(fit: Fit) -> None:
        def freeze(logits: Tensor) -> None:
            fit.trainer.optimizer.param_groups[0]["lr"] = 0.1

        into_steps(freeze, captured=True)(fit)

    with pytest.raises(RehearsalError, match=f"inside a capture: {FROZEN_RATE}: SGD.step at "):
        rehearse(GRAPH, prepare)


def test_work_on_a_list_of_the_hosts_is_an_error_in_a_capture():
    """Such an op returns nothing."""

    def prepare(fit: Fit) -> None:
        counter = torch.zeros(())
        into_steps(lambda logits: torch._foreach_add_([counter], 1), captured=True)(fit)

    with pytest.raises(RehearsalError, match=f"inside a capture: {CPU_WORK}: aten._foreach_add_"):
        rehearse(GRAPH, prepare)


def transpose_gradient(fit: Fit) -> None:
    weight = next(p for p in fit.trainer.model.parameters() if p.dim() == 2)
    weight.register_hook(lambda gradient: gradient.T.contiguous().T)


def test_a_gradient_with_other_strides_than_its_parameter_is_noted():
    found = rehearse(ONE_STEP, transpose_gradient)
    (contact,) = [contact for contact in found.contacts if contact.kind == STRIDES]
    assert contact.place.endswith("backward")


def test_a_gradient_with_other_strides_is_an_error_in_a_capture():
    with pytest.raises(RehearsalError, match=f"inside a capture: {STRIDES}: gradient"):
        rehearse(GRAPH, transpose_gradient)


def test_a_fault_under_casts_by_wrapped_functions_is_found_at_its_place():
    found = rehearse([*ONE_STEP, "backend=apex_o1"], into_steps(item))
    assert [c.kind for c in found.contacts if c.place == f"{HERE} item"] == [READ]


def test_an_optimizer_that_is_not_fused_waits_for_the_device_at_each_step():
    found = rehearse(["model.name=tiny", "backend=apex_o1", "optimizer.fused=false", "epochs=1"])
    reads = [contact for contact in found.contacts if contact.place.endswith("step_unless")]
    assert [contact.kind for contact in reads] == [READ] * 4


def test_a_row_that_is_read_at_once_waits_for_all_that_is_queued():
    def at_once(fit: Fit) -> None:
        fit.rows.lag = False

    found = rehearse(["model.name=tiny", "epochs=1"], at_once)
    reads = [
        contact
        for contact in found.contacts
        if any(place.endswith("Reading.read") for place in contact.trail)
    ]
    assert WAIT in {contact.kind for contact in reads}


def test_times_of_events_that_nobody_waited_for_are_an_error():
    def look(logits: Tensor) -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        logits + 1
        end.record()
        start.elapsed_time(end)

    with pytest.raises(RuntimeError, match="device not ready"):
        rehearse(ONE_STEP, into_steps(look))
