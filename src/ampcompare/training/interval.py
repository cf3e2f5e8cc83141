"""Values that wait for their row: what the steps of a log interval leave on the device."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.system.device import start_copy, widest_float
from ampcompare.training.overflow_detection import OverflowSource
from ampcompare.training.timing import Row, StepMarks
from ampcompare.training.update_probe import exponent_histogram

Values = Mapping[Hashable, Any]  # as `HostCopy.read` returns them

# Logits and predictions that wait for a row, in elements: 4 MiB, which would else show in the peak of memory.
MAX_WAITING_ELEMENTS = 2**20


@dataclass
class StepResult:
    """The result of one optimizer step, on the device: the host does not wait for it.

    Attributes:
        loss: The mean loss, a 0-d tensor, or a number on the host. In our own loop every step has one or
            none has; in a user's loop single steps may have None.
        samples: The samples of all processes; None where a user's loop does not tell.
        classified: For each micro-batch with an accuracy: its logits [N, C] or predicted classes [N], and its
            classes [N]. They are compared when the row is made, since to count at each step took two thirds
            of the loop's own time.
        diagnostics: Diagnostic values by metric key, where the step was asked for them.
        compiled: Whether a CUDA graph was captured in the step, or its compiled code was called for the first
            time with these shapes, so that its time says nothing.
        overflow: Where gradients and weights were not finite, if the step was or may have been skipped, or if
            its loss is not finite.
        skipped: Whether the step was skipped: 1 or 0, 0-d on the device; None if it cannot be skipped. In a
            user's loop, what `read_skips` of the Recorder takes.
    """

    loss: Any
    samples: int | None
    classified: Sequence[tuple[Tensor, Tensor]] = ()
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    compiled: bool = False
    overflow: OverflowSource | None = None
    skipped: Any = None


@dataclass
class Interval:
    """The steps of one row: they are collected, copied to the host, and read.

    Attributes:
        skipped: What each step tells of whether it was skipped (`StepResult.skipped`).
        losses: The losses of the steps that have one, and `loss_positions` which steps these are.
        samples: The samples of each step, None where they are not known.
        diagnostics: For each diagnostic step the start of its row, and its values.
        overflows: For each step that may have overflowed its position, the start of its row, and the source.
        row: The row of the interval, as far as it is known.
        marks: The marks of the steps that are timed.
        values: What the device had, by the keys of `send`, once `read` has been called.
    """

    skipped: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    loss_positions: list[int] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)
    diagnostics: list[tuple[Row, Mapping[str, Tensor]]] = field(default_factory=list)
    overflows: list[tuple[int, Row, OverflowSource]] = field(default_factory=list)
    row: Row = field(default_factory=dict)
    marks: list[StepMarks] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    _copy: "HostCopy | None" = None
    _classified: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _waiting_elements: int = 0
    _counts: Tensor | None = None

    def add(self, result: StepResult) -> None:
        """Add a step."""
        if result.loss is not None:
            self.losses.append(result.loss)
            self.loss_positions.append(len(self.samples))
        self.samples.append(result.samples)
        self.skipped.append(result.skipped)
        for pair in result.classified:
            self._classified.append(pair)
            self._waiting_elements += pair[0].numel()
        if self._waiting_elements > MAX_WAITING_ELEMENTS:
            self.correct_counts()

    def loss_tensor(self, device: torch.device) -> Tensor | None:
        """Return the losses, [losses], or None if no step has one."""
        if not self.losses:
            return None
        if isinstance(self.losses[0], Tensor):
            return torch.stack(self.losses)
        return torch.tensor(self.losses, dtype=widest_float(device))  # numbers, of a loop on the host

    def correct_counts(self) -> Tensor | None:
        """Return how many predictions are correct, and how many classes count, int64 [2].

        Returns None if no step has an accuracy.
        """
        counts = [] if self._counts is None else [self._counts]
        for is_logits in (True, False):
            pairs = [pair for pair in self._classified if (pair[0].ndim == 2) == is_logits]
            if pairs:
                predicted, classes = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
                if is_logits:
                    predicted = predicted.argmax(1)
                counts.append(torch.stack([predicted == classes, classes != IGNORED_TARGET]).sum(1))
        self._classified = []
        self._waiting_elements = 0
        if counts:
            self._counts = counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)
        return self._counts

    def send(self, tensors: Mapping[Hashable, Tensor], device: torch.device) -> None:
        """Start the copy of these tensors to the host, with diagnostics and overflows of the steps.

        A value of a diagnostic step is left out if the interval's own row has it: same step, same key.
        """
        of_steps: dict[Hashable, Tensor] = {}
        for position, (row, diagnostics) in enumerate(self.diagnostics):
            is_last = row[metrics.STEP] == self.row[metrics.STEP]
            for key, value in diagnostics.items():
                if not (is_last and key in tensors):
                    of_steps[position, key] = value
        if self.overflows:
            sources = [source for _, _, source in self.overflows]
            of_steps["overflows"] = torch.stack([source.first for source in sources])
            of_steps["bad_weights"] = torch.stack([source.first_weight for source in sources])
        self._copy = HostCopy({**tensors, **of_steps}, device)

    def read(self) -> None:
        """Read what was sent into `values`. Waits for the copy."""
        assert self._copy is not None
        self.values = self._copy.read()

    def mean_loss(self) -> float | None:
        """Return the mean loss, weighted by the samples of each step if they are known; None: no losses."""
        losses = self.values.get("losses")
        if not losses:
            return None
        samples = [self.samples[position] for position in self.loss_positions]
        known = [count for count in samples if count is not None]
        weights = known if len(known) == len(samples) else [1] * len(samples)
        return sum([weight * loss for weight, loss in zip(weights, losses, strict=True)]) / sum(weights)

    def losses_by_step(self) -> list[float]:
        """Return the loss of every step, 0 where a step has none; no losses if no step has one."""
        losses = self.values.get("losses", [])
        if len(losses) in (0, len(self.samples)):
            return losses
        known = dict(zip(self.loss_positions, losses, strict=True))
        return [known.get(position, 0.0) for position in range(len(self.samples))]

    def is_skipped(self) -> list[bool]:
        """Return for each step whether it is known to have been skipped."""
        return [skip == 1 for skip in self.values["skips"]]

    def overflow_rows(self) -> list[Row]:
        """Return a row for each skipped step whose source of the overflow is known."""
        skipped = self.is_skipped()
        overflows = zip(self.overflows, self.values.get("overflows", ()), strict=True)
        return [
            row | {metrics.NONFINITE_MODULE: source.modules[round(first)]}
            for (position, row, source), first in overflows
            if first >= 0 and skipped[position]
        ]

    def bad_weights(self) -> dict[int, str]:
        """Return the module of the first weight that was not finite before a step, by the step's number."""
        overflows = zip(self.overflows, self.values.get("bad_weights", ()), strict=True)
        return {
            row[metrics.STEP]: source.weight_modules[round(first)]
            for (_, row, source), first in overflows
            if first >= 0
        }

    def diagnostic_rows(self) -> list[Row]:
        """Return a row for each diagnostic step."""
        rows = []
        for position, (row, keys) in enumerate(self.diagnostics):
            read = {key: self.values[position, key] for key in keys if (position, key) in self.values}
            rows.append(row | diagnostic_values(read))
        return rows


def diagnostic_values(values: Mapping[str, Any]) -> Row:
    """Return the values of a diagnostic step as a row has them."""
    row: Row = {}
    for key, value in values.items():
        has_no_value = key.startswith(metrics.LOST_UPDATES) and math.isnan(value)
        if not has_no_value:  # no weight had a gradient
            row[key] = value
    if metrics.EXPONENTS in row:
        row[metrics.EXPONENTS] = exponent_histogram(row[metrics.EXPONENTS])
    return row


def stack_skips(skipped: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Return 1 for each skipped step and 0 for the others, [steps]."""
    tensors = [one for one in skipped if one is not None]
    if len(tensors) < len(skipped):
        return torch.zeros(len(skipped), device=device)
    return torch.stack(tensors)


class HostCopy:
    """Tensors on their way from the device to the host, in one transfer for which the host does not wait.

    Args:
        tensors: 0-d and 1-d tensors by key. They are copied, so they may change afterwards.
        device: The device of the transfer.
    """

    def __init__(self, tensors: Mapping[Hashable, Tensor], device: torch.device) -> None:
        self._shapes = {key: tensor.shape for key, tensor in tensors.items()}
        wide = widest_float(device)
        flat = torch.cat([x.detach().reshape(-1).to(device, wide) for x in tensors.values()])
        self._values, self._arrived = start_copy(flat)

    def read(self) -> dict[Hashable, Any]:
        """Return a number for each 0-d tensor and a list for each 1-d tensor, by key."""
        if self._arrived is not None and not self._arrived.query():
            self._arrived.synchronize()  # sync: one interval later the copy has usually arrived
        numbers = self._values.tolist()
        values: dict[Hashable, Any] = {}
        start = 0
        for key, shape in self._shapes.items():
            end = start + shape.numel()
            values[key] = numbers[start:end] if shape else numbers[start]
            start = end
        return values
