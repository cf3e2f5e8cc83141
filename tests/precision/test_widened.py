"""A step in fp32 arithmetic on weights and states that are kept in half precision."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from ampcompare.precision.stochastic import widened

KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(4, 3, 3, 3, generator=generator).to(memory_format=torch.channels_last)
    found = [image, torch.randn(5, generator=generator), torch.randn((), generator=generator)]
    return [nn.Parameter(x.to(dtype)) for x in found]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator).to(torch.bfloat16).to(p.dtype)


def step(optimizer: Optimizer) -> None:
    with widened(optimizer) as found:
        optimizer.step()
    assert found is not None
    torch._foreach_copy_(found.narrow, found.wide)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_is_the_one_in_fp32_from_the_same_numbers_rounded(kind: str) -> None:
    ours = weights(torch.bfloat16)
    optimizer = KINDS[kind](ours)
    for number in range(4):
        wide = [nn.Parameter(p.detach().float()) for p in ours]
        reference = KINDS[kind](wide)
        reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        give_gradients(ours, number)
        give_gradients(wide, number)
        step(optimizer)
        reference.step()
        for p, expected in zip(ours, wide, strict=True):
            assert torch.equal(p, expected.to(torch.bfloat16))
            for key, value in reference.state[expected].items():
                assert torch.equal(optimizer.state[p][key], value.to(optimizer.state[p][key].dtype)), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_stay_half_in_the_memory_that_they_had_and_steps_are_counted_in_fp32(dtype) -> None:
    parameters = weights(dtype)
    optimizer = KINDS["adam"](parameters)
    give_gradients(parameters, 0)
    step(optimizer)
    states = [v for p in parameters for k, v in optimizer.state[p].items() if k != "step"]
    assert {v.dtype for v in states} == {dtype}
    assert {optimizer.state[p]["step"].dtype for p in parameters} == {torch.float32}
    places = [v.data_ptr() for v in states]
    give_gradients(parameters, 1)
    step(optimizer)
    after = [v for p in parameters for k, v in optimizer.state[p].items() if k != "step"]
    assert [v.data_ptr() for v in after] == places
    assert [v.stride() for v in after[:2]] == [parameters[0].stride()] * 2


def test_behind_it_weights_and_gradients_are_what_and_where_they_were() -> None:
    parameters = weights(torch.bfloat16)
    optimizer = KINDS["nesterov"](parameters)
    give_gradients(parameters, 0)
    kept = [(p.data_ptr(), p.detach().clone(), p.grad) for p in parameters]
    with contextlib.suppress(KeyError), widened(optimizer):  # also where the step fails
        assert {p.dtype for group in optimizer.param_groups for p in group["params"]} == {torch.float32}
        optimizer.step()
        raise KeyError
    for p, (place, value, gradient) in zip(parameters, kept, strict=True):
        assert (p.data_ptr(), p.dtype) == (place, torch.bfloat16)
        assert torch.equal(p, value)
        assert p.grad is gradient
        assert optimizer.state[p]["momentum_buffer"].dtype is torch.bfloat16
    assert optimizer.param_groups[0]["params"] == parameters
    assert list(optimizer.state) == parameters


def test_what_hears_of_each_gradient_goes_on_hearing_of_it() -> None:
    """DDP reduces gradients in such hooks: without them each process would train a model of its own."""
    parameter = weights(torch.bfloat16)[0]
    optimizer = KINDS["nesterov"]([parameter])
    heard: list[int] = []
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: heard.append(1))
    for _ in range(3):
        parameter.sum().backward()
        step(optimizer)
    assert len(heard) == 3


def test_weights_in_fp32_and_those_without_gradient_are_left_to_the_optimizer() -> None:
    wide, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([wide, idle], lr=0.5)
    wide.grad = torch.ones(2)
    with widened(optimizer) as found:
        optimizer.step()
    assert found is None
    assert (wide.tolist(), idle.tolist()) == ([0.5, 0.5], [1.0, 1.0])
