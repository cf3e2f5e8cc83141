"""Steps in, rows out: what a row says of its steps, for our loop and for anybody's under the Recorder.

A step leaves its figures on the device. At the end of a log interval they go to the host in one copy, which
on a GPU is read one interval later, when it has long come, so that the host need not wait for the steps that
it has queued; each row carries its own step. A killed process loses the row that waited, beside the steps
since.
"""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ampcompare import metrics
from ampcompare.data.given import IGNORED
from ampcompare.machine.device import (
    Mark,
    between_ms,
    is_cuda,
    is_host,
    marker,
    peak_mib,
    reserved_mib,
    reset_peak,
    start_copy,
    wait_for,
    widest_float,
)
from ampcompare.machine.world import World
from ampcompare.precision.base import Precision
from ampcompare.train.measure.energy import EnergyMeter
from ampcompare.train.measure.gradients import exponent_histogram
from ampcompare.train.overflows import Buffers, Found, Overflows
from ampcompare.train.troubles import Row, Troubles

MOST_WAITING = 2**20  # answers that wait for the row: 9 MiB, which would else be in the peak of memory
FIRST_STEPS = 3  # behind which the peak of memory begins: cuDNN has chosen, nothing is captured yet


@dataclass
class Result:
    """What an optimizer step came to, all on the device: nobody waits."""

    loss: Any  # the mean: a 0-d tensor, or a number on the host; None in all steps or in none
    samples: int  # of all processes
    # Of each micro-batch that was classified who was right, bool [N], and the classes, int64 [N]. They are
    # summed at the row: to count at each step took two thirds of the loop's own time.
    right: Sequence[tuple[Tensor, Tensor]] = ()
    looks: Mapping[str, Tensor] = field(default_factory=dict)  # by metric key, where they were asked for
    cold: bool = False  # whether something was compiled in it: no step to time
    overflow: Found | None = None  # of a step that was or may have been skipped: where it overflowed


class Scaling:
    """The loss scaling of a backend of ours, as far as rows ask for it; others': `recorder/scaling.py`."""

    def __init__(self, precision: Precision) -> None:
        self.device, self._precision = precision.device, precision
        self._never = type(precision).step is Precision.step  # which skips nothing
        self._on_host = is_host(self.device)

    def scale_factor(self) -> Tensor:
        """The loss scale behind the last step, 0-d fp32."""
        return self._precision.scale_factor()

    def scales_dynamically(self) -> bool:
        """Whether an overflow is expected now and then and mended by a smaller scale."""
        return self._precision.scales_dynamically()

    def look(self) -> Any:
        """What has to be known before the first and behind each step: a number or a 0-d tensor."""
        if self._never:
            return 0
        skipped = self._precision.skipped_steps()
        return skipped.item() if self._on_host else skipped.clone()

    def skips(self, seen: list[Any]) -> Tensor:
        """Of steps before and behind which that was seen: 1 for a skipped one, else 0; [steps]."""
        if self._never:
            return torch.zeros(len(seen) - 1, device=self.device)
        return (torch.tensor(seen) if self._on_host else torch.stack(seen)).diff()


@dataclass
class _Interval:
    """The steps since the last row; once closed, on their way to the host."""

    losses: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of the losses among the steps: a step may have none
    samples: list[int] = field(default_factory=list)
    right: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    answers: int = 0  # in it
    counts: Tensor | None = None  # of those that are summed: how many were right, and of how many, [2]
    # By `Scaling.look`, before the first step since `resume` and behind each; of those before it the skips.
    seen: list[Any] = field(default_factory=list)
    skips: list[Tensor] = field(default_factory=list)
    laps: list[tuple[Mark, Mark | None, Mark, int]] = field(default_factory=list)  # from, batch, to; samples
    looks: list[tuple[Row, Mapping[str, Tensor]]] = field(default_factory=list)
    overflows: list[tuple[int, Row, Found]] = field(default_factory=list)  # with the step's place
    row: Row = field(default_factory=dict)
    tree: Any = None  # of what `values` are, one behind the other, and their shapes
    shapes: Sequence[torch.Size] = ()
    values: Any = None
    arrived: torch.cuda.Event | None = None


class Meter:
    """Turns steps into rows, which `on_row` gets. `on_nan` is as in `Troubles`.

    A row is closed every `every` steps and by `close`. The first `warmup_steps` are in no throughput, step
    time or energy. `buffers` and `overflows` are of a model that is known; `start` steps were taken before;
    `has_energy`: this process alone trains on its GPU. With `lag` rows are read one interval late; None is
    what the device needs.
    """

    def __init__(
        self,
        scaling: Scaling,
        *,
        every: int,
        warmup_steps: int,
        on_row: Callable[[Row], None],
        on_nan: str | None = None,
        world: World | None = None,
        buffers: Buffers | None = None,
        overflows: Overflows | None = None,
        start: int = 0,
        has_energy: bool = True,
        lag: bool | None = None,
    ) -> None:
        self.scaling, self.device, self.world = scaling, scaling.device, world or World()
        self.every, self.on_row = every, on_row
        self.buffers, self._overflows = buffers, overflows
        self._troubles = Troubles(
            on_nan,
            dynamic=scaling.scales_dynamically(),
            restores=buffers is not None and buffers.restores,
        )
        self.lag = is_cuda(self.device) if lag is None else lag
        self._mark, self._on_host = marker(self.device), is_host(self.device)
        self._warmup, self._steps = warmup_steps, 0
        self._peak = 0.0  # MiB, of training before the last pause
        self._open, self._waiting = _Interval(), list[_Interval]()
        # Of the last step.
        self.number = start
        self.epoch: float | None = None
        self._rate: Any = None
        self._norm: Tensor | None = None
        self._began = self._since = time.perf_counter()
        self._train_seconds = 0.0
        self.is_paused = True  # whether something else than training was done since the last step
        self._from: Mark = self._mark()
        self._fetched: Mark | None = None
        self._has_energy = has_energy and self.world.size == 1  # the counter knows one GPU
        self._energy, self._energy_samples = EnergyMeter(self.device), 0
        self._skipped = 0
        # Plain arrays: a run of two million steps must not keep as many Python floats.
        self._step_times = array("f")
        self._throughputs, self._steps_of = array("f"), array("l")  # of rows, and how many steps each is of

    # Steps.

    def resume(self) -> None:
        """From here on it is training: the next step begins here, with the loss scale as it is now. To be
        called before the first step.
        """
        # A checkpoint's loss scale, loaded since the last step, is no skip of the next one.
        if self._open.samples:
            self._open.skips.append(self.scaling.skips(self._open.seen))
        self._open.seen = [self.scaling.look()]
        self._since, self._from, self._fetched = time.perf_counter(), self._mark(), None
        if self.is_paused:
            reset_peak(self.device)
        self.is_paused = False
        self._begin_energy()

    def fetched(self) -> None:
        """The batch of the next step is there: what came before was making it. It may be left out."""
        self._fetched = self._mark()

    def step(self, number: int, epoch: float | None, result: Result, rate: Any) -> None:
        """A step is over: its number, its end in epochs, what it came to, the learning rate it was taken with
        (None: not known). Waits for nothing.
        """
        interval, now = self._open, self._mark()
        is_cold = result.cold or self.is_paused  # behind a pause that nobody ended its beginning is not known
        self._steps += 1
        if self._steps == min(self._warmup, FIRST_STEPS):
            reset_peak(self.device)
            self._peak = 0.0
        if is_cold or self._steps == self._warmup:
            self._begin_energy()
        elif self._steps > self._warmup:
            interval.laps.append((self._from, self._fetched, now, result.samples))
            self._energy_samples += result.samples
        self._from, self._fetched = now, None
        clock = time.perf_counter()
        if not self.is_paused:
            self._train_seconds += clock - self._since
        self._since, self.is_paused = clock, False
        self.number, self.epoch, self._rate = number, epoch, rate
        interval.samples.append(result.samples)
        if result.loss is not None:
            interval.losses.append(result.loss)
            interval.places.append(len(interval.samples) - 1)
        interval.right += result.right
        for right, _ in result.right:
            interval.answers += len(right)
        if interval.answers > MOST_WAITING:
            _sum_up(interval)
        interval.seen.append(self.scaling.look())
        self._norm = result.looks.get(metrics.GRADIENT_NORM)
        if len(result.looks) > (self._norm is not None):
            interval.looks.append((self.row_at(), result.looks))
        if result.overflow is not None:
            interval.overflows.append((len(interval.samples) - 1, self.row_at(), result.overflow))
        if number % self.every == 0:
            self.close()

    def row_at(self) -> Row:
        """How a row of the last step begins, by the clock as it stands."""
        at: Row = {} if self.epoch is None else {metrics.EPOCH: self.epoch}
        elapsed = time.perf_counter() - self._began
        clocks = {metrics.ELAPSED: elapsed, metrics.TRAIN_SECONDS: self._train_seconds}
        return {metrics.STEP: self.number, **at, **clocks}

    def pause(self, *, since_step: bool = False) -> None:
        """Up to here it was training (`since_step`: up to the last step). Where a GPU counts its energy, this
        waits for its steps.
        """
        if self.is_paused:
            return
        self._peak = self._peak_mib(self.device) or 0.0
        if self._has_energy and self._energy_samples and self._energy.counts:
            self.read_all()
            wait_for(self.device)  # sync: the energy ends with the last step
            if (joules := self._energy.joules()) is not None:
                self.on_row(self.row_at() | {metrics.ENERGY: joules / self._energy_samples})
        if not since_step:
            self._train_seconds += time.perf_counter() - self._since
        self.is_paused = True

    def _peak_mib(self, device: torch.device) -> float | None:
        """Of training alone: an evaluation's is its own batch's, under most backends in fp32."""
        peak = peak_mib(device)
        return None if peak is None else max(peak, self._peak)

    def _begin_energy(self) -> None:
        self._energy.start()
        self._energy_samples = 0

    # Rows.

    def close(self) -> None:
        """End the interval at the last step, if it has any: queue its values' copy, read the one before."""
        done = self._open
        if not done.samples:
            return
        self._open = _Interval(seen=done.seen[-1:])
        done.row = self.row_at()
        for key, mib in ((metrics.PEAK_MEMORY, self._peak_mib), (metrics.RESERVED_MEMORY, reserved_mib)):
            if (value := mib(self.device)) is not None:
                done.row[key] = value
        tensors, done.tree = tree_flatten(self._gather(done))
        done.shapes, wide = [x.shape for x in tensors], widest_float(self.device)
        flat = torch.cat([x.detach().reshape(-1).to(self.device, wide) for x in tensors])
        done.values, done.arrived = start_copy(flat)
        self._waiting.append(done)
        self._read(len(self._waiting) - self.lag)
        if self._on_host:  # to make a row is no training; on a GPU its steps go on meanwhile
            self._since = time.perf_counter()
        self._from = self._mark()

    def _gather(self, done: _Interval) -> Row:
        """All that a closed interval has on the device."""
        found: Row = {"row": {metrics.SCALE: self.scaling.scale_factor()}}
        if done.losses:
            if isinstance(done.losses[0], Tensor):
                losses = torch.stack(done.losses)
            else:  # numbers, of a loop on the host
                losses = torch.tensor(done.losses, dtype=widest_float(self.device))
            found["losses"] = self.world.mean_(losses.float() if self.world.size > 1 else losses)
        _sum_up(done)
        if done.counts is not None:
            found["counts"] = self.world.sum_(done.counts)
        skips = found["skips"] = torch.cat([*done.skips, self.scaling.skips(done.seen)])
        # On the host it is known that none was skipped, and that there is nothing to look for.
        if self.buffers and not (self._on_host and not self._skipped and not skips.any()):
            found["buffers"] = self.buffers.count()
        if self._norm is not None:
            found["row"][metrics.GRADIENT_NORM] = self._norm
        if isinstance(self._rate, Tensor):  # of a capturable optimizer
            found["row"][metrics.LEARNING_RATE] = self._rate.reshape(())
        elif self._rate is not None:
            done.row[metrics.LEARNING_RATE] = self._rate
        # The row of this very step carries its gradient norm itself.
        found["looks"] = [
            {k: x for k, x in look.items() if row[metrics.STEP] != self.number or k != metrics.GRADIENT_NORM}
            for row, look in done.looks
        ]
        if done.overflows:
            found["firsts"] = torch.stack([found.first for *_, found in done.overflows])
        return found

    def flush(self) -> None:
        """End the interval, hand out all rows: waits for the device up to the last step."""
        self.close()
        self.read_all()

    def read_all(self) -> None:
        """Hand out the rows that wait."""
        self._read(len(self._waiting))

    def hand_out_looks(self) -> None:
        """Hand out what the diagnostic steps of the open interval found, before a row of a later step.

        It waits for the device.
        """
        for row, look in self._open.looks:
            values = {key: value.tolist() for key, value in look.items()}  # sync: as said
            self.on_row(row | _diagnostics(values))
        self._open.looks.clear()

    def flush_after(self, problem: BaseException) -> None:
        """Hand out the rows that wait when the run ends early; what is lost is added to the problem."""
        try:
            self._read(len(self._waiting), judge=False)
        except Exception as second:  # a device that failed gives nothing any more
            problem.add_note(f"the rows of the last log interval are lost: {second}")

    def _read(self, count: int, *, judge: bool = True) -> None:
        """Hand out the rows of the oldest `count` intervals that wait."""
        for _ in range(count):
            done = self._waiting.pop(0)
            if done.arrived is not None and not done.arrived.query():
                done.arrived.synchronize()  # sync: the copy of this interval; one interval later it is there
            numbers = iter(done.values.tolist())
            parts = ([next(numbers) for _ in range(s.numel())] if s else next(numbers) for s in done.shapes)
            own = tree_unflatten(parts, done.tree)
            losses, skips = own.get("losses", []), own["skips"]
            skipped = {place for place, is_skip in enumerate(skips) if is_skip}
            self._skipped += len(skipped)
            looks = []
            for (row, _), look in zip(done.looks, own["looks"], strict=True):
                looks.append(row | _diagnostics(look))
            overflows = [
                row | {metrics.NONFINITE_MODULE: found.modules[round(first)]}
                for (place, row, found), first in zip(done.overflows, own.get("firsts", ()), strict=True)
                if first >= 0 and place in skipped
            ]
            for row in sorted([*looks, *overflows], key=itemgetter(metrics.STEP)):
                self.on_row(row)
            done.row |= own["row"] | {metrics.SKIPPED: self._skipped}
            if self.buffers is not None:
                done.row[metrics.NONFINITE_BUFFERS] = round(own.get("buffers", 0)) if self._skipped else 0
            if losses:
                weights = [done.samples[place] for place in done.places]
                total = sum(n * x for n, x in zip(weights, losses, strict=True))
                done.row[metrics.LOSS] = total / sum(weights)
            if (counts := own.get("counts")) and counts[1]:
                done.row[metrics.ACCURACY] = counts[0] / counts[1]
            self._time(done)
            self.on_row(done.row)
            if skipped and self._overflows:
                self._overflows.watch()
            if judge:
                known = dict(zip(done.places, losses, strict=True))
                every = [known.get(place, 0.0) for place in range(len(skips))] if known else []
                self._troubles.judge(done.row, every, skips, overflows)

    def _time(self, done: _Interval) -> None:
        """Throughput and times of the interval's steps, from the marks of each."""
        if not done.laps:
            return
        times = [between_ms(began, ended) for began, _, ended, _ in done.laps]
        data = [between_ms(began, there) for began, there, *_ in done.laps if there is not None]
        throughput = sum(samples for *_, samples in done.laps) / sum(times) * 1e3
        done.row |= {metrics.THROUGHPUT: throughput, metrics.STEP_TIME: sum(times) / len(times)}
        if data:
            done.row[metrics.DATA_TIME] = sum(data) / len(times)
        self._throughputs.append(throughput)
        self._steps_of.append(len(times))
        self._step_times.extend(times)

    # What it came to.

    def summary(self) -> Row:
        """What the rows came to so far."""
        found: Row = {}
        if times := self._step_times:
            # By steps: an epoch's last row may be of a few.
            by_steps = np.repeat(np.array(self._throughputs, dtype=np.float64), self._steps_of)
            found[metrics.THROUGHPUT_MEDIAN] = float(np.median(by_steps))
            found[metrics.STEP_TIME_P50] = median(times)
            found[metrics.STEP_TIME_P95] = (quantiles(times, n=20) if len(times) > 1 else times)[-1]
        found |= self._troubles.summary(has_buffers=self.buffers is not None)
        return found

    def state_dict(self) -> Row:
        """What was found so far: plain values, tensors. Behind `flush`: no interval is open, no row waits."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "elapsed_seconds": time.perf_counter() - self._began,
            "train_seconds": self._train_seconds,
            "skipped": self._skipped,
            "restored": int(self.buffers.restored) if self.buffers else 0,  # sync: a checkpoint's number
            "findings": self._troubles.state_dict(),
            # Arrays of NumPy's, as torch.tensor reads Python's number by number: 0.3 s of 2,000,000.
            "step_times": torch.tensor(np.asarray(self._step_times)),
            "throughputs": torch.tensor(np.asarray(self._throughputs)),
            "steps_of": torch.tensor(np.asarray(self._steps_of)),
        }

    def load_state_dict(self, state: Row) -> None:
        """Go on from a state of `state_dict`. Warm-up begins anew, as in any new process."""
        self.number, self.epoch = state["number"], state["epoch"]
        self._began = time.perf_counter() - state["elapsed_seconds"]
        self._train_seconds = state["train_seconds"]
        self._skipped = state["skipped"]
        if self.buffers:
            self.buffers.restored.fill_(state["restored"])
        self._troubles.load_state_dict(state["findings"])
        self._step_times = array("f", state["step_times"].tolist())
        self._throughputs = array("f", state["throughputs"].tolist())
        self._steps_of = array("l", state["steps_of"].tolist())


def _diagnostics(look: Mapping[str, Any]) -> Row:
    """Return what a diagnostic step found, as a row has it."""
    # No fraction of lost updates where no weight had a gradient.
    found = {k: x for k, x in look.items() if x == x or not k.startswith(metrics.LOST_UPDATES)}
    if metrics.EXPONENTS in found:
        found[metrics.EXPONENTS] = exponent_histogram(found[metrics.EXPONENTS])
    return found


def _sum_up(interval: _Interval) -> None:
    if interval.right:
        right, classes = (torch.cat(parts) for parts in zip(*interval.right, strict=True))
        counts = torch.stack([right.sum(), (classes != IGNORED).sum()])
        interval.counts = counts if interval.counts is None else interval.counts + counts
        interval.right, interval.answers = [], 0
