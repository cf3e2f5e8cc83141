"""Which module overflowed when a step was skipped: the first, in the order of the backward, whose gradient is
not finite.

A gradient that is inf or nan makes those of all modules before it so; the first in the order of the backward
is where it began, or what lies between that module and the one behind it. To know it, all gradients have to
be read once more. So steps that nobody doubts are left alone: on the host a skip is known at once, and its
own gradients are read; on a GPU, where the host learns of it an interval later, those of the steps after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.machine.device import is_host
from ampcompare.train.clock import Row

# After an interval with a skipped step, on a GPU: a scale that collapses does so within as many.
WATCHED_STEPS = 20
Pending = tuple[Row, Sequence[int]]  # of a step: how its row begins, the parameters that were looked at


@dataclass(frozen=True)
class Found:
    """Of one step: which gradient among those of the parameters `looked_at` is the first that is not finite.

    0-d on the device, -1: none, or the step was not skipped. The parameters are in the order of the backward.
    """

    first: Tensor
    looked_at: Sequence[int]

    def if_skipped(self, skipped: Tensor) -> Found:
        """The same of a step of which the device knows whether it was `skipped` (0-d bool)."""
        return Found(torch.where(skipped, self.first, -1), self.looked_at)


class Overflows:
    """Looks at the gradients of steps that may have been skipped. Nothing here waits for a GPU.

    `names` are those of the parameters, in the order in which `look` gets them.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.modules = [name.rpartition(".")[0] or name for name in names]
        self.on_host = is_host(device)
        self._order: Sequence[int] = range(len(names))[::-1]  # that of the backward, as far as it is known
        self._left = 0
        self.may_watch = True  # not where the next steps are launches of a graph, which would wait for it

    def learn_order(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Take the order of the backward from a loss that it begins at. Without it: the last module first."""
        self._order = order_of_backward(loss, parameters)

    def watch(self) -> None:
        """Look at the next steps."""
        self._left = WATCHED_STEPS

    @property
    def watches(self) -> bool:
        """Whether to look at the next step, of which nobody knows yet whether it is skipped."""
        return self._left > 0 and self.may_watch and not self.on_host

    def passed(self) -> None:
        """A step is over."""
        self._left = max(0, self._left - 1)

    @torch.no_grad()
    def look(self, parameters: Sequence[Tensor]) -> Found | None:
        """The first gradient that is not finite; None where there are no gradients at all."""
        if len(parameters) != len(self.modules):  # added or taken away since: no name is sure
            return None
        gradients = [(i, _values(g)) for i in self._order if (g := parameters[i].grad) is not None]
        gradients = [(i, g) for i, g in gradients if g.numel()]
        if not gradients:
            return None
        finite: dict[int, Tensor] = {}
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, (_, gradient) in enumerate(gradients):
            kinds.setdefault((gradient.dtype, gradient.device), []).append(place)
        for places in kinds.values():
            norms = torch._foreach_norm([gradients[place][1] for place in places], torch.inf)
            finite.update(zip(places, (torch.stack(norms) < torch.inf).unbind(), strict=True))
        home = gradients[0][1].device
        bad = ~torch.stack([finite[place].to(home) for place in range(len(gradients))])
        first = torch.where(bad.any(), bad.int().argmax(), -1)  # argmax: the first of several
        return Found(first, [i for i, _ in gradients])


def order_of_backward(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[int]:
    """The places of the parameters in the order in which the backward of `loss` comes to them.

    A node of the graph has a number, and those with high ones run first (`Node._sequence_nr`, in
    torch/csrc/autograd/node.h). A parameter that is used several times has its gradient at the use that was
    first in the forward. What the graph does not show (within a reentrant checkpoint, or unused) has the
    place of the parameter that was registered before it; of equals, as in a compiled graph, the last comes
    first.
    """
    used_at: dict[int, int] = {}
    waiting, known = [loss.grad_fn] if loss.grad_fn is not None else [], set()
    while waiting:
        node: Any = waiting.pop()
        if node in known:
            continue
        known.add(node)
        for inner, _ in node.next_functions:
            if (parameter := getattr(inner, "variable", None)) is not None:
                number = node._sequence_nr()
                used_at[id(parameter)] = min(number, used_at.get(id(parameter), number))
            elif inner is not None:
                waiting.append(inner)
    keys, number = [], 0
    for place, parameter in enumerate(parameters):
        number = used_at.get(id(parameter), number)
        keys.append((number, place))
    return [place for _, place in sorted(keys, reverse=True)]


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class OverflowLog:
    """The skipped steps of an interval, by the modules that overflowed: their rows, what is said of them."""

    def __init__(self, overflows: Overflows) -> None:
        self._overflows = overflows
        self._found: list[tuple[int, float | None, Found]] = []  # since the last row
        self._counts: Counter[str] = Counter()
        self._skipped = 0

    def add(self, step: int, position: float | None, found: Found) -> None:
        """A step that was looked at."""
        self._found.append((step, position, found))

    def close(self, row_at: Callable[[int, float | None], Row]) -> tuple[list[Pending], list[Tensor]]:
        """End the interval: what is known of its steps, and the tensor [steps] that must come to the host."""
        found, self._found = self._found, []
        pending = [(row_at(step, position), each.looked_at) for step, position, each in found]
        return pending, [torch.stack([each.first for *_, each in found])] if found else []

    def read(self, pending: Sequence[Pending], firsts: Sequence[float]) -> list[Row]:
        """The rows of an interval whose values have come: of each skipped step the module."""
        rows = []
        for (row, looked_at), first in zip(pending, firsts, strict=True):
            if first >= 0:
                rows.append(
                    row | {metrics.NONFINITE_MODULE: self._overflows.modules[looked_at[round(first)]]}
                )
        return rows

    def count(self, rows: Sequence[Row], skipped: int, nonfinite_losses: Collection[int]) -> list[str]:
        """Take in the rows of an interval, and the steps `skipped` so far. What is new of it, in words:
        a module is named the first time. `nonfinite_losses` are steps whose loss was not finite.
        """
        if skipped > self._skipped:
            self._overflows.watch()
        self._skipped = skipped
        notes = []
        for row in rows:
            step, module = row[metrics.STEP], row[metrics.NONFINITE_MODULE]
            if module not in self._counts:
                what = f"step {step} was skipped: coming from the loss, the gradient of {module} is the first"
                loss = "; the loss was not finite either, so the forward overflowed"
                notes.append(f"{what} that is inf or nan{loss * (step in nonfinite_losses)}")
            self._counts[module] += 1
        return notes

    def summary(self) -> Row:
        """How often each module was the first, in one line; nothing if none was."""
        said = ", ".join(f"{module} ({count})" for module, count in self._counts.most_common())
        return {metrics.NONFINITE_MODULES: said} if said else {}

    def state_dict(self) -> Row:
        """What has been gathered. Waits for the device."""
        # sync: a checkpoint needs the numbers
        found = [(step, at, int(each.first), list(each.looked_at)) for step, at, each in self._found]
        return {"found": found, "counts": dict(self._counts), "skipped": self._skipped}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from a state of `state_dict`."""
        self._found = [
            (step, at, Found(torch.tensor(first, device=device), looked_at))
            for step, at, first, looked_at in state["found"]
        ]
        self._counts, self._skipped = Counter(state["counts"]), state["skipped"]
