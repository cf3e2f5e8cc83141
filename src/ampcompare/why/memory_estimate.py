"""Estimate what a training step keeps in memory, without kernels' scratch memory and short-lived tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import list_tensors
from ampcompare.runtime.formatting import number
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


def describe_memory(base_name: str, base: StepMemory, other_name: str, other: StepMemory) -> str:
    """Return sentences that compare the memory of two backends."""
    before = format_mib(base.total)
    after = format_mib(other.total)
    sentences = [f"A step of {other_name} needs about {after} MiB instead of {before} MiB."]
    if before == after:
        sentences = [f"A step of {other_name} needs about {after} MiB, as much as a step of {base_name}."]
    if other.copies:
        size = format_mib(other.copies)
        sentences.append(f"Its activations include {size} MiB of weights in another dtype.")
    fixed = format_mib(other.fixed)
    sentences.append(f"Weights, gradients and optimizer states take {fixed} MiB at any batch size.")
    return " ".join(sentences)


def _bytes(tensors: Iterable[Tensor]) -> int:
    unique = {id(tensor): tensor for tensor in tensors}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in unique)


def format_mib(size: int) -> str:
    """Return bytes as MiB: `1,204`, `17.9`, `0.074`."""
    mib = size / MIB
    if mib >= 100:
        return f"{mib:,.0f}"
    return f"{mib:.1f}" if mib >= 1 else number(mib, 2)
