"""Errors that end a training in one line."""

from torch import Tensor

from ampcompare.data.batch import Batch


class TrainingError(Exception):
    """The training cannot continue. One line names the reason and what to try; exit code 1."""


def note_batch(problem: Exception, batch: Batch) -> None:
    """Add dtypes and shapes of the batch to an exception of network, loss or metric."""
    descriptions = []
    for field, name in zip(batch, ("inputs", "targets"), strict=True):
        parts = (
            {name: field} if isinstance(field, Tensor) else {f"{name}[{k!r}]": x for k, x in field.items()}
        )
        descriptions += [
            f"{label} {str(x.dtype).removeprefix('torch.')} {[*x.shape]}" for label, x in parts.items()
        ]
    problem.add_note(f"in a batch of {', '.join(descriptions)}")
