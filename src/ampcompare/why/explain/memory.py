"""What a step holds in memory and for what, in bytes, and why half the type is not half the memory."""

from __future__ import annotations

from dataclasses import dataclass

from ampcompare.report.words import of_all
from ampcompare.why.explain.held import TEMPORARY
from ampcompare.why.explain.trace import Trace

MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """Bytes of a step, the optimizer's states made, gradients dropped after each step.

    `weights` are the network's, `masters` the optimizer's fp32 copies of them, `gradients` all of them;
    `activations` what the forward leaves for the backward, each storage once, `by_module` where it was made;
    of that `copies` are weights cast to another type. `peak` is the most that was held at once, `workspace`
    what of it is none of the others: passing results. `exact` is false where the peak is an upper bound. What
    kernels take for themselves (cuDNN, oneDNN) and an allocator's rounding are in none of it.
    """

    weights: int
    buffers: int
    masters: int
    gradients: int
    states: int
    batch: int
    activations: int
    copies: int
    workspace: int
    peak: int
    exact: bool
    by_module: dict[str, int]

    @property
    def standing(self) -> int:
        """What is held between two steps."""
        return self.weights + self.buffers + self.masters + self.states


def take_memory(trace: Trace, exact: bool = True) -> Memory:
    """The memory of a traced step."""
    held = trace.held
    most = held.most
    by_module = dict(held.by_module.get("activations", {}))
    return Memory(
        weights=most["weights"],
        buffers=most["buffers"],
        masters=most["masters"],
        gradients=most["gradients"],
        states=most["states"],
        batch=most["batch"],
        activations=sum(by_module.values()),
        copies=sum(op.copies for op in trace.ops),
        workspace=held.at_peak.get(TEMPORARY, 0),
        peak=held.peak,
        exact=exact,
        by_module=by_module,
    )


def why_not_half(base: Memory, other: Memory) -> str:
    """Why the peak under one backend is not half of that under another, in a sentence with its figures."""
    ratio = other.peak / base.peak if base.peak else 1.0
    parts = []
    fixed = other.weights + other.masters + other.states + other.gradients
    before = base.weights + base.masters + base.states + base.gradients
    if fixed > 0.75 * before:
        parts.append(
            f"weights, gradients and optimizer take {_mib(fixed)} there and {_mib(before)} in the baseline"
        )
    if base.activations:
        share = other.activations / base.activations
        said = f"activations go to {of_all(share)} ({_mib(base.activations)} to {_mib(other.activations)})"
        if other.copies and share > 0.5:
            said += f", {_mib(other.copies)} of them weights cast to the low type"
        parts.append(said)
    if other.batch:
        parts.append(f"the batch itself stays {_mib(other.batch)}")
    return f"The peak goes to {of_all(ratio)} of the baseline's: {'; '.join(parts)}."


def _mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB" if size >= 10 * MIB else f"{size / MIB:,.1f} MiB"
