"""The course of somebody's loop: its steps, its rows, what between them is no training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.machine.device import Memory
from ampcompare.measure.timing import StepTimer
from ampcompare.recorder.checks import check_count, check_loss, number_of
from ampcompare.recorder.ending import WARNINGS, Ending
from ampcompare.recorder.energy import StepEnergy
from ampcompare.recorder.gradients import Looks
from ampcompare.recorder.scaling import Scaling
from ampcompare.tracking.tracker import Tracker
from ampcompare.train.clock import Clock, Row
from ampcompare.train.rows import Rows


class Course:
    """What a Recorder does between its enter and its exit, which begin and end what is declared here."""

    rank: int
    processes: int
    device: torch.device
    _alone: bool
    _lent: bool
    _optimizer: Any
    _every: int
    _on_host: bool
    _scaling: Scaling
    _looks: Looks | None
    _rows: Rows | None  # in the process that records, between enter and exit
    _tracker: Tracker
    _clock: Clock
    _timer: StepTimer
    _memory: Memory
    _energy: StepEnergy
    _ending: Ending

    def __init__(self, start_step: int = 0) -> None:
        self.steps = self._began_at = start_step
        self._looks = self._rows = None
        self._epoch: float | None = None
        self._last_found: dict[str, Tensor] = {}
        self._bests: list[tuple[float | None, float]] = []  # epoch, accuracy
        self._said: set[str] = set()
        self._broken = False  # when the step under way began is not known
        self._counts = False  # whether warm-up is over
        self._has_loss: bool | None = None
        self._reads = False  # whether losses are numbers at once

    def say(self, line: str) -> None:
        """A line for the user."""
        raise NotImplementedError

    def step(self, *, loss: Tensor | float | None = None, samples: int, epoch: float | None = None) -> None:
        """An optimizer step is over: its mean `loss` (0-d, given at all steps or at none), the `samples` that
        this process trained on, the position in epochs. Never waits for the device.
        """
        if self.rank:
            return
        # All in one function, as few others as can be: behind a training's step each of them is cold.
        rows = self._rows or self._entered("step")
        if type(samples) is not int or samples < 1:  # a tensor would have to be waited for
            samples = check_count("Recorder.step: samples", samples, 1)
        samples *= self.processes
        ending = self._ending
        ending.is_at_work = True  # as `with`
        try:
            # The first one after an evaluation or a pause that nobody ended has no known beginning.
            cold = self._broken
            self._timer.lap(samples, cold=cold)
            if cold:
                self._clock.resume()
                self._broken = False
            else:
                self._clock.pause()
            self.steps = steps = self.steps + 1
            if steps == self._began_at + 1:
                ending.listen(WARNINGS)
            if epoch is not None:
                self._epoch = epoch
            self._scaling.look(cold=cold)
            reads = self._reads and type(loss) is Tensor and loss.ndim == 0
            rows.interval.add(loss.item() if reads else self._taken(loss), (), samples)  # type: ignore[union-attr]
            if self._looks:
                self._last_found = self._looks.take(steps)
                if self._last_found:
                    rows.look(steps, self._epoch, self._last_found)
            if steps % self._every == 0:
                self._close(rows, self._last_found)
            if self._lent:
                self._tracker.passed(steps)
        finally:
            ending.is_at_work = False
            if ending.asked is not None:
                ending.leave()

    def fetched(self) -> None:
        """The batch of the next step is there: what came before was making it. It may be left out."""
        if not self.rank:
            self._entered("fetched")
            self._timer.fetched()

    def log(self, **values: Any) -> None:
        """Further numbers of the training at this step, as `train/NAME`. A tensor on a GPU is waited for."""
        if self.rank:
            return
        self._entered("log")
        with self._ending:
            row = {f"train/{name}": number(name, value) for name, value in values.items()}
            self._tracker.log(self._clock.row_at(self.steps, self._epoch) | row)
            if not math.isfinite(row.get(metrics.LOSS, 0.0)):
                self._say_once("loss", f"step {self.steps}: the training loss is not finite; going on")

    def evaluate(self, **values: Any) -> None:
        """Numbers of an evaluation, as `eval/NAME`: `accuracy` (0..1), `loss`, others. What came since the
        last step, and up to the next, is not training. Reads all rows, and so waits for the device.
        """
        if self.rank:
            return
        rows = self._entered("evaluate")
        with self._ending:
            self.pause(since_step=True)
            row = {f"eval/{name}": number(name, value) for name, value in values.items()}
            rows.read_all()  # sync: between steps
            self._tracker.log(self._clock.row_at(self.steps, self._epoch) | row)
            for key, value in row.items():
                if not math.isfinite(value):
                    self._say_once(key, f"{key} is {value}: no finite number; taken as it is")
            accuracy = row.get(metrics.EVAL_ACCURACY)
            if accuracy is not None:
                if accuracy > 1 or accuracy < 0:
                    what = f"eval accuracy {accuracy:g}: a share of 1 was expected; taken as it is"
                    self._say_once("accuracy", what)
                self._bests.append((self._epoch, accuracy))

    @property
    def is_paused(self) -> bool:
        """Whether something else than training was done since the last step."""
        return self._broken

    def pause(self, *, since_step: bool = False) -> None:
        """Up to here it was training (`since_step`: up to the last step); what comes is not, up to `resume`,
        or to the end of the next step.
        """
        if not self.rank and not self._broken:
            self._entered("pause")
            if not since_step:
                self._clock.pause()
            self._energy.restart()
            self._broken = True

    def resume(self) -> None:
        """From here on it is training: the next step begins here."""
        if not self.rank:
            self._entered("resume")
            self._scaling.restart()  # a checkpoint may have been loaded
            self._timer.restart()
            self._energy.restart()
            self._clock.resume()
            self._broken = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is inside is not training: an evaluation, a checkpoint."""
        self.pause()
        yield
        self.resume()

    def _entered(self, what: str) -> Rows:
        if self._rows is None:
            raise UserError(f"Recorder.{what}: outside of `with Recorder(...) as record`; call it inside")
        return self._rows

    def _taken(self, loss: Tensor | float | None) -> Tensor | float | None:
        """The loss as it is now: a captured step writes the next one into the same place. On a CPU its
        number, which is there and costs less than a copy.
        """
        if self._has_loss is None:
            check_loss(loss, self.device)
            self._has_loss = loss is not None
            self._reads = self._has_loss and self._on_host
        if (loss is not None) != self._has_loss:
            raise UserError("Recorder.step: a loss is given at some steps; give it at all of them or at none")
        if isinstance(loss, Tensor):
            if self._on_host:
                return loss.item() if loss.ndim == 0 else loss.detach().double().mean().item()
            # A copy, also from another GPU, where a network in parts has its last one.
            own = loss.detach().to(self.device, copy=True, non_blocking=True)
            return own if own.ndim == 0 else own.float().mean()
        if loss is None or self._on_host:
            return None if loss is None else number_of(loss)
        return torch.full((), number_of(loss), device=self.device)

    def _close(self, rows: Rows, found: dict[str, Tensor]) -> None:
        """End a log interval; what it takes is not training."""
        window = self._timer.pause()
        self._energy.add(rows.interval.images)
        rate = self._optimizer.param_groups[0]["lr"] if self._optimizer is not None else None
        rows.close(self.steps, self._epoch, found, rate, [window])
        if self._timer.warm:
            if not self._counts:
                self._counts = True
                self._memory.reset()
            if (joules := self._energy.per_sample()) is not None and self._alone:
                self._tracker.log(self._clock.row_at(self.steps, self._epoch) | {metrics.ENERGY: joules})
        if self._looks and self._looks.is_idle:
            self._say_once(
                "idle", "diagnostics: the optimizer that was given takes no steps: no gradients to look at"
            )
        self._timer.resume()
        self._clock.resume()

    def _best(self) -> Row:
        if not (known := [pair for pair in self._bests if math.isfinite(pair[1])]):
            return {}
        epoch, accuracy = max(known, key=lambda pair: pair[1])
        return {metrics.BEST_ACCURACY: accuracy} | ({} if epoch is None else {metrics.BEST_EPOCH: epoch})

    def _say_once(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.say(line)


def number(name: str, value: Any) -> float:
    """A number of an evaluation, also out of a tensor. Raises UserError."""
    try:
        # sync: an evaluation's result is wanted on the host
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"evaluate({name}={value!r}): expected a number") from None
