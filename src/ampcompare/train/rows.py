"""The rows of log intervals: gathered on the device, read when their values have come, judged.

On a GPU a row is read one log interval after its own, when its values have long arrived, so that the host
need not wait for the steps it has queued; each row carries its own step. Before an evaluation and at the end,
whatever ends the run, all rows are read. A killed process loses the row that waited, beside the steps since.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.machine.device import Memory, is_cuda
from ampcompare.machine.world import World
from ampcompare.measure.gradients import exponent_histogram
from ampcompare.measure.timing import Window
from ampcompare.measure.updates import is_missing
from ampcompare.train.buffers import ADVICE as BUFFERS_ADVICE
from ampcompare.train.buffers import Buffers, BufferWatch
from ampcompare.train.clock import Clock, Row
from ampcompare.train.interval import Interval, IntervalValues, Reading
from ampcompare.train.overflows import Found, OverflowLog, Overflows, Pending
from ampcompare.train.scale_watch import ADVICE as SCALE_ADVICE
from ampcompare.train.scale_watch import ScaleWatch
from ampcompare.train.trainer import StepResult


@dataclass(frozen=True)
class PendingRow:
    """A log interval that has ended on the host: its row but for the values that are still on their way."""

    step: int
    row: Row
    steps: int
    windows: list[Window]
    reading: Reading
    looks: list[Row]  # the rows of the looks at gradients and activations, likewise
    overflows: list[Pending]  # the steps that may name a module, likewise


class Scaling(Protocol):
    """What rows ask of the loss scaling; each `Precision` answers it (see there)."""

    device: torch.device

    def scale_factor(self) -> Tensor: ...
    def skipped_steps(self) -> Tensor: ...
    def scales_dynamically(self) -> bool: ...


@dataclass(frozen=True)
class Advice:
    """What to try when something is wrong, in the words of who trains."""

    scale: str = SCALE_ADVICE
    buffers: str = BUFFERS_ADVICE


# Of a loss that is not finite before anything was learnt.
AT_FIRST = "look at inputs, targets and initial weights"


class Rows:
    """Gathers each log interval and hands its row to `on_row`, notes for the user to `on_note`.

    `clock` begins each row; `buffers` are watched, None: those of a model that is not known. `on_bad_loss` is
    told of a loss that is not finite and that no loss scale can mend, and what to look at, where that is
    known. A scale that collapses is said. With `lag` rows are read one interval late; None is what the
    device needs.
    """

    def __init__(
        self,
        scaling: Scaling,
        world: World,
        *,
        clock: Clock,
        memory: Memory,
        buffers: Buffers | None,
        on_row: Callable[[Row], None],
        on_note: Callable[[str], None],
        on_bad_loss: Callable[[str, str], None],
        advice: Advice = Advice(),
        lag: bool | None = None,
        overflows: Overflows | None = None,
    ) -> None:
        self.scaling, self.device = scaling, scaling.device
        self.clock, self.memory, self.on_row, self.on_note = clock, memory, on_row, on_note
        self.on_bad_loss = on_bad_loss
        self.lag = is_cuda(self.device) if lag is None else lag
        self.interval = Interval(world)
        self.watch = ScaleWatch(advice.scale)
        self.buffers = buffers
        self.buffer_watch = BufferWatch(restores=bool(buffers and buffers.restores), advice=advice.buffers)
        self._overflows = OverflowLog(overflows or Overflows([], self.device))
        self._looks: list[tuple[int, float | None, dict[str, Tensor]]] = []
        self._waiting: list[PendingRow] = []
        self._never_finite = False
        # Plain arrays: a run of two million steps must not keep two million Python floats.
        self._step_times, self._throughputs = array("f"), array("f")

    def add(self, result: StepResult) -> None:
        """One step of the interval."""
        self.interval.add(result.loss, result.outputs, result.images)

    def look(self, step: int, position: float | None, gradients: dict[str, Tensor]) -> None:
        """A look at gradients and activations, which has a row of its own."""
        self._looks.append((step, position, gradients))

    def overflow(self, step: int, position: float | None, found: Found) -> None:
        """A step that was or may have been skipped, which has a row of its own if it was."""
        self._overflows.add(step, position, found)

    def close(
        self,
        step: int,
        position: float | None,
        gradients: Mapping[str, Tensor],
        rate: float | Tensor | None,
        windows: list[Window],
    ) -> None:
        """End the interval at a step and its position in epochs: queue its values' copy, read the one before.

        `gradients` are the step's figures of them, if it has any, `rate` its learning rate (None: not known),
        `windows` the timed ones of the interval.
        """
        looks, self._looks = self._looks, []
        steps = len(self.interval)
        scale, skipped = self.scaling.scale_factor(), self.scaling.skipped_steps()
        scalars = {metrics.SCALE: scale, metrics.SKIPPED: skipped}
        if self.buffers is not None:
            scalars[metrics.NONFINITE_BUFFERS] = self.buffers.count(skipped)
        norm = metrics.GRADIENT_NORM
        if norm in gradients:
            scalars[norm] = gradients[norm]
        # The row of this very step carries its gradient norm itself.
        looked = [{k: x for k, x in g.items() if s != step or k != norm} for s, _, g in looks]
        look_rows = [self.clock.row_at(s, where) for s, where, _ in looks]
        row = self.clock.row_at(step, position)
        if isinstance(rate, Tensor):  # of a capturable optimizer
            scalars[metrics.LEARNING_RATE] = rate
        elif rate is not None:
            row[metrics.LEARNING_RATE] = rate
        if (peak := self.memory.peak_mib()) is not None:
            row[metrics.PEAK_MEMORY] = peak
        if (reserved := self.memory.reserved_mib()) is not None:
            row[metrics.RESERVED_MEMORY] = reserved
        pending, firsts = self._overflows.close(self.clock.row_at)
        looked += [{metrics.NONFINITE_MODULE: each} for each in firsts]
        reading = self.interval.close(scalars, looked)
        self._waiting.append(PendingRow(step, row, steps, windows, reading, look_rows, pending))
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
        if self.scaling.scales_dynamically():
            found[metrics.SCALE_COLLAPSED] = self.watch.collapsed_at
        known = self.buffers is not None and self.scaling.scales_dynamically()
        if known or self.buffer_watch.found_at is not None:
            found[metrics.NONFINITE_AT] = self.buffer_watch.found_at
        return found | self._overflows.summary()

    def _read(self, count: int, *, judge: bool = True) -> None:
        """Hand out the rows of the oldest `count` intervals that wait."""
        for _ in range(count):
            waiting = self._waiting.pop(0)
            values = waiting.reading.read()
            firsts: Any = values.looks.pop()[metrics.NONFINITE_MODULE] if waiting.overflows else []
            overflows = self._overflows.read(waiting.overflows, firsts)
            for row, look in zip(waiting.looks, values.looks, strict=True):
                said = {k: x for k, x in look.items() if not is_missing(k, x)}
                found = {k: exponent_histogram(x) if isinstance(x, list) else x for k, x in said.items()}
                self.on_row(row | found)
            for row in overflows:
                self.on_row(row)
            self.on_row(waiting.row | self._figures(values, waiting.windows))
            if judge:
                self._judge(waiting, values, overflows)

    def _figures(self, values: IntervalValues, windows: list[Window]) -> Row:
        row: Row = {metrics.LOSS: values.loss, metrics.ACCURACY: values.accuracy, **values.scalars}
        row = {key: value for key, value in row.items() if value is not None}
        for key in {metrics.SKIPPED, metrics.NONFINITE_BUFFERS} & row.keys():
            row[key] = round(row[key])
        if times := [t for window in windows for t in window.times_ms()]:
            throughput = sum(window.images for window in windows) / sum(times) * 1e3
            row |= {metrics.THROUGHPUT: throughput, metrics.STEP_TIME: sum(times) / len(times)}
            if data_times := [t for window in windows for t in window.data_times_ms()]:
                row[metrics.DATA_TIME] = sum(data_times) / len(times)
            self._throughputs.append(throughput)
            self._step_times.extend(times)
        return row

    def _judge(self, waiting: PendingRow, values: IntervalValues, overflows: list[Row]) -> None:
        scale, skipped = values.scalars[metrics.SCALE], round(values.scalars[metrics.SKIPPED])
        step, steps = waiting.step, waiting.steps
        bad = values.nonfinite_steps
        first = step - steps + bad[0] + 1 if bad else step
        is_mended = self.scaling.scales_dynamically() and scale > 1
        if first == 1 and bad and is_mended:
            self.on_note(f"step 1: the training loss is not finite (loss scale {scale:g}); {AT_FIRST}")
        self._never_finite = (self._never_finite or step == steps) and len(bad) == steps
        advice = AT_FIRST if self._never_finite else None
        if self.scaling.scales_dynamically() and (
            note := self.watch.check(step, steps, scale, skipped, advice)
        ):
            self.on_note(note)
        buffers = round(values.scalars.get(metrics.NONFINITE_BUFFERS, 0))
        # Where BatchNorm sees inf or nan, so does the loss of the step.
        if note := self.buffer_watch.check(first, buffers, is_exact=bool(bad)):
            self.on_note(note)
        for said in self._overflows.count(overflows, skipped, {step - steps + i + 1 for i in bad}):
            self.on_note(said)
        if bad and not is_mended:
            what = f"step {first}: the training loss is not finite (loss scale {scale:g})"
            self.on_bad_loss(what, AT_FIRST if first == 1 or self._never_finite else "")

    def state_dict(self) -> Row:
        """What has been gathered. All rows have to be read before."""
        assert not self._waiting
        return {
            "interval": self.interval.state_dict(),
            "looks": list(self._looks),
            "watch": self.watch.state_dict(),
            "overflows": self._overflows.state_dict(),
            "buffers": {
                **(self.buffers.state_dict() if self.buffers else {}),
                **self.buffer_watch.state_dict(),
            },
            "step_times": torch.tensor(self._step_times),
            "throughputs": torch.tensor(self._throughputs),
        }

    def load_state_dict(self, state: Row) -> None:
        self.interval.load_state_dict(state["interval"], self.device)
        looks, device = state["looks"], self.device
        self._looks = [(n, x, {k: v.to(device) for k, v in look.items()}) for n, x, look in looks]
        self.watch.load_state_dict(state["watch"])
        # A checkpoint from before there were any has none.
        if (overflows := state.get("overflows")) is not None:
            self._overflows.load_state_dict(overflows, device)
        if self.buffers is not None and (buffers := state.get("buffers")) is not None:
            self.buffers.load_state_dict(buffers)
            self.buffer_watch.load_state_dict(buffers)
        self._step_times = array("f", state["step_times"].tolist())
        self._throughputs = array("f", state["throughputs"].tolist())
