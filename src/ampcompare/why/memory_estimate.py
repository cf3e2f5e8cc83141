"""Estimate what a training step keeps in memory, without kernels' scratch memory and short-lived tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import list_tensors
from ampcompare.why.op_dtypes import ForwardTrace

MIB = 2**20
STATES_PER_WEIGHT = {"adam": 2, "adamw": 2}  # numbers that the optimizer keeps; others: 1 with momentum


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step, by what they are for.

    Attributes:
        weights: The network's parameters and buffers.
        masters: The optimizer's fp32 copies of the weights.
        states: The optimizer's states.
        gradients: Gradients of weights and master weights.
        batch: Inputs and targets.
        activations: What the forward pass keeps for the backward pass.
        copies: The part of the activations that is weights, cast to another dtype.
    """

    weights: int
    masters: int
    states: int
    gradients: int
    batch: int
    activations: int
    copies: int

    @property
    def fixed(self) -> int:
        """The part that does not depend on the batch."""
        return self.weights + self.masters + self.states + self.gradients

    @property
    def total(self) -> int:
        """All of it at the end of the forward pass: about the peak."""
        return self.fixed + self.batch + self.activations


def estimate_memory(trace: ForwardTrace, config: Config) -> StepMemory:
    """Return the memory of a step by its traced forward pass."""
    weights = [*trace.model.parameters()]
    updated = [p for group in trace.optimizer.param_groups for p in group["params"]]
    weight_ids = {id(p) for p in weights}
    masters = [p for p in updated if id(p) not in weight_ids]
    states = STATES_PER_WEIGHT.get(config.optimizer.name, int(config.optimizer.momentum > 0))
    return StepMemory(
        weights=_bytes([*weights, *trace.model.buffers()]),
        masters=_bytes(masters),
        states=states * _bytes(updated),
        gradients=_bytes(p for p in (*weights, *masters) if p.requires_grad),
        batch=_bytes(tensor for part in trace.batch for tensor in list_tensors(part)),
        activations=sum(trace.saved.values()),
        copies=trace.copies,
    )


def describe_memory(base: StepMemory, other: StepMemory) -> str:
    """Return a sentence that compares the memory of two backends, part by part."""
    parts = [f"weights, gradients and optimizer {_pair(base.fixed, other.fixed)}"]
    cast = f", {_mib(other.copies)} of them weights cast to the low type" if other.copies else ""
    parts.append(f"activations {_pair(base.activations, other.activations)}{cast}")
    return f"Memory, about {_pair(base.total, other.total)} MiB: {'; '.join(parts)}."


def _bytes(tensors: Iterable[Tensor]) -> int:
    unique = {id(tensor): tensor for tensor in tensors}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in unique)


def _pair(base: int, other: int) -> str:
    return _mib(base) if _mib(base) == _mib(other) else f"{_mib(base)} > {_mib(other)}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}" if size >= 100 * MIB else f"{size / MIB:,.1f}"
