"""The loop of a run: epochs of steps, evaluation, when a row or a checkpoint is due, where the run is."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.host import BatchLoader
from ampcompare.errors import UserError
from ampcompare.machine.device import wait_for
from ampcompare.machine.world import CollectiveFlags, World
from ampcompare.measure.energy import EnergyMeter
from ampcompare.measure.timing import StepTimer, Window
from ampcompare.train.clock import Clock, Row
from ampcompare.train.errors import TrainingError
from ampcompare.train.evaluation import Loader, as_npy
from ampcompare.train.odd_batch import OddBatch
from ampcompare.train.rows import Rows
from ampcompare.train.trainer import StepResult, Trainer, micro_batches


class Keeper(Protocol):
    """Saves the state of a run."""

    saved_step: int | None

    def is_due(self, epochs: int | None = None) -> bool:
        """Whether it is time to: after so many epochs, or by the clock."""

    def save(self, fit: Fit, *, best: bool = False) -> None:
        """Save that of `fit`; `best` after the best evaluation so far."""


class Fit:
    """Trains to the end of the config, handing each row to `on_row` and each step's number to `on_step`.

    `on_note` gets sentences for the user. Rows and summary have the names of `ampcompare.metrics`.
    `should_stop` is asked after each step and within the evaluation; then the training ends with the row of
    the last step. As that is decided `on_stop` is called, in all processes at one place. With `lag` rows are
    read one interval late; None is what the device needs. `keeper` is told when a state can be saved.

    Nothing that it holds refers back to it: a trainer that is dropped is freed at once, and its CUDA graph
    and memory do not wait for the garbage collector, which may come within another one's capture.
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
        on_stop: Callable[[], None] = lambda: None,
        lag: bool | None = None,
        world: World | None = None,
        keeper: Keeper | None = None,
        total_steps: int | None = None,
    ) -> None:
        self.world = world or World()
        self.trainer, self.train, self.config = trainer, train, config
        self.evaluation = trainer.evaluation(test, autocast=config.eval.autocast)
        self.on_row, self.on_step, self._say = on_row, on_step, on_note
        self._clock = Clock()
        self.rows = Rows(
            trainer.precision,
            self.world,
            clock=self._clock,
            memory=trainer.memory,
            buffers=trainer.buffers,
            overflows=trainer.overflows,
            on_row=on_row,
            on_note=on_note,
            on_bad_loss=partial(judge_loss, stops=config.training.on_nan == "stop", on_note=on_note),
            lag=lag,
        )
        self._should_stop, self._on_stop = should_stop, on_stop
        self._ask = CollectiveFlags(self.world, config.log.every)
        self.stopped = False
        self.precision = trainer.precision
        self.device = trainer.precision.device
        self.steps_per_epoch = steps_per_epoch(config, train)
        self.total_steps = count_steps(config, train) if total_steps is None else total_steps
        self.timer = StepTimer(self.device, config.log.warmup_steps)
        self.energy = EnergyMeter(self.device, on_note)
        self.keeper = keeper
        self.step = 0
        # Where the run is: which epoch, after how many of its steps, whether its evaluation is done.
        self.epoch, self.in_epoch, self.evaluated = 0, 0, False
        self.resumed_inexactly = False
        self._is_best = self._due = False
        self._windows: list[Window] = []  # since the last row
        self._learning_rate = 0.0
        self._counts = False  # whether warm-up is over: energy and peak memory count
        self._evals: list[tuple[float, float]] = []  # epoch, value of the compared metric
        self._compared = trainer.task.compared

    def run(self) -> Row:
        """Train; returns the summary. Raises TrainingError for a loss that is not finite and stops it."""
        try:
            with self.precision.session():
                self._train()
        except BaseException as problem:
            self.rows.flush_after(problem)
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
                self.keeper.save(self, best=self._is_best)
            if last or self.stopped:
                break

    def _clock_is_due(self) -> bool:
        return self.keeper is not None and self.keeper.is_due()

    def summary(self) -> Row:
        """What the run came to so far, beside the last value of each metric."""
        found = self.rows.summary()
        if self.resumed_inexactly:
            found[metrics.RESUMED_INEXACTLY] = True
        if self._evals:
            epoch, best = max(self._evals, key=lambda pair: self._rank(pair[1]))
            found |= {metrics.best_of(self._compared.key): best, metrics.BEST_EPOCH: epoch}
        return found

    def _rank(self, value: float) -> float:
        """A value of the compared metric as a number of which more is better."""
        return -value if self._compared.better == metrics.LOWER else value

    def predictions(self) -> bytes | None:
        """The class given to each test image in the last evaluation as a `.npy` file, None before it, and of
        what is no classification.
        """
        answers = self.evaluation.answers
        return None if answers is None else as_npy(answers)

    def train_epoch(self, epoch: int, start: int = 0) -> None:
        """One pass over the training images, from step number `start` on, with its rows."""
        config = self.config
        if self.timer.warm:
            self._begin_to_count()
        images = 0  # that count for the energy
        self.evaluated = self._is_best = False
        self._ask.begin(self.step)
        self._resume()
        accumulate = config.training.accumulate
        feed = self.trainer.feed(self.train, epoch, start * accumulate)
        for number, batches in enumerate(micro_batches(feed, accumulate), start + 1):
            self.timer.fetched()
            self.step, self.in_epoch = self.step + 1, number
            position = epoch + number / self.steps_per_epoch
            diagnose = config.diagnostics.every is not None and self.step % config.diagnostics.every == 0
            self._learning_rate = self.trainer.optimizer.param_groups[0]["lr"]
            try:
                result = self.trainer.step(batches, diagnose=diagnose)
            except OddBatch as problem:
                where = f"data.source={config.data.source!r}: step {self.step}"
                raise UserError(f"{where}: {problem}") from None
            self.rows.add(result)
            if result.overflow is not None:
                self.rows.overflow(self.step, position, result.overflow)
            self.timer.lap(result.images, cold=result.cold)
            images += result.images
            if self.timer.warm and (result.cold or not self._counts):  # what was compiled is no step's energy
                self._begin_to_count()
                images = 0
            ends = number == self.steps_per_epoch or self.step == self.total_steps
            self.stopped, self._due = self._ask.at(
                self.step, self._should_stop, self._clock_is_due, ends=ends
            )
            if self.stopped:
                self._on_stop()
            last = self.stopped or self.step == self.total_steps
            if diagnose:
                self.rows.look(self.step, position, result.gradients)
            if self.step % config.log.every == 0 or last:
                self._log(position, result)
                self._resume()
            self._last = position, result
            self.on_step(self.step)
            if last:
                break
            if self.keeper and self._due and number < self.steps_per_epoch:
                self._pause()
                self.rows.read_all()  # sync: what is saved must have been logged
                self.keeper.save(self)
                self._resume()
        wait_for(self.device)  # sync: the epoch's time and energy end with its last step
        self._pause()
        self.rows.read_all()
        joules = self.energy.joules()
        if self._counts and joules is not None and images and self.world.size == 1:  # the meter knows one GPU
            self.on_row(self._clock.row_at(self.step, position) | {metrics.ENERGY: joules / images})

    def _begin_to_count(self) -> None:
        """Energy begins here, without what is queued; and once, when warm-up is over, the peak of memory."""
        if not self._counts:
            self._counts = True
            self.trainer.memory.reset()
        wait_for(self.device)  # sync: at an epoch's start, after warm-up and after a compilation
        self.energy.start()
        self.timer.restart()

    def _log(self, position: float, result: StepResult) -> None:
        """End a log interval."""
        self._pause()
        windows, self._windows = self._windows, []
        self.rows.close(self.step, position, result.gradients, self._learning_rate, windows)

    def _evaluate(self, epoch: int) -> None:
        position = min(epoch + 1.0, self.step / self.steps_per_epoch)
        self.world.share_buffers(self.trainer.model)
        ask, numbers = CollectiveFlags(self.world), count()
        try:
            found = self.evaluation.run(lambda: ask.at(next(numbers), self._should_stop)[0], self.world)
        except OddBatch as problem:
            where = f"data.source={self.config.data.source!r}: the evaluation at step {self.step}"
            raise UserError(f"{where}: {problem}") from None
        if found is None:
            self.stopped = True
            self._on_stop()
            if len(self.rows.interval):  # the steps since the last row
                self._resume()
                self._log(*self._last)
                self.rows.read_all()
            return
        self.evaluated = True
        value = found[self._compared.key]
        if math.isfinite(found[metrics.EVAL_LOSS]) and math.isfinite(value):
            self._is_best = all(self._rank(value) > self._rank(before) for _, before in self._evals)
            self._evals.append((position, value))
        self.on_row(self._clock.row_at(self.step, position) | found)

    def state_dict(self) -> Row:
        """Where the run is and what it has gathered: plain values, tensors. All rows have been read."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "in_epoch": self.in_epoch,
            "evaluated": self.evaluated,
            "resumed_inexactly": self.resumed_inexactly,
            "evals": list(self._evals),
            "answers": self.evaluation.answers,
            **self._clock.state_dict(),
            **self.rows.state_dict(),
        }

    def load_state_dict(self, state: Row) -> None:
        """Go on from a state of `state_dict`. Warm-up begins anew, as in any new process."""
        self.step, self.epoch, self.in_epoch = state["step"], state["epoch"], state["in_epoch"]
        self.evaluated = state["evaluated"]
        self.resumed_inexactly = state["resumed_inexactly"]
        if isinstance(self.train, BatchLoader) and 0 < self.in_epoch < self.steps_per_epoch:
            self.resumed_inexactly = True
            what = (
                f"epoch {self.epoch + 1} goes on within a loader of its own, the batches before are skipped"
            )
            self._say(f"{what}: what it draws unseeded comes otherwise than it would have")
        self.rows.load_state_dict(state)
        self._evals = [(epoch, value) for epoch, value in state["evals"]]
        self.evaluation.answers = state.get("answers")  # a checkpoint from before there were any has none
        self._clock.load_state_dict(state)

    def _resume(self) -> None:
        self._clock.resume()
        self.timer.resume()

    def _pause(self) -> None:
        """End the timed window, at a log interval or an epoch's end."""
        self._windows.append(self.timer.pause())
        self._clock.pause()


def judge_loss(what: str, cause: str, *, stops: bool, on_note: Callable[[str], None]) -> None:
    """Stop on a loss that is not finite and that no loss scale can mend, or say it: `training.on_nan`. The
    `cause` is what to look at; where none is told it is what the training does to a network.
    """
    if stops:
        advice = cause or "try a smaller optimizer.lr or training.clip_norm"
        raise TrainingError(f"{what}; {advice}, or go on with training.on_nan=continue")
    on_note(f"{what}; {cause and cause + '; '}going on (training.on_nan=continue)")


def steps_per_epoch(config: Config, train: Loader) -> int:
    """Optimizer steps in an epoch; the last may have fewer micro-batches."""
    return -(-len(train) // config.training.accumulate)


def count_steps(config: Config, train: Loader) -> int:
    """Optimizer steps of the whole run."""
    steps = config.epochs * steps_per_epoch(config, train)
    return steps if config.max_steps is None else min(steps, config.max_steps)
