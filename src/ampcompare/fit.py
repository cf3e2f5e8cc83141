"""The loop of a run: epochs of steps, rows at log intervals, evaluation, the figures of the summary."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from ampcompare.config import Config
from ampcompare.engine import Loader, StepResult, Trainer, evaluate, micro_batches
from ampcompare.measure import memory
from ampcompare.measure.energy import EnergyMeter
from ampcompare.measure.gradients import FIRST_EXPONENT
from ampcompare.measure.interval import Interval
from ampcompare.measure.scale_watch import ScaleWatch
from ampcompare.measure.timing import StepTimer
from ampcompare.metrics import Histogram

Row = dict[str, Any]


class TrainingError(Exception):
    """The training cannot go on: one line that names the step, the reason and what to try. Exit code 1."""


class Fit:
    """Trains to the end of the config, handing each row to `on_row` and each step's number to `on_step`.

    `on_note` gets sentences for the user. Rows and summary have the names of `ampcompare.metrics`.
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
    ) -> None:
        self.trainer, self.train, self.test, self.config = trainer, train, test, config
        self.on_row, self.on_step, self.on_note = on_row, on_step, on_note
        self.precision = trainer.precision
        self.device = trainer.precision.device
        self.steps_per_epoch = steps_per_epoch(config, train)
        self.total_steps = total_steps(config, train)
        self.timer = StepTimer(self.device, config.log.warmup_steps)
        self.interval = Interval(config.log.every, self.device)
        self.energy = EnergyMeter(self.device)
        self.watch = ScaleWatch(config.precision.min_scale_warning)
        self.step = 0
        self._times: list[float] = []  # of the steps since the last row, and the images in them
        self._images = 0
        self._pending: list[tuple[int, float, dict[str, Tensor]]] = []
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
        with self.precision.session():
            for epoch in range(self.config.epochs):
                self._train_epoch(epoch)
                last = self.step >= self.total_steps
                if last or (epoch + 1) % self.config.eval.every == 0:
                    self._evaluate(epoch)
                if last:
                    break
        return self.summary()

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

    def _train_epoch(self, epoch: int) -> None:
        config = self.config
        self.energy.start()
        images = 0
        self._resume()
        for number, batches in enumerate(micro_batches(self.train.epoch(epoch), config.training.accumulate), 1):
            self.step += 1
            position = epoch + number / self.steps_per_epoch
            diagnose = config.diagnostics.every is not None and self.step % config.diagnostics.every == 0
            self._learning_rate = self.trainer.optimizer.param_groups[0]["lr"]
            result = self.trainer.step(batches, diagnose=diagnose)
            self.interval.add(result.loss, result.correct, result.images)
            self.timer.lap(result.images, cold=result.cold)
            images += result.images
            if self.timer.warm and not self._peak_reset:
                memory.reset_peak(self.device)
                self._peak_reset = True
            last = self.step == self.total_steps
            if diagnose:
                self._pending.append((self.step, position, result.gradients))
            if self.step % config.log.every == 0 or last:
                self._log(position, result)
                self._resume()
            self.on_step(self.step)
            if last:
                break
        self._pause()
        joules = self.energy.joules()
        if joules is not None and images:
            self.on_row(self._row(epoch + 1, {"energy/joules_per_image": joules / images}))

    def _log(self, position: float, result: StepResult) -> None:
        self._pause()
        times, images = self._times, self._images
        self._times, self._images = [], 0
        length = len(self.interval)
        # sync: the end of a log interval, outside the timed window
        values = self.interval.read(self.precision.scale_factor(), self.precision.skipped_steps())
        self._log_diagnostics()
        row: Row = {
            "train/loss": values.loss,
            "train/accuracy": values.accuracy,
            "train/learning_rate": self._learning_rate,
            "amp/scale_factor": values.scale,
            "amp/skipped_steps": values.skipped,
            "memory/peak_mib": memory.peak_mib(self.device),
        }
        if times:
            throughput = images / sum(times) * 1e3
            row |= {
                "throughput/images_per_second": throughput,
                "throughput/step_time_ms": sum(times) / len(times),
            }
            self._throughputs.append(throughput)
            self._step_times.extend(times)
        if "grad/norm" in result.gradients:
            row["grad/norm"] = result.gradients["grad/norm"].item()  # sync: the interval has ended
        self.on_row(self._row(position, row))
        if self.precision.scales_dynamically():
            note = self.watch.look(self.step, length, values.scale, values.skipped)
            if note:
                self.on_note(note)
        self._judge_loss(values.nonfinite_steps, length, values.scale)

    def _log_diagnostics(self) -> None:
        """Rows of the looks at the gradients since the last one, each under its own step."""
        for step, position, gradients in self._pending:
            # The row of this very step carries its gradient norm itself.
            keys = [k for k in gradients if step != self.step or k != "grad/norm"]
            # sync: the interval has ended; one copy for all
            values = torch.cat([gradients[k].double().reshape(-1) for k in keys]).tolist()
            row: Row = {}
            for key in keys:
                size = gradients[key].numel()
                row[key] = values[0] if gradients[key].ndim == 0 else exponent_histogram(values[:size])
                del values[:size]
            self.on_row(self._row(position, row, step))
        self._pending.clear()

    def _judge_loss(self, nonfinite: list[int], length: int, scale: float) -> None:
        """Stop on a loss that no loss scale can mend."""
        if not nonfinite or (self.precision.scales_dynamically() and scale > 1):
            return
        step = self.step - length + nonfinite[0] + 1
        what = f"step {step}: the training loss is not finite (loss scale {scale:g})"
        if self.config.training.on_nan == "stop":
            raise TrainingError(
                f"{what}; try a smaller optimizer.lr or training.clip_norm, or go on with training.on_nan=continue"
            )
        self.on_note(f"{what}; going on (training.on_nan=continue)")

    def _evaluate(self, epoch: int) -> None:
        position = min(epoch + 1.0, self.step / self.steps_per_epoch)
        metrics = evaluate(self.trainer.model, self.test, self.precision, autocast=self.config.eval.autocast)
        if math.isfinite(metrics["eval/loss"]):
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

    def _resume(self) -> None:
        self._resumed = time.perf_counter()
        self.timer.resume()

    def _pause(self) -> None:
        """End the timed window, at a log interval or an epoch's end. Waits for the device."""
        times, images = self.timer.read()
        self._times += times
        self._images += images
        self._train_seconds += time.perf_counter() - self._resumed
        self._resumed = time.perf_counter()


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
