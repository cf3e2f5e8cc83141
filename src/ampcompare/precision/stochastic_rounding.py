"""bf16 weights with stochastically rounded updates, so that updates below bf16's resolution are not lost.

A number between two bf16 neighbours is rounded up with a probability equal to its relative distance from the
lower neighbour (Connolly, Higham & Mary 2021, "Stochastic rounding and its probabilistic backward error
analysis"). As in torchao's optimizers and llm.c, 16 random bits are added to the fp32 result and the lower 16
bits are cut off. Optimizer states are rounded to nearest.

The random bits are a hash of a counter. They are therefore the same on every device and in every process,
differ in each replay of a CUDA graph, and a resume needs only the counter.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.casting import copy_tensors, copy_to_fp32, replace_parameters
from ampcompare.precision.half_weights import BFloat16
from ampcompare.precision.registry import REGISTRY, PrecisionOptions

_GOLDEN = -0x61C88647  # 2**32 / golden ratio as int32; spreads consecutive counts over the whole range
_LOW_16 = 0xFFFF


class StochasticBFloat16(BFloat16):
    """bf16 weights, updated in fp32 and rounded stochastically; fp32 weights are updated as usual."""

    metadata = REGISTRY["bf16_sr"]

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self._steps = torch.zeros((), dtype=torch.int32, device=self.device)
        seed = (self.options.seed + 2**31) % 2**32 - 2**31  # as int32
        self._key = hash_int32(torch.tensor(seed ^ _GOLDEN, dtype=torch.int32)).to(self.device)

    @torch.no_grad()
    def step(self, optimizer: Optimizer) -> None:
        """Step with fp32 copies of the bf16 weights, their gradients and states, then round the result.

        The optimizer gets other parameters rather than fp32 data in the same ones: that would replace a
        parameter's gradient accumulator, and remove DDP's hook (`VariableHooks::set_data`). The number of
        launches depends on the number of dtypes, not of weights. Nothing waits for the device.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        halves = [p for p in parameters if p.grad is not None and p.dtype is torch.bfloat16]
        wide = [nn.Parameter(copy) for copy in copy_to_fp32(p.data for p in halves)]
        for p, gradient in zip(wide, copy_to_fp32(p.grad for p in halves), strict=True):
            p.grad = gradient
        old = _list_states(optimizer, halves)
        _store_states(optimizer, halves, dict(zip(old, copy_to_fp32(old.values()), strict=True)))
        replace_parameters(optimizer, halves, wide)
        optimizer.step()
        replace_parameters(optimizer, wide, halves)
        new = _list_states(optimizer, halves)  # rounded to nearest below, into the old tensors
        rounded = {key: old.get(key, torch.empty_like(x, dtype=torch.bfloat16)) for key, x in new.items()}
        copy_tensors(rounded.values(), new.values())
        _store_states(optimizer, halves, rounded)
        if halves:
            flat = torch.cat([_view_flat(p) for p in wide])
            bits = draw_random_bits(flat.numel(), hash_int32(self._key ^ self._steps))
            weights = round_stochastically(flat, bits).split([p.numel() for p in wide])
            copy_tensors((_view_flat(p.data) for p in halves), weights)
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the number of rounded steps; waits for the device."""
        steps = int(self._steps)  # sync: a checkpoint needs the number
        return super().state_dict() | {"rounded_steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        super().load_state_dict(state)
        self._steps.fill_(state["rounded_steps"])


def round_stochastically(x: Tensor, bits: Tensor) -> Tensor:
    """Round fp32 numbers to bf16 values, up or down in magnitude, as random bits decide.

    Args:
        x: The numbers, fp32.
        bits: Uniform random numbers in 0..65535, int32, as many as `x` has.

    Returns:
        The rounded numbers, fp32. Values of bf16, inf and nan do not change.
    """
    rounded = (x.view(torch.int32) + bits).bitwise_and_(~_LOW_16).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def draw_random_bits(count: int, key: Tensor) -> Tensor:
    """Return `count` random numbers in 0..65535, int32, as a hash of `key` (0-d int32) and their index."""
    indices = torch.arange((count + 1) // 2, dtype=torch.int32, device=key.device)  # a hash gives two numbers
    halves = hash_int32(indices.mul_(_GOLDEN).bitwise_xor_(key)).view(torch.int16)
    return halves[:count].to(torch.int32).bitwise_and_(_LOW_16)


def hash_int32(x: Tensor) -> Tensor:
    """Hash int32 numbers in place with lowbias32 (Wellons 2018, "Prospecting for hash functions")."""
    for shift, multiplier in ((16, 0x7FEB352D), (15, -0x7B935975)):  # the latter is 0x846CA68B as int32
        x.bitwise_xor_(_shift_right(x, shift)).mul_(multiplier)
    return x.bitwise_xor_(_shift_right(x, 16))


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Shift int32 to the right and fill with zeros, where torch's `>>` fills with the sign."""
    return (x >> by).bitwise_and_((1 << (32 - by)) - 1)


def _view_flat(weight: Tensor) -> Tensor:
    """Return a 1-d view of a dense tensor in the order of its memory."""
    return weight.as_strided((weight.numel(),), (1,))


def _list_states(optimizer: Optimizer, parameters: list[Tensor]) -> dict[tuple[int, str], Tensor]:
    """Return the optimizer states that have one number per weight, by index of the parameter and name.

    `step` is left out even if the weight has one number, since it counts steps.
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
