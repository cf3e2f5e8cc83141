"""The rows of log intervals: gathered on the device, read when their values have come, judged.

On a GPU a row is read one log interval after its own, when its values have long arrived, so that the host
need not wait for the steps it has queued; each row carries its own step. Before an evaluation and at the end,
whatever ends the run, all rows are read. A killed process loses the row that waited, beside the steps since.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.machine.device import queues_copies
from ampcompare.machine.processes import World
from ampcompare.measure.gradients import FIRST_EXPONENT
from ampcompare.measure.memory import Memory
from ampcompare.measure.timing import Window
from ampcompare.measure.updates import is_missing
from ampcompare.precision.base import Precision
from ampcompare.train.buffers import Buffers, BufferWatch
from ampcompare.train.errors import TrainingError
from ampcompare.train.interval import Interval, IntervalValues, Reading
from ampcompare.train.scale_watch import ScaleWatch
from ampcompare.train.trainer import StepResult

Row = dict[str, Any]


class Clock:
    """The time of a run and the part of it that went into training: what every row begins with."""

    def __init__(self) -> None:
        self._began = self._resumed = time.perf_counter()
        self._train_seconds = 0.0

    def resume(self) -> None:
        """From here on it is training."""
        self._resumed = time.perf_counter()

    def pause(self) -> None:
        """Up to here it was."""
        now = time.perf_counter()
        self._train_seconds += now - self._resumed
        self._resumed = now

    def row_at(self, step: int, position: float) -> Row:
        """The row of a step and a position in epochs, with the clocks as they stand."""
        return {
            metrics.STEP: step,
            metrics.EPOCH: position,
            metrics.ELAPSED: time.perf_counter() - self._began,
            metrics.TRAIN_SECONDS: self._train_seconds,
        }

    def state_dict(self) -> Row:
        return {"elapsed_seconds": time.perf_counter() - self._began, "train_seconds": self._train_seconds}

    def load_state_dict(self, state: Row) -> None:
        self._began = time.perf_counter() - state["elapsed_seconds"]
        self._train_seconds = state["train_seconds"]


@dataclass(frozen=True)
class PendingRow:
    """A log interval that has ended on the host: its row but for the values that are still on their way."""

    step: int
    row: Row
    steps: int
    windows: list[Window]
    reading: Reading
    looks: list[Row]  # the rows of the looks at the gradients, likewise


class Rows:
    """Gathers each log interval and hands its row to `on_row`, notes for the user to `on_note`.

    `clock` begins each row. With `lag` rows are read one interval late; None is what the device needs.
    """

    def __init__(
        self,
        config: Config,
        precision: Precision,
        world: World,
        *,
        clock: Clock,
        memory: Memory,
        buffers: Buffers,
        on_row: Callable[[Row], None],
        on_note: Callable[[str], None],
        lag: bool | None = None,
    ) -> None:
        self.config, self.precision, self.device = config, precision, precision.device
        self.clock, self.memory, self.on_row, self.on_note = clock, memory, on_row, on_note
        self.lag = queues_copies(self.device) if lag is None else lag
        self.interval = Interval(world)
        self.watch = ScaleWatch(config.precision.min_scale_warning)
        self.buffers, self.buffer_watch = buffers, BufferWatch(restores=buffers.restores)
        self._looks: list[tuple[int, float, dict[str, Tensor]]] = []
        self._waiting: list[PendingRow] = []
        # Plain arrays: a run of two million steps must not keep two million Python floats.
        self._step_times, self._throughputs = array("f"), array("f")

    def add(self, result: StepResult) -> None:
        """One step of the interval."""
        self.interval.add(result.loss, result.outputs, result.images)

    def look(self, step: int, position: float, gradients: dict[str, Tensor]) -> None:
        """A look at the gradients, which has a row of its own."""
        self._looks.append((step, position, gradients))

    def close(
        self, step: int, position: float, result: StepResult, rate: float, windows: list[Window]
    ) -> None:
        """End the interval at a step and its position in epochs: queue its values' copy, read the one before.

        `result` is that of the step, `rate` its learning rate, `windows` the timed ones of the interval.
        """
        looks, self._looks = self._looks, []
        steps = len(self.interval)
        scale, skipped = self.precision.scale_factor(), self.precision.skipped_steps()
        scalars = {metrics.SCALE: scale, metrics.SKIPPED: skipped}
        scalars[metrics.NONFINITE_BUFFERS] = self.buffers.count(skipped)
        norm = metrics.GRADIENT_NORM
        if norm in result.gradients:
            scalars[norm] = result.gradients[norm]
        # The row of this very step carries its gradient norm itself.
        looked = [{k: x for k, x in g.items() if s != step or k != norm} for s, _, g in looks]
        look_rows = [self.clock.row_at(s, where) for s, where, _ in looks]
        row = self.clock.row_at(step, position)
        row |= {metrics.LEARNING_RATE: rate, metrics.PEAK_MEMORY: self.memory.peak_mib()}
        if (reserved := self.memory.reserved_mib()) is not None:
            row[metrics.RESERVED_MEMORY] = reserved
        reading = self.interval.close(scalars, looked)
        self._waiting.append(PendingRow(step, row, steps, windows, reading, look_rows))
        self._read(len(self._waiting) - self.lag)

    def read_all(self) -> None:
        """Hand out all rows that wait."""
        self._read(len(self._waiting))

    def flush_after(self, problem: BaseException) -> None:
        """Hand out the rows that wait when the run ends early; what is lost is added to the problem."""
        try:
            self._read(len(self._waiting), judge=False)
        except Exception as second:  # a device that failed gives nothing any more
            problem.add_note(f"the rows of the last log interval are lost: {second}")

    def summary(self) -> Row:
        """What the rows came to so far."""
        found: Row = {}
        if self._throughputs:
            found[metrics.THROUGHPUT_MEDIAN] = median(self._throughputs)
        if self._step_times:
            found[metrics.STEP_TIME_P50] = median(self._step_times)
            twentieths = quantiles(self._step_times, n=20) if len(self._step_times) > 1 else self._step_times
            found[metrics.STEP_TIME_P95] = twentieths[-1]
        if self.precision.scales_dynamically():
            found[metrics.SCALE_COLLAPSED] = self.watch.collapsed_at
        if self.precision.scales_dynamically() or self.buffer_watch.found_at is not None:
            found[metrics.NONFINITE_AT] = self.buffer_watch.found_at
        return found

    def _read(self, count: int, *, judge: bool = True) -> None:
        """Hand out the rows of the oldest `count` intervals that wait."""
        for _ in range(count):
            waiting = self._waiting.pop(0)
            values = waiting.reading.read()
            for row, look in zip(waiting.looks, values.looks, strict=True):
                said = {k: x for k, x in look.items() if not is_missing(k, x)}
                found = {k: exponent_histogram(x) if isinstance(x, list) else x for k, x in said.items()}
                self.on_row(row | found)
            self.on_row(waiting.row | self._figures(values, waiting.windows))
            if judge:
                self._judge(waiting, values)

    def _figures(self, values: IntervalValues, windows: list[Window]) -> Row:
        row: Row = {metrics.LOSS: values.loss, metrics.ACCURACY: values.accuracy, **values.scalars}
        for key in (metrics.SKIPPED, metrics.NONFINITE_BUFFERS):
            row[key] = round(row[key])
        if times := [t for window in windows for t in window.times_ms()]:
            throughput = sum(window.images for window in windows) / sum(times) * 1e3
            data_time = sum(t for window in windows for t in window.data_times_ms()) / len(times)
            row |= {metrics.THROUGHPUT: throughput, metrics.STEP_TIME: sum(times) / len(times)}
            row[metrics.DATA_TIME] = data_time
            self._throughputs.append(throughput)
            self._step_times.extend(times)
        return row

    def _judge(self, waiting: PendingRow, values: IntervalValues) -> None:
        scale, skipped = values.scalars[metrics.SCALE], round(values.scalars[metrics.SKIPPED])
        step, steps = waiting.step, waiting.steps
        if self.precision.scales_dynamically() and (note := self.watch.check(step, steps, scale, skipped)):
            self.on_note(note)
        bad = values.nonfinite_steps
        first = step - steps + bad[0] + 1 if bad else step
        buffers = round(values.scalars[metrics.NONFINITE_BUFFERS])
        # Where BatchNorm sees inf or nan, so does the loss of the step.
        if note := self.buffer_watch.check(first, buffers, is_exact=bool(bad)):
            self.on_note(note)
        if bad:
            self._judge_loss(first, scale)

    def _judge_loss(self, step: int, scale: float) -> None:
        """Stop on a loss that was not finite at a step and that no loss scale can mend."""
        if self.precision.scales_dynamically() and scale > 1:
            return
        what = f"step {step}: the training loss is not finite (loss scale {scale:g})"
        if self.config.training.on_nan == "stop":
            advice = "a smaller optimizer.lr or training.clip_norm, or go on with training.on_nan=continue"
            raise TrainingError(f"{what}; try {advice}")
        self.on_note(f"{what}; going on (training.on_nan=continue)")

    def state_dict(self) -> Row:
        """What has been gathered. All rows have to be read before."""
        assert not self._waiting
        return {
            "interval": self.interval.state_dict(),
            "looks": list(self._looks),
            "watch": self.watch.state_dict(),
            "buffers": {**self.buffers.state_dict(), **self.buffer_watch.state_dict()},
            "step_times": torch.tensor(self._step_times),
            "throughputs": torch.tensor(self._throughputs),
        }

    def load_state_dict(self, state: Row) -> None:
        self.interval.load_state_dict(state["interval"], self.device)
        looks, device = state["looks"], self.device
        self._looks = [(n, x, {k: v.to(device) for k, v in look.items()}) for n, x, look in looks]
        self.watch.load_state_dict(state["watch"])
        if (buffers := state.get("buffers")) is not None:  # a checkpoint from before there were any has none
            self.buffers.load_state_dict(buffers)
            self.buffer_watch.load_state_dict(buffers)
        self._step_times = array("f", state["step_times"].tolist())
        self._throughputs = array("f", state["throughputs"].tolist())


def exponent_histogram(counts: list[float]) -> metrics.Histogram:
    """The histogram of `look_at_gradients` with the edges of its bins, as exponents of two."""
    edges = [float(FIRST_EXPONENT + i) for i in range(len(counts) + 1)]
    return metrics.Histogram([int(n) for n in counts], edges)
