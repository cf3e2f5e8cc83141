"""Clocks of a training: elapsed and training time, step times, throughput, energy per sample."""

import time
from array import array
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from ampcompare import metrics
from ampcompare.system.device import TimingEvent, elapsed_ms, event_recorder, is_host, wait_for
from ampcompare.training.resources import EnergyCounter, PeakMemory

Row = dict[str, Any]
# After so many steps the peak of memory starts: cuDNN has chosen its algorithms, nothing is captured yet.
FIRST_STEPS = 3


# The start of a step, when its batch was ready, its end, and its samples. None stands for a time or a number
# that the loop did not give. One is made at each step, so it is a plain tuple.
StepMarks = tuple[TimingEvent, TimingEvent | None, TimingEvent, int | None]


class Timing:
    """Times steps without waiting for the device, except to read an energy counter.

    A training alternates between steps and pauses (evaluations, checkpoints). Throughput, step times and
    energy leave out pauses, the warm-up steps and steps that compiled something. The training time includes
    every step. Its part in start-up is recorded too: that of the first step, in which libraries load their
    kernels, and of steps that compiled something.

    Args:
        device: The device that runs the steps.
        warmup_steps: The first steps that count in no throughput, step time or energy.
        energy: The counter of the only GPU of this training; None: no energy is measured.
        memory: The reader of peak memory; None: that of the device.
        clock: Returns seconds, also for the marks of steps on a CPU; None: `time.perf_counter`.

    Attributes:
        is_paused: Whether something else than training was done since the last step.
        memory: The reader of peak memory.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        warmup_steps: int,
        energy: EnergyCounter | None = None,
        memory: PeakMemory | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._device, self._warmup_steps, self._energy = device, warmup_steps, energy
        self.memory = PeakMemory(device) if memory is None else memory
        clock = time.perf_counter if clock is None else clock
        self._clock, self._on_host = clock, is_host(device)
        self._mark: Callable[[], TimingEvent] = clock if self._on_host else event_recorder(device)
        self._steps, self._peak_starts = 0, min(warmup_steps, FIRST_STEPS)
        self._started = self._since = clock()
        self._train_seconds = 0.0
        self._startup_seconds = 0.0
        self.is_paused = True
        self._step_start: TimingEvent = self._mark()
        self._batch_ready: TimingEvent | None = None
        self._marks: list[StepMarks] = []
        self._energy_samples: int | None = 0  # None: not known
        # Arrays of numbers: a run of two million steps must not keep as many Python floats.
        self._step_times = array("f")
        self._throughputs, self._steps_of_row = array("f"), array("l")  # one of each per row

    def resume(self) -> None:
        """Start the next step here, after a pause or before the first step."""
        self._since, self._step_start, self._batch_ready = self._clock(), self._mark(), None
        if self.is_paused:
            self.memory.resume()
        self.is_paused = False
        self._start_energy()

    def mark_batch_ready(self) -> None:
        """Note that the batch of the next step is there. Optional: it separates loading from computing."""
        self._batch_ready = self._mark()

    def end_step(self, samples: int | None, *, compiled: bool) -> None:
        """End a step of so many samples; one that compiled something has no step time.

        A step whose samples are not known (None) has no throughput.
        """
        end = self._mark()
        self._steps += 1
        if self._steps == self._peak_starts:
            self.memory.restart()
        # After a pause without `resume`, the start of the step is not known.
        if compiled or self.is_paused or self._steps == self._warmup_steps:
            self._start_energy()
        if self._steps > self._warmup_steps and not (compiled or self.is_paused):
            self._marks.append((self._step_start, self._batch_ready, end, samples))
            if samples is None or self._energy_samples is None:
                self._energy_samples = None
            else:
                self._energy_samples += samples
        self._step_start, self._batch_ready = end, None
        now = self._clock()
        if not self.is_paused:
            self._train_seconds += now - self._since
            if compiled or self._steps == 1:
                self._startup_seconds += now - self._since
        self._since, self.is_paused = now, False

    def end_row(self) -> None:
        """Leave the time since the last step out: it made a row.

        On a GPU the queued steps run meanwhile, so the time counts as training there.
        """
        if self._on_host:
            self._since = self._clock()
        self._step_start = self._mark()

    def pause(self, *, since_step: bool = False) -> None:
        """End training here, or at the last step with `since_step`."""
        self.memory.pause()
        if not since_step:
            self._train_seconds += self._clock() - self._since
        self.is_paused = True

    def clocks(self) -> Row:
        """Return elapsed, training and start-up seconds by metric key, now."""
        return {
            metrics.ELAPSED: self._clock() - self._started,
            metrics.TRAIN_SECONDS: self._train_seconds,
            metrics.STARTUP_SECONDS: self._startup_seconds,
        }

    @property
    def has_energy(self) -> bool:
        """Return whether `joules_per_sample` would have steps to measure."""
        return self._energy is not None and self._energy.is_available and bool(self._energy_samples)

    def joules_per_sample(self) -> float | None:
        """Return the energy per sample since warm-up or the last pause. Waits for the device."""
        if self._energy is None or not self._energy_samples:
            return None
        wait_for(self._device)  # sync: the energy ends with the last step
        joules = self._energy.joules()
        return None if joules is None else joules / self._energy_samples

    def take_marks(self) -> list[StepMarks]:
        """Return the marks of the steps since the last call."""
        marks, self._marks = self._marks, []
        return marks

    def measure(self, marks: list[StepMarks]) -> Row:
        """Return throughput (samples/s) and times (ms) of steps that the device has finished."""
        if not marks:
            return {}
        times = [elapsed_ms(start, end) for start, _, end, _ in marks]
        row: Row = {}
        counted = [
            (samples, took) for (*_, samples), took in zip(marks, times, strict=True) if samples is not None
        ]
        if counted:
            throughput = sum([samples for samples, _ in counted]) / sum([took for _, took in counted]) * 1e3
            row[metrics.THROUGHPUT] = throughput
            self._throughputs.append(throughput)
            self._steps_of_row.append(len(counted))
        row[metrics.STEP_TIME] = sum(times) / len(times)
        loading = [elapsed_ms(start, ready) for start, ready, *_ in marks if ready is not None]
        if loading:
            row[metrics.DATA_TIME] = sum(loading) / len(times)
        self._step_times.extend(times)
        return row

    def summary(self) -> Row:
        """Return the median throughput and the percentiles of step times so far."""
        times = self._step_times
        if not times:
            return {}
        summary: Row = {
            metrics.STEP_TIME_P50: median(times),
            metrics.STEP_TIME_P95: (quantiles(times, n=20) if len(times) > 1 else times)[-1],
        }
        if self._throughputs:
            # Weighted by steps: the last row of an epoch may be of a few.
            by_steps = np.repeat(np.array(self._throughputs, dtype=np.float64), self._steps_of_row)
            summary[metrics.THROUGHPUT_MEDIAN] = float(np.median(by_steps))
        return summary

    def state_dict(self) -> Row:
        """Return plain values and tensors for a checkpoint. No row may wait."""
        return {
            "elapsed_seconds": self._clock() - self._started,
            "train_seconds": self._train_seconds,
            "startup_seconds": self._startup_seconds,
            # NumPy arrays, since torch.tensor reads Python's number by number: 0.3 s for 2,000,000.
            "step_times": torch.tensor(np.asarray(self._step_times)),
            "throughputs": torch.tensor(np.asarray(self._throughputs)),
            "steps_of": torch.tensor(np.asarray(self._steps_of_row)),
        }

    def load_state_dict(self, state: Row) -> None:
        """Continue from a state of `state_dict`. Warm-up starts again, as in any new process."""
        self._started = self._clock() - state["elapsed_seconds"]
        self._train_seconds = state["train_seconds"]
        self._startup_seconds = state["startup_seconds"]
        self._step_times = array("f", state["step_times"].tolist())
        self._throughputs = array("f", state["throughputs"].tolist())
        self._steps_of_row = array("l", state["steps_of"].tolist())

    def _start_energy(self) -> None:
        if self._energy is not None:
            self._energy.start()
        self._energy_samples = 0
