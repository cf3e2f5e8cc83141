"""What ends a training in one line."""

from torch import Tensor

from ampcompare.data.batch import Batch


class TrainingError(Exception):
    """The training cannot go on: one line that names the reason and what to try. Exit code 1."""


def note_batch(problem: Exception, batch: Batch) -> None:
    """Add to what network, loss or metric raise in the middle of a training how the batch looked."""
    told = []
    for field, name in zip(batch, ("inputs", "targets"), strict=True):
        parts = (
            {name: field} if isinstance(field, Tensor) else {f"{name}[{k!r}]": x for k, x in field.items()}
        )
        told += [f"{what} {str(x.dtype).removeprefix('torch.')} {[*x.shape]}" for what, x in parts.items()]
    problem.add_note(f"in a batch of {', '.join(told)}")
