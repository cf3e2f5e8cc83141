"""Turns steps into rows, for our loop and for a user's loop under the Recorder.

A step leaves its values on the device. At the end of a log interval they go to the host in one copy. On a GPU
that copy is read one interval later, when it has long arrived, so the host does not wait for the steps that
it has queued; each row carries its own step. A killed process loses the row that waited, and the steps since.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.system.device import is_cuda, is_host
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.anomalies import AnomalyMonitor
from ampcompare.training.interval import Interval, StepResult, diagnostic_values, stack_skips
from ampcompare.training.overflow_detection import BufferMonitor, OverflowDetector
from ampcompare.training.timing import Row, Timing


class LossScale(Protocol):
    """What scales the loss: a backend, or a user's scaler."""

    device: torch.device

    def scale_factor(self) -> Tensor:
        """Return the loss scale after the last step, 0-d fp32."""

    def scales_dynamically(self) -> bool:
        """Return whether the loss scale is lowered after an overflow."""


class StepLog:
    """Hands rows with the keys of `ampcompare.metrics` to `on_row`.

    `Timing` times the steps, an `Interval` keeps their values until the row is made, and `AnomalyMonitor`
    warns about what it sees in rows.

    Args:
        loss_scale: What scales the loss: the backend, or the Recorder's reader of a user's scaler.
        timing: The clocks of the training.
        on_row: Receives each row, in the order of the steps.
        every: A row ends after so many steps, and wherever `flush` is called.
        on_nan: As in `AnomalyMonitor`.
        on_anomaly: `on_first` of `AnomalyMonitor`.
        world: The processes of the training.
        buffers: The buffers of the model, if it is known.
        overflows: Where gradients overflowed, if the optimizer is ours.
        start: The steps taken before.
        lag: Whether a row is read one interval late; None: as the device needs it.
        read_skips: Returns from `StepResult.skipped` of several steps 1 for each that was skipped, 0 for the
            others, and NaN where it is unknown, [steps].

    Attributes:
        number: The number of the last step.
        epoch: The epochs at the end of the last step; None where a user's loop does not tell.
    """

    def __init__(
        self,
        loss_scale: LossScale,
        timing: Timing,
        on_row: Callable[[Row], None],
        *,
        every: int,
        on_nan: str | None = None,
        on_anomaly: Callable[[Row], None] = lambda entry: None,
        world: DistributedContext | None = None,
        buffers: BufferMonitor | None = None,
        overflows: OverflowDetector | None = None,
        start: int = 0,
        lag: bool | None = None,
        read_skips: Callable[[Sequence[Any], torch.device], Tensor] = stack_skips,
    ) -> None:
        # What a row is made from, and where it goes.
        self.loss_scale = loss_scale
        self.timing = timing
        self.buffers = buffers
        self._overflows = overflows
        self._read_skips = read_skips
        self.anomalies = AnomalyMonitor(
            on_nan, scales_dynamically=loss_scale.scales_dynamically(), start=start, on_first=on_anomaly
        )
        self.on_row = on_row
        self.every = every
        self.device = loss_scale.device
        self.world = world or DistributedContext()
        self.lag = is_cuda(self.device) if lag is None else lag
        self._on_host = is_host(self.device)

        # The last step.
        self.number = start
        self.epoch: float | None = None
        self._learning_rate: Any = None
        self._norms: dict[str, Tensor] = {}

        # Steps whose row has not been made.
        self._skipped_steps: float = 0  # in the rows so far; NaN once it is unknown
        self._open = Interval()
        self._waiting: list[Interval] = []

    def resume(self) -> None:
        """Start training here, before the first step or after a pause."""
        self.timing.resume()

    def pause(self, *, since_step: bool = False) -> None:
        """End training here, or at the last step with `since_step`.

        Where a GPU counts its energy, this waits for the steps and hands out a row with the energy.
        """
        timing = self.timing
        if timing.is_paused:
            return
        if timing.has_energy:
            self.write_waiting()
            joules = timing.joules_per_sample()
            if joules is not None:
                self.on_row(self.start_row() | {metrics.ENERGY: joules})
        timing.pause(since_step=since_step)

    def add(self, number: int, epoch: float | None, result: StepResult, learning_rate: Any) -> None:
        """Take over a step that the loop has queued. Waits for nothing.

        Args:
            number: The number of the step, from 1.
            epoch: The epochs at the end of the step; None: not known.
            learning_rate: The learning rate of the step; None: not known.
        """
        self.timing.end_step(result.samples, compiled=result.compiled)
        self.number = number
        self.epoch = epoch
        self._learning_rate = learning_rate
        self._norms = {key: x for key, x in result.diagnostics.items() if key in metrics.GRADIENT_NORMS}
        interval = self._open
        interval.add(result)
        if len(result.diagnostics) > len(self._norms):  # the row of the interval has the norm
            interval.diagnostics.append((self.start_row(), result.diagnostics))
        if result.overflow is not None:
            interval.overflows.append((len(interval.samples) - 1, self.start_row(), result.overflow))
        if number % self.every == 0:
            self.end_interval()

    def start_row(self) -> Row:
        """Return the first values of a row of the last step: its number, its epoch, the clocks now."""
        row: Row = {metrics.STEP: self.number}
        if self.epoch is not None:
            row[metrics.EPOCH] = self.epoch
        return row | self.timing.clocks()

    def end_interval(self) -> None:
        """End the interval at the last step, if it has any: send its values, read those of the one before."""
        interval = self._open
        if not interval.samples:
            return
        self._open = Interval()
        interval.row = self.start_row() | self.timing.memory.read()
        interval.marks = self.timing.take_marks()
        interval.send(self._collect(interval), self.device)
        self._waiting.append(interval)
        self._write(len(self._waiting) - self.lag)
        self.timing.end_row()

    def flush(self) -> None:
        """End the interval and hand out all rows. Waits for the device up to the last step."""
        self.end_interval()
        self.write_waiting()

    def flush_on_error(self, problem: BaseException) -> None:
        """Hand out the rows that wait as a run ends by `problem`, which gets a note on rows that are lost."""
        try:
            self._write(len(self._waiting), check=False)
        except Exception as second:  # a device that failed returns nothing any more
            problem.add_note(f"the rows of the last log interval are lost: {second}")

    def write_waiting(self) -> None:
        """Hand out the rows of intervals that have ended. Waits for their values."""
        self._write(len(self._waiting))

    def write_diagnostics(self) -> None:
        """Hand out the diagnostic rows of the open interval, before a row of a later step.

        Waits for the device.
        """
        for row, diagnostics in self._open.diagnostics:
            values = {key: value.tolist() for key, value in diagnostics.items()}  # sync: documented above
            self.on_row(row | diagnostic_values(values))
        self._open.diagnostics.clear()

    def summary(self) -> Row:
        """Return what the steps so far came to, by metric key."""
        return self.timing.summary() | self.anomalies.summary(has_buffers=self.buffers is not None)

    def state_dict(self) -> Row:
        """Return plain values and tensors for a checkpoint. Call it after `flush`: no row may wait."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "skipped": self._skipped_steps,
            "findings": self.anomalies.state_dict(),
            **self.timing.state_dict(),
        }

    def load_state_dict(self, state: Row) -> None:
        """Continue from a state of `state_dict`."""
        self.number = state["number"]
        self.epoch = state["epoch"]
        self._skipped_steps = state["skipped"]
        self.anomalies.load_state_dict(state["findings"])
        self.timing.load_state_dict(state)

    def _collect(self, interval: Interval) -> dict[Hashable, Tensor]:
        """Return all values of the interval that are on the device."""
        tensors: dict[Hashable, Tensor] = {metrics.SCALE: self.loss_scale.scale_factor()}
        losses = interval.loss_tensor(self.device)
        if losses is not None:
            tensors["losses"] = self.world.mean_(losses.float() if self.world.size > 1 else losses)
        counts = interval.correct_counts()
        if counts is not None:
            tensors["correct"] = self.world.sum_(counts)
        skips = tensors["skips"] = self._read_skips(interval.skipped, self.device)
        if self.buffers and self._may_have_skipped(skips):
            tensors["buffers"] = self.buffers.count()
        tensors.update(self._norms)
        if isinstance(self._learning_rate, Tensor):  # of a capturable optimizer
            tensors[metrics.LEARNING_RATE] = self._learning_rate.reshape(())
        elif self._learning_rate is not None:
            interval.row[metrics.LEARNING_RATE] = self._learning_rate
        return tensors

    def _may_have_skipped(self, skips: Tensor) -> bool:
        """Return whether a step may have been skipped so far, so that buffers may be spoiled.

        Only on the host the skips of the interval are known without a wait.
        """
        return not self._on_host or self._skipped_steps != 0 or bool(skips.any())

    def _write(self, count: int, *, check: bool = True) -> None:
        """Hand out the rows of the oldest `count` intervals that wait, and `check` them for anomalies."""
        for _ in range(count):
            interval = self._waiting.pop(0)
            interval.read()
            skipped = interval.is_skipped()
            is_known = not any(map(math.isnan, interval.values["skips"]))
            self._skipped_steps = self._skipped_steps + sum(skipped) if is_known else math.nan
            overflows = interval.overflow_rows()
            for row in sorted(interval.diagnostic_rows() + overflows, key=itemgetter(metrics.STEP)):
                self.on_row(row)
            row = self._complete(interval)
            self.on_row(row)
            if any(skipped) and self._overflows:
                self._overflows.watch()
            if check:
                losses = interval.losses_by_step()
                self.anomalies.check(row, losses, skipped, overflows, interval.bad_weights())

    def _complete(self, interval: Interval) -> Row:
        """Return the row of an interval."""
        values = interval.values
        row = interval.row
        for key in (metrics.SCALE, *metrics.GRADIENT_NORMS, metrics.LEARNING_RATE):
            if key in values:
                row[key] = values[key]
        row[metrics.SKIPPED] = self._skipped_steps
        if self.buffers is not None:
            row[metrics.NONFINITE_BUFFERS] = round(values.get("buffers", 0)) if self._skipped_steps else 0
        loss = interval.mean_loss()
        if loss is not None:
            row[metrics.LOSS] = loss
        correct, counted = values.get("correct", (0, 0))
        if counted:
            row[metrics.ACCURACY] = correct / counted
        return row | self.timing.measure(interval.marks)
