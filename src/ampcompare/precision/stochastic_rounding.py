"""bf16 weights whose update is rounded stochastically, so that what is too small for one step is not lost.

A number between two neighbours in bf16 goes to the upper one with the probability of its distance from the
lower one (Connolly, Higham & Mary 2021, "Stochastic rounding and its probabilistic backward error analysis").
As torchao's optimizers and llm.c do it: 16 random bits are added to the fp32 result and the lower 16 are cut
off; states are rounded to nearest. The bits come from a counter, not from a generator: the same on every
device and in every process, new ones in each replay of a CUDA graph, and a resume needs one number.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.casting import copy_tensors, copy_to_fp32, replace_parameters
from ampcompare.precision.half_weights import BFloat16
from ampcompare.precision.registry import REGISTRY, PrecisionOptions

_GOLDEN = -0x61C88647  # 2**32 over the golden ratio, as int32: neighbours in a count end far apart
_LOW_16 = 0xFFFF


class StochasticBFloat16(BFloat16):
    """bf16, the weights' update in fp32 arithmetic and rounded stochastically; fp32 weights step as ever."""

    metadata = REGISTRY["bf16_sr"]

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self._steps = torch.zeros((), dtype=torch.int32, device=self.device)
        seed = (self.options.seed + 2**31) % 2**32 - 2**31  # as int32
        self._key = hash_int32(torch.tensor(seed ^ _GOLDEN, dtype=torch.int32)).to(self.device)

    @torch.no_grad()
    def step(self, optimizer: Optimizer) -> None:
        """Step with fp32 copies in the place of the half weights, their gradients and states.

        The weights themselves are left alone meanwhile: a parameter that took fp32 data for a while would
        lose the node that adds up its gradient, and with it DDP's hook (`VariableHooks::set_data`). Launches
        go by the number of types, not of weights; nothing waits for the device.
        """
        found = [p for group in optimizer.param_groups for p in group["params"]]
        halves = [p for p in found if p.grad is not None and p.dtype is torch.bfloat16]
        wide = [nn.Parameter(copy) for copy in copy_to_fp32(p.data for p in halves)]
        for p, gradient in zip(wide, copy_to_fp32(p.grad for p in halves), strict=True):
            p.grad = gradient
        places = _list_states(optimizer, halves)
        _store_states(optimizer, halves, dict(zip(places, copy_to_fp32(places.values()), strict=True)))
        replace_parameters(optimizer, halves, wide)
        optimizer.step()
        replace_parameters(optimizer, wide, halves)
        new = _list_states(optimizer, halves)  # rounded to nearest, into the memory where they were
        rounded = {at: places.get(at, torch.empty_like(x, dtype=torch.bfloat16)) for at, x in new.items()}
        copy_tensors(rounded.values(), new.values())
        _store_states(optimizer, halves, rounded)
        if halves:
            flat = torch.cat([_view_flat(p) for p in wide])
            bits = draw_random_bits(flat.numel(), hash_int32(self._key ^ self._steps))
            weights = round_stochastically(flat, bits).split([p.numel() for p in wide])
            copy_tensors((_view_flat(p.data) for p in halves), weights)
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        steps = int(self._steps)  # sync: a checkpoint needs the number
        return super().state_dict() | {"rounded_steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._steps.fill_(state["rounded_steps"])


def round_stochastically(x: Tensor, bits: Tensor) -> Tensor:
    """`x` (fp32) rounded to what bf16 holds, up or down in magnitude by `bits` (int32, 0..65535); still fp32.

    Upwards with the probability bits give to the distance from the lower neighbour; what bf16 holds already,
    inf and nan stay.
    """
    rounded = (x.view(torch.int32) + bits).bitwise_and_(~_LOW_16).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def draw_random_bits(count: int, key: Tensor) -> Tensor:
    """`count` numbers, int32 in 0..65535, by a hash of `key`, 0-d int32, and the place: two of a hash."""
    places = torch.arange((count + 1) // 2, dtype=torch.int32, device=key.device)
    halves = hash_int32(places.mul_(_GOLDEN).bitwise_xor_(key)).view(torch.int16)
    return halves[:count].to(torch.int32).bitwise_and_(_LOW_16)


def hash_int32(x: Tensor) -> Tensor:
    """lowbias32: a bijection of int32 in which every bit depends on every other (Wellons 2018,
    "Prospecting for hash functions"); in place.
    """
    for shift, multiplier in ((16, 0x7FEB352D), (15, -0x7B935975)):  # the latter is 0x846CA68B as int32
        x.bitwise_xor_(_shift_right(x, shift)).mul_(multiplier)
    return x.bitwise_xor_(_shift_right(x, 16))


def _shift_right(x: Tensor, by: int) -> Tensor:
    """A shift to the right that brings in zeros: torch's brings in the sign."""
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)


def _view_flat(weight: Tensor) -> Tensor:
    """The numbers of a dense tensor in the order of its memory: a view of one dimension."""
    return weight.as_strided((weight.numel(),), (1,))


def _list_states(optimizer: Optimizer, parameters: list[Tensor]) -> dict[tuple[int, str], Tensor]:
    """The states of one number a weight, by number of parameter and name; `step` counts, as torch.optim
    knows it by its name, too.
    """
    return {
        (index, key): value
        for index, p in enumerate(parameters)
        for key, value in (optimizer.state[p].items() if p in optimizer.state else ())
        if isinstance(value, Tensor) and key != "step" and value.shape == p.shape
    }


def _store_states(
    optimizer: Optimizer, parameters: list[Tensor], states: dict[tuple[int, str], Tensor]
) -> None:
    for (index, key), value in states.items():
        optimizer.state[parameters[index]][key] = value
