"""The loop of a run: epochs of steps, rows at log intervals, evaluation, the figures of the summary.

On a GPU a row is read one log interval after its own, when its values have long arrived, so that the host need not wait
for the steps it has queued; each row carries its own step. Before an evaluation and at the end, whatever ends the run,
all rows are read. A killed process loses the row that was waiting, beside the steps since.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

import torch
from torch import Tensor

from ampcompare.config import Config
from ampcompare.distributed import AskTogether, World
from ampcompare.engine import Loader, StepResult, Trainer, evaluate, micro_batches
from ampcompare.measure import memory
from ampcompare.measure.energy import EnergyMeter
from ampcompare.measure.gradients import FIRST_EXPONENT
from ampcompare.measure.interval import Interval, IntervalValues, Reading
from ampcompare.measure.scale_watch import ScaleWatch
from ampcompare.measure.timing import StepTimer, Window, wait_for
from ampcompare.metrics import Histogram

Row = dict[str, Any]


class TrainingError(Exception):
    """The training cannot go on: one line that names the step, the reason and what to try. Exit code 1."""


class Keeper(Protocol):
    """Saves the state of a run."""

    saved_step: int | None

    def is_due(self, epochs: int | None = None) -> bool:
        """Whether it is time to: after so many epochs, or by the clock."""

    def save(self, *, best: bool = False) -> None:
        """Save it; `best` after the best evaluation so far."""


@dataclass(frozen=True)
class Waiting:
    """A log interval that has ended on the host: its row but for the values that are still on their way."""

    step: int
    row: Row
    steps: int
    windows: list[Window]
    reading: Reading
    looks: list[Row]  # the rows of the looks at the gradients, likewise


class Fit:
    """Trains to the end of the config, handing each row to `on_row` and each step's number to `on_step`.

    `on_note` gets sentences for the user. Rows and summary have the names of `ampcompare.metrics`. `should_stop` is
    asked after each step and within the evaluation; then the training ends with the row of the last step. With `lag`
    rows are read one interval late; None is what the device needs. `keeper` is told when a state can be saved.
    """

    def __init__(
        self,
        trainer: Trainer,
        train: Loader,
        test: Loader,
        config: Config,
        *,
        on_row: Callable[[Row], None] = lambda row: None,
        on_step: Callable[[int], None] = lambda step: None,
        on_note: Callable[[str], None] = lambda note: None,
        should_stop: Callable[[], bool] = lambda: False,
        lag: bool | None = None,
        world: World | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.world = world or World()
        self.trainer, self.train, self.test, self.config = trainer, train, test, config
        self.on_row, self.on_step, self.on_note = on_row, on_step, on_note
        self._should_stop = should_stop
        self._ask = AskTogether(self.world, trainer.precision.device, config.log.every, should_stop, self._clock_is_due)
        self.stopped = False
        self.precision = trainer.precision
        self.device = trainer.precision.device
        self.lag = self.device.type == "cuda" if lag is None else lag
        self.steps_per_epoch = steps_per_epoch(config, train)
        self.total_steps = total_steps(config, train)
        self.timer = StepTimer(self.device, config.log.warmup_steps)
        self.interval = Interval(self.world)
        self.energy = EnergyMeter(self.device)
        self.watch = ScaleWatch(config.precision.min_scale_warning)
        self.keeper = keeper
        self.step = 0
        # Where the run is: in which epoch, after how many of its steps, and whether the evaluation there is done.
        self.epoch, self.in_epoch, self.evaluated = 0, 0, False
        self._is_best = self._due = False
        self._windows: list[Window] = []  # since the last row
        self._looks: list[tuple[int, float, dict[str, Tensor]]] = []
        self._waiting: list[Waiting] = []
        self._began = time.perf_counter()
        self._resumed = self._began
        self._train_seconds = 0.0
        self._learning_rate = 0.0
        self._peak_reset = False
        # Plain arrays: a run of two million steps must not keep two million Python floats.
        self._step_times, self._throughputs = array("f"), array("f")
        self._evals: list[tuple[float, float]] = []  # epoch, accuracy

    def run(self) -> Row:
        """Train; returns the summary. Raises TrainingError when the loss is not finite and that is to stop the run."""
        try:
            with self.precision.session():
                self._train()
        except BaseException as problem:
            self._save_rows(problem)
            raise
        return self.summary()

    def _train(self) -> None:
        for epoch in range(self.epoch, self.config.epochs):
            if self.in_epoch < self.steps_per_epoch and self.step < self.total_steps:
                self.train_epoch(epoch, self.in_epoch)
            last = self.step >= self.total_steps
            due = not self.evaluated and (last or (epoch + 1) % self.config.eval.every == 0)
            if due and not self.stopped:
                self._evaluate(epoch)
            if not (last or self.stopped):
                self.epoch, self.in_epoch, self.evaluated = epoch + 1, 0, False
            if self.keeper and (last or self.stopped or self._due or self.keeper.is_due(epoch + 1)):
                self.keeper.save(best=self._is_best)
            if last or self.stopped:
                break

    def _clock_is_due(self) -> bool:
        return self.keeper is not None and self.keeper.is_due()

    def _save_rows(self, problem: BaseException) -> None:
        """Hand out the rows that wait when the run ends early."""
        try:
            self._read(len(self._waiting), judge=False)
        except Exception as second:  # a device that failed gives nothing any more
            problem.add_note(f"the rows of the last log interval are lost: {second}")

    def summary(self) -> Row:
        """What the run came to so far, beside the last value of each metric."""
        found: Row = {}
        if self._evals:
            epoch, accuracy = max(self._evals, key=lambda pair: pair[1])
            found |= {"best/eval_accuracy": accuracy, "best/epoch": epoch}
        if self._throughputs:
            found["throughput/images_per_second_median"] = median(self._throughputs)
        if self._step_times:
            found["throughput/step_time_ms_p50"] = median(self._step_times)
            twentieths = quantiles(self._step_times, n=20) if len(self._step_times) > 1 else self._step_times
            found["throughput/step_time_ms_p95"] = twentieths[-1]
        if self.precision.scales_dynamically():
            found["amp/scale_collapsed_at_step"] = self.watch.collapsed_at
        return found

    def train_epoch(self, epoch: int, start: int = 0) -> None:
        """One pass over the training images, from step number `start` on, with its rows."""
        config = self.config
        self.energy.start()
        images = 0
        self.evaluated = self._is_best = False
        self._resume()
        accumulate = config.training.accumulate
        feed = self.trainer.feed(self.train, epoch, start * accumulate)
        for number, batches in enumerate(micro_batches(feed, accumulate), start + 1):
            self.timer.fetched()
            self.step, self.in_epoch = self.step + 1, number
            position = epoch + number / self.steps_per_epoch
            diagnose = config.diagnostics.every is not None and self.step % config.diagnostics.every == 0
            self._learning_rate = self.trainer.optimizer.param_groups[0]["lr"]
            result = self.trainer.step(batches, diagnose=diagnose)
            self.interval.add(result.loss, result.outputs, result.images)
            self.timer.lap(result.images, cold=result.cold)
            images += result.images
            if self.timer.warm and not self._peak_reset:
                self._peak_reset = True
                if not self.trainer.holds_peak:
                    memory.reset_peak(self.device)
            self.stopped, self._due = self._ask.at(self.step)
            last = self.stopped or self.step == self.total_steps
            if diagnose:
                self._looks.append((self.step, position, result.gradients))
            if self.step % config.log.every == 0 or last:
                self._log(position, result)
                self._resume()
            self._last = position, result
            self.on_step(self.step)
            if last:
                break
            if self.keeper and self._due and number < self.steps_per_epoch:
                self._pause()
                self._read(len(self._waiting))  # sync: what is saved must have been logged
                self.keeper.save()
                self._resume()
        wait_for(self.device)  # sync: the epoch's time and energy end with its last step
        self._pause()
        self._read(len(self._waiting))
        joules = self.energy.joules()
        if joules is not None and images and self.world.size == 1:  # the meter knows one GPU
            self.on_row(self._row(position, {"energy/joules_per_image": joules / images}))

    def _log(self, position: float, result: StepResult) -> None:
        """End a log interval: queue the copy of its values, read the interval before."""
        self._pause()
        windows, self._windows = self._windows, []
        looks, self._looks = self._looks, []
        steps = len(self.interval)
        scalars = {
            "amp/scale_factor": self.precision.scale_factor(),
            "amp/skipped_steps": self.precision.skipped_steps(),
        }
        if "grad/norm" in result.gradients:
            scalars["grad/norm"] = result.gradients["grad/norm"]
        # The row of this very step carries its gradient norm itself.
        looked = [{k: x for k, x in g.items() if s != self.step or k != "grad/norm"} for s, _, g in looks]
        look_rows = [self._row(where, {}, step) for step, where, _ in looks]
        row: Row = {
            "train/learning_rate": self._learning_rate,
            "memory/peak_mib": memory.peak_mib(self.device),
        }
        self._waiting.append(
            Waiting(
                self.step,
                self._row(position, row),
                steps,
                windows,
                self.interval.close(scalars, looked),
                look_rows,
            )
        )
        self._read(len(self._waiting) - self.lag)

    def _read(self, count: int, *, judge: bool = True) -> None:
        """Hand out the rows of the oldest `count` intervals that wait."""
        for _ in range(count):
            waiting = self._waiting.pop(0)
            values = waiting.reading.read()
            for row, look in zip(waiting.looks, values.looks, strict=True):
                found = {k: exponent_histogram(x) if isinstance(x, list) else x for k, x in look.items()}
                self.on_row(row | found)
            self.on_row(waiting.row | self._figures(values, waiting.windows))
            if judge:
                self._judge(waiting, values)

    def _figures(self, values: IntervalValues, windows: list[Window]) -> Row:
        row: Row = {"train/loss": values.loss, "train/accuracy": values.accuracy, **values.scalars}
        row["amp/skipped_steps"] = round(row["amp/skipped_steps"])
        times = [t for window in windows for t in window.times_ms()]
        if times:
            throughput = sum(window.images for window in windows) / sum(times) * 1e3
            row |= {
                "throughput/images_per_second": throughput,
                "throughput/step_time_ms": sum(times) / len(times),
                "throughput/data_time_ms": sum(t for w in windows for t in w.data_times_ms()) / len(times),
            }
            self._throughputs.append(throughput)
            self._step_times.extend(times)
        return row

    def _judge(self, waiting: Waiting, values: IntervalValues) -> None:
        scale, skipped = values.scalars["amp/scale_factor"], round(values.scalars["amp/skipped_steps"])
        if self.precision.scales_dynamically():
            note = self.watch.look(waiting.step, waiting.steps, scale, skipped)
            if note:
                self.on_note(note)
        if values.nonfinite_steps:
            self._judge_loss(waiting.step - waiting.steps + values.nonfinite_steps[0] + 1, scale)

    def _judge_loss(self, step: int, scale: float) -> None:
        """Stop on a loss that was not finite at a step and that no loss scale can mend."""
        if self.precision.scales_dynamically() and scale > 1:
            return
        what = f"step {step}: the training loss is not finite (loss scale {scale:g})"
        if self.config.training.on_nan == "stop":
            raise TrainingError(
                f"{what}; try a smaller optimizer.lr or training.clip_norm, or go on with training.on_nan=continue"
            )
        self.on_note(f"{what}; going on (training.on_nan=continue)")

    def _evaluate(self, epoch: int) -> None:
        position = min(epoch + 1.0, self.step / self.steps_per_epoch)
        self.world.share_buffers(self.trainer.model)
        metrics = evaluate(
            self.trainer.model,
            self.test,
            self.precision,
            autocast=self.config.eval.autocast,
            should_stop=lambda: self.world.size == 1 and self._should_stop(),
            world=self.world,
        )
        if metrics is None:
            self.stopped = True
            if len(self.interval):  # the steps since the last row
                self._resume()
                self._log(*self._last)
                self._read(len(self._waiting))
            return
        self.evaluated = True
        if math.isfinite(metrics["eval/loss"]):
            self._is_best = all(metrics["eval/accuracy"] > accuracy for _, accuracy in self._evals)
            self._evals.append((position, metrics["eval/accuracy"]))
        self.on_row(self._row(position, metrics))

    def _row(self, position: float, values: Row, step: int | None = None) -> Row:
        clock = {
            "global_step": self.step if step is None else step,
            "epoch": position,
            "time/elapsed_seconds": time.perf_counter() - self._began,
            "time/train_seconds": self._train_seconds,
        }
        return clock | values

    def state_dict(self) -> Row:
        """Where the run is and what it has gathered: plain values and tensors. All rows have to be read before."""
        assert not self._waiting
        return {
            "step": self.step,
            "epoch": self.epoch,
            "in_epoch": self.in_epoch,
            "evaluated": self.evaluated,
            "interval": self.interval.state_dict(),
            "looks": list(self._looks),
            "watch": self.watch.state_dict(),
            "evals": list(self._evals),
            "step_times": torch.tensor(self._step_times),
            "throughputs": torch.tensor(self._throughputs),
            "elapsed_seconds": time.perf_counter() - self._began,
            "train_seconds": self._train_seconds,
        }

    def load_state_dict(self, state: Row) -> None:
        """Go on from a state of `state_dict`. Warm-up begins anew, as in any new process."""
        self.step, self.epoch, self.in_epoch = state["step"], state["epoch"], state["in_epoch"]
        self.evaluated = state["evaluated"]
        self.interval.load_state_dict(state["interval"], self.device)
        self._looks = [(n, x, {k: v.to(self.device) for k, v in look.items()}) for n, x, look in state["looks"]]
        self.watch.load_state_dict(state["watch"])
        self._evals = [(epoch, accuracy) for epoch, accuracy in state["evals"]]
        self._step_times = array("f", state["step_times"].tolist())
        self._throughputs = array("f", state["throughputs"].tolist())
        self._began = time.perf_counter() - state["elapsed_seconds"]
        self._train_seconds = state["train_seconds"]

    def _resume(self) -> None:
        self._resumed = time.perf_counter()
        self.timer.resume()

    def _pause(self) -> None:
        """End the timed window, at a log interval or an epoch's end."""
        self._windows.append(self.timer.pause())
        now = time.perf_counter()
        self._train_seconds += now - self._resumed
        self._resumed = now


def exponent_histogram(counts: list[float]) -> Histogram:
    """The histogram of `look_at_gradients` with the edges of its bins, as exponents of two."""
    return Histogram([int(n) for n in counts], [float(FIRST_EXPONENT + i) for i in range(len(counts) + 1)])


def steps_per_epoch(config: Config, train: Loader) -> int:
    """Optimizer steps in an epoch; the last may have fewer micro-batches."""
    return -(-len(train) // config.training.accumulate)


def total_steps(config: Config, train: Loader) -> int:
    """Optimizer steps of the whole run."""
    steps = config.epochs * steps_per_epoch(config, train)
    return steps if config.max_steps is None else min(steps, config.max_steps)
