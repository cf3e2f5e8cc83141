"""A model's forward with casts of inputs and outputs and a context around it."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch
from torch import nn

from ampcompare.precision.casting import (
    cast_floating,
)

HALF, FLOAT = torch.float16, torch.float32
Pair = namedtuple("Pair", "a b")


class Output(OrderedDict):
    """A model's output with items and attributes, as libraries of transformers have it."""

    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


def test_floating_tensors_are_cast_at_any_depth_and_nothing_else_changes() -> None:
    x, double, count = torch.zeros(2), torch.zeros(2, dtype=torch.float64), torch.arange(2)
    given = {"b": [x, (count, Pair(double, None))], "a": 1.5, "c": torch.Size([2, 3]), "d": "word"}
    found = cast_floating(given, HALF)
    assert list(found) == list(given)
    assert [found["a"], found["c"], found["d"]] == [1.5, (2, 3), "word"]
    one, (same, two) = found["b"]
    assert type(two) is Pair
    assert (one.dtype, same is count, two.a.dtype, two.b) == (HALF, True, HALF, None)
    assert given["b"][0] is x
    assert type(cast_floating(torch.max(torch.rand(2, 3), dim=1), HALF)).__name__ == "max"


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
