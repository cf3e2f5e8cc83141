"""What an overflow leaves behind: buffers that are no longer finite, and the module where it began.

Nothing here waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ampcompare.machine.device import is_host

# After a skipped step, on a GPU: a scale that collapses does so within as many.
WATCHED_STEPS = 20
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Buffers:
    """The floating buffers of a model: counted where they are no longer finite, put back if that is wanted.

    A step that overflows in its forward is skipped, but the forward has updated BatchNorm's running
    statistics before anybody knew: inf or nan in them stays for good, whatever comes after, and is in every
    evaluation (pytorch 90342, 115500).
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, *, restores: bool) -> None:
        every = [(m, key, b) for m in model.modules() for key, b in m._buffers.items()]
        self._places = [(module, key) for module, key, b in every if _is_plain(b)]
        found = self._floating()
        self.restores = restores and bool(found)
        self._at_first = _are_finite(found)  # a mask of -inf is not
        # Buffers, each as often as it was put back. In one place, for a graph.
        self.restored = torch.zeros((), dtype=torch.int64, device=self._at_first.device)

    def __bool__(self) -> bool:
        return len(self._at_first) > 0

    @torch.no_grad()
    def count(self) -> Tensor:
        """Buffers that are not finite and once were, 0-d; where they are put back, those that were."""
        if self.restores:
            return self.restored
        return (self._at_first > _are_finite(self._floating())).sum()

    @torch.no_grad()
    def keep(self) -> tuple[Tensor, Tensor]:
        """Before a step: a copy of all that it may spoil, flat, and which of them are finite."""
        found = self._floating()
        return torch.cat([b.flatten() for b in found]), _are_finite(found)

    @torch.no_grad()
    def put_back(self, kept: tuple[Tensor, Tensor], skipped: Tensor) -> None:
        """Behind a step that was `skipped` (0-d) and spoiled any of them: give all the values `kept`, so that
        they are of one time. Decided on the device, so that a graph can hold it.
        """
        found = self._floating()
        before, finite = kept
        bad = (finite > _are_finite(found)).sum() * skipped
        now = torch.where(bad > 0, before, torch.cat([b.flatten() for b in found]))
        parts = now.split([b.numel() for b in found])
        torch._foreach_copy_(found, [x.view(b.shape) for x, b in zip(parts, found, strict=True)])
        self.restored += bad

    def _floating(self) -> list[Tensor]:
        # Looked up at each use: a module may put another tensor in the place of one, or take it away.
        found = ((module._buffers.get(key)) for module, key in self._places)
        return [b if _is_plain(b) else self._at_first.new_zeros(1, dtype=torch.float32) for b in found]


def _is_plain(buffer: Tensor | None) -> TypeGuard[Tensor]:
    """Whether torch knows if it is finite, and it has memory of its own for each number."""
    return (
        buffer is not None
        and buffer.dtype in FLOATING
        and buffer.layout is torch.strided
        and buffer.numel() > 0
        and not any(size > 1 and step == 0 for size, step in zip(buffer.shape, buffer.stride(), strict=True))
    )


def _are_finite(tensors: list[Tensor]) -> Tensor:
    """Of each whether all of it, and so its largest magnitude, is finite: bool [tensors]."""
    if not tensors:
        return torch.ones(0, dtype=torch.bool)
    norms = torch._foreach_norm(tensors, torch.inf)
    return torch.cat([norm.reshape(1) for norm in norms]) < torch.inf  # of several types, too


@dataclass(frozen=True)
class Found:
    """Of one step: which of the gradients is the first that is not finite, 0-d on the device; -1: none. They
    are those of these modules, from the last of the network to the first.
    """

    first: Tensor
    modules: Sequence[str]


class Overflows:
    """Looks where a step that was or may have been skipped overflowed: the last module of the network whose
    gradient is not finite.

    A gradient that is inf or nan makes those of all modules before it so; the last one, where modules are
    registered in the order of their use, is where it began, or what lies between that module and the one
    behind it. To know it, all gradients have to be read once more. So steps that nobody doubts are left
    alone: on the host a skip is known at once, and its own gradients are read; on a GPU, where the host
    learns of it an interval later, those of the steps after it. `names` are the parameters' in the order in
    which `look` gets them.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.modules = [name.rpartition(".")[0] or name for name in names]
        self.on_host = is_host(device)
        self._left = 0
        self.may_watch = True  # not where the next steps are launches of a graph, which would wait for it

    def watch(self) -> None:
        """Look at the next steps."""
        self._left = WATCHED_STEPS

    def suspects(self, diagnose: bool) -> bool:
        """Whether to look at this step, of which nobody knows yet whether it is skipped."""
        watched, self._left = self._left > 0 and self.may_watch, max(0, self._left - 1)
        return not self.on_host and (diagnose or watched)

    @torch.no_grad()
    def look(self, parameters: Sequence[Tensor]) -> Found | None:
        """The first gradient that is not finite; None where there are no gradients, or no name is sure."""
        if len(parameters) != len(self.modules):  # added or taken away since
            return None
        pairs = zip(self.modules, parameters, strict=True)
        found = [(module, _values(p.grad)) for module, p in pairs if p.grad is not None]
        found = [(module, gradient) for module, gradient in reversed(found) if gradient.numel()]
        if not found:
            return None
        bad = ~_are_finite([gradient for _, gradient in found])
        first = torch.where(bad.any(), bad.int().argmax(), -1)  # argmax: the first of several
        return Found(first, [module for module, _ in found])


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
