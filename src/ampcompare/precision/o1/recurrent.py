"""Recurrent networks in half, as apex ran them: what `torch.nn.modules.rnn` calls is cast, nothing else is.

LSTM, GRU and RNN take their inputs, hidden states and the list of their weights in half, the cells likewise.
`torch.lstm` and its like, which no module calls, are PyTorch's own.

Source: `apex/amp/{rnn_compat,wrap}.py` at the last commit that had them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.o1.rules import SEQUENCES, Function, half, to_half
from ampcompare.precision.o1.weights import STATE, flat_weights

NETWORKS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class CastingFunctions:
    """Stands for the module `_VF` in `torch.nn.modules.rnn`, and there only: others may import `_VF`, too."""

    def __init__(self, original: Any) -> None:
        self.__wrapped__ = original
        for name in NETWORKS:
            setattr(self, name, network(_later(original, name)))
            setattr(self, f"{name}_cell", half(_later(original, f"{name}_cell")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def _later(namespace: Any, name: str) -> Function:
    """The function that has this name when it is called: somebody may replace it meanwhile."""

    @functools.wraps(getattr(namespace, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(namespace, name)(*args, **kwargs)

    return call


def network(function: Function) -> Function:
    """Run in half: the weights, which are the last sequence of the arguments, as one flat copy."""
    halved = half(function)  # what is half already stays as it is

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            if "params" in kwargs:
                kwargs = {**kwargs, "params": _flat(kwargs["params"])}
            else:
                last = max((i for i, x in enumerate(args) if isinstance(x, SEQUENCES)), default=None)
                if last is not None:
                    args = (*args[:last], _flat(args[last]), *args[last + 1 :])
        return halved(*args, **kwargs)

    return wrapper


def _flat(weights: Sequence[Tensor]) -> list[Tensor]:
    are_ours = weights and all(
        w.dtype.is_floating_point and w.device.type == STATE.device_type for w in weights
    )
    if not are_ours or all(w.dtype is STATE.half for w in weights):
        return list(weights)
    return flat_weights(weights) or [to_half(w) for w in weights]


def check_input(function: Function) -> Function:
    """`RNNBase.check_input` for input of another type than the weights: the casts make them one type."""

    @functools.wraps(function)
    def wrapper(self: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if STATE.on and input.dtype.is_floating_point and input.device.type == STATE.device_type:
            # Its shape is what is left to be checked.
            input = torch.empty_like(input, dtype=self._flat_weights[0].dtype, device="meta")
        return function(self, input, *args, **kwargs)

    return wrapper


RULES: dict[str, Callable[[Any], Any]] = {"recurrent": CastingFunctions, "recurrent_input": check_input}
