"""A model's forward with casts of inputs and outputs and a context around it."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict, namedtuple
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ampcompare.precision.casting import (
    WrappedForward,
    cast_floating,
    wrap_forward,
)

HALF, FLOAT = torch.float16, torch.float32
Pair = namedtuple("Pair", "a b")
entered: list[str] = []


@contextmanager
def noted(*, name: str):
    entered.append(f"in {name}")
    try:
        yield
    finally:
        entered.append(f"out {name}")


class Echo(nn.Module):
    """Gives back what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, *args, **kwargs):
        return (args, kwargs) if kwargs else args[0] if len(args) == 1 else args


class Batch:
    """A batch class of the user's, as apex's documentation has it."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, dtype: torch.dtype) -> Batch:
        return Batch(self.x.to(dtype))


class Output(OrderedDict):
    """A model's output with items and attributes, as libraries of transformers have it."""

    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


def tree_of(leaf):
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.tuples(inner, inner).map(lambda two: Pair(*two)),
        ),
        max_leaves=8,
    )


LEAVES = st.sampled_from(
    [
        torch.zeros(2),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.int64),
        True,
        1.5,
        "word",
        None,
    ]
)


def check_same_but_cast(new, old) -> None:
    assert type(new) is type(old)
    if isinstance(old, torch.Tensor):
        assert new.dtype is (HALF if old.is_floating_point() else old.dtype)
    elif isinstance(old, dict):
        assert list(new) == list(old)
        for key in old:
            check_same_but_cast(new[key], old[key])
    elif isinstance(old, list | tuple):
        assert len(new) == len(old)
        for one, other in zip(new, old, strict=True):
            check_same_but_cast(one, other)
    else:
        assert new is old


@given(tree_of(LEAVES))
def test_floating_tensors_are_cast_at_any_depth_and_nothing_else_changes(tree) -> None:
    check_same_but_cast(cast_floating(tree, HALF), tree)


def test_containers_of_the_caller_are_not_changed() -> None:
    inner = [torch.zeros(1)]
    given_ = {"x": inner}
    cast_floating(given_, HALF)
    assert given_["x"] is inner
    assert inner[0].dtype is FLOAT


def test_torch_s_own_tuples_keep_their_type() -> None:
    most = cast_floating(torch.max(torch.rand(2, 3), dim=1), HALF)
    assert most.values.dtype is HALF
    assert most.indices.dtype is torch.int64
    assert cast_floating(torch.Size([2, 3]), HALF) == torch.Size([2, 3])


def test_packed_sequence_is_cast() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.zeros(3, 2), torch.zeros(1, 2)])
    cast = cast_floating(packed, HALF)
    assert cast.data.dtype is HALF
    assert cast.batch_sizes.tolist() == [2, 1, 1]


def test_output_with_attributes_keeps_them_in_the_new_type() -> None:
    output = Output()
    output["loss"] = torch.zeros(1, dtype=HALF)
    cast = cast_floating(output, FLOAT)
    assert type(cast) is Output
    assert cast.loss.dtype is FLOAT
    assert output.loss.dtype is HALF


def test_module_and_class_among_the_arguments_are_left_alone() -> None:
    model = nn.Linear(1, 1)
    assert cast_floating(model, HALF) is model
    assert model.weight.dtype is FLOAT
    assert cast_floating(torch.Tensor, HALF) is torch.Tensor


def test_inputs_are_cast_positional_and_named() -> None:
    model = Echo()
    wrap_forward(model, inputs=HALF)
    (x, number), named = model(torch.zeros(1), 3, y={"z": torch.zeros(1)}, n=torch.arange(2))
    assert x.dtype is HALF
    assert number == 3
    assert named["y"]["z"].dtype is HALF
    assert named["n"].dtype is torch.int64


def test_outputs_are_cast_in_their_containers() -> None:
    model = Echo()
    wrap_forward(model, outputs=HALF)
    assert model([torch.zeros(1)])[0].dtype is HALF


def test_forward_without_options_passes_everything_through() -> None:
    x, model = torch.zeros(1), Echo()
    assert WrappedForward(model)(x) is x


def test_gradient_flows_back_in_the_type_of_the_input() -> None:
    model = Echo()
    wrap_forward(model, inputs=HALF, outputs=FLOAT)
    x = torch.ones(2, requires_grad=True)
    model(x).sum().backward()
    assert x.grad.dtype is FLOAT
    assert x.grad.tolist() == [1, 1]


def test_context_is_around_the_forward_with_its_options() -> None:
    entered.clear()
    model = Echo()
    wrap_forward(model, context=noted, name="here")
    assert entered == []
    model(1)
    assert entered == ["in here", "out here"]


def test_hooks_still_run() -> None:
    model = Echo()
    wrap_forward(model, inputs=HALF)
    model.register_forward_hook(lambda module, args, output: output + 1)
    assert model(torch.zeros(1)).item() == 1


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copy_s_forward_is_its_own(how) -> None:
    model = nn.Linear(2, 1)
    wrap_forward(model, outputs=HALF)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.fill_(7)
    out = twin(torch.ones(1, 2))
    assert (out.item(), out.dtype) == (7, HALF)
    assert model(torch.zeros(1, 2)).item() != 7
