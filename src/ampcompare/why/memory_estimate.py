"""What a step holds in memory and for what, about: without a kernel's scratch memory and passing results."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import list_tensors
from ampcompare.why.op_dtypes import Watched

MIB = 2**20
STATES = {"adam": 2, "adamw": 2}  # numbers that an optimizer keeps of each weight


@dataclass(frozen=True)
class Memory:
    """Bytes of a step. `weights` are the network's, its buffers among them, `masters` the optimizer's fp32
    copies of them, `states` what it keeps beside, `gradients` those of both; `activations` what the forward
    leaves for the backward, of that `copies` are weights cast to another type.
    """

    weights: int
    masters: int
    states: int
    gradients: int
    batch: int
    activations: int
    copies: int

    @property
    def standing(self) -> int:
        """What does not depend on the batch."""
        return self.weights + self.masters + self.states + self.gradients

    @property
    def total(self) -> int:
        """All of it, at the end of the forward: about the peak."""
        return self.standing + self.batch + self.activations


def memory_of(seen: Watched, config: Config) -> Memory:
    """The memory of a step whose forward was watched."""
    weights = [*seen.model.parameters()]
    updated = [p for group in seen.optimizer.param_groups for p in group["params"]]
    own = {id(p) for p in weights}
    masters = [p for p in updated if id(p) not in own]
    number = STATES.get(config.optimizer.name, int(config.optimizer.momentum > 0))
    return Memory(
        weights=_bytes([*weights, *seen.model.buffers()]),
        masters=_bytes(masters),
        states=number * _bytes(updated),
        gradients=_bytes(p for p in (*weights, *masters) if p.requires_grad),
        batch=_bytes(tensor for part in seen.batch for tensor in list_tensors(part)),
        activations=sum(seen.saved.values()),
        copies=seen.copies,
    )


def sentence(base: Memory, other: Memory) -> str:
    """Why half the type is not half the memory, with the figures."""
    said = [f"weights, gradients and optimizer {_pair(base.standing, other.standing)}"]
    cast = f", {_mib(other.copies)} of them weights cast to the low type" if other.copies else ""
    said.append(f"activations {_pair(base.activations, other.activations)}{cast}")
    return f"Memory, about {_pair(base.total, other.total)} MiB: {'; '.join(said)}."


def _bytes(tensors: Iterable[Tensor]) -> int:
    once = {id(tensor): tensor for tensor in tensors}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in once)


def _pair(one: int, other: int) -> str:
    return _mib(one) if _mib(one) == _mib(other) else f"{_mib(one)} > {_mib(other)}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}" if size >= 100 * MIB else f"{size / MIB:,.1f}"
