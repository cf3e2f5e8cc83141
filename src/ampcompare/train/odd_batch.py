"""A batch unlike the first one, in which the network or the loss failed: one line in place of PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from ampcompare.data.batch import Batch
from ampcompare.errors import UserError, what_happened
from ampcompare.machine.device import is_out_of_memory
from ampcompare.machine.world import is_loss_of_another
from ampcompare.train.errors import TrainingError

MOST_NAMED = 4
Looks = dict[str, str]  # of each tensor of a batch, by name, its type and shape


class OddBatch(TrainingError):
    """A batch that network or loss cannot take, where they took the first."""


def looks_of(batch: Batch) -> Looks:
    """How a batch looks: `{"inputs": "float32 [32, 8]", "targets": "int64 [32]"}`."""
    found: Looks = {}
    for field, name in zip(batch, ("inputs", "targets"), strict=True):
        parts = (
            {name: field} if isinstance(field, Tensor) else {f"{name}[{k!r}]": x for k, x in field.items()}
        )
        found |= {what: f"{str(x.dtype).removeprefix('torch.')} {[*x.shape]}" for what, x in parts.items()}
    return found


def blame(problem: Exception, batches: Sequence[Batch], first: Looks | None) -> None:
    """Raise OddBatch for what failed in a step if one of its batches looks other than the `first` of all.

    Where they look the same, of memory, of a process that has ended, and where a line says it already,
    nothing is said.
    """
    if first is None or isinstance(problem, UserError | TrainingError) or is_out_of_memory(problem):
        return
    if isinstance(problem, RuntimeError) and is_loss_of_another(problem):
        return
    for found in map(looks_of, batches):
        if names := [name for name in {**first, **found} if first.get(name) != found.get(name)]:
            odd = (f"{n} {found.get(n, 'missing')} instead of {first.get(n, 'nothing')}" for n in names)
            todo = "have every batch look like the first, or give a network that takes both"
            raise OddBatch(
                f"a batch has {' and '.join(islice(odd, MOST_NAMED))} ({what_happened(problem)}); {todo}"
            ) from None
