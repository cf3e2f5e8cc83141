"""The loop of a run: epochs of steps, evaluation, when a checkpoint is due, where the run is."""

import logging
import math
from collections.abc import Callable
from typing import Any

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.host import BatchLoader
from ampcompare.machine.world import Polling, World
from ampcompare.train.evaluation import Evaluation
from ampcompare.train.meter import Meter, Row, Scaling
from ampcompare.train.step import Trainer, micro_batches

log = logging.getLogger(__name__)

STATE = ("step", "epoch", "in_epoch", "evaluated", "resumed_inexactly", "evals")


class Fit:
    """Trains to the end of the config, handing each row to `on_row` and each step's number to `on_step`.

    Rows and summary have the names of `ampcompare.metrics`.
    `should_stop` is asked after each step and within the evaluation; then the training ends with the row of
    the last step. As that is decided `on_stop` is called, in all processes at one place. A row ends at each
    epoch's end, too, and `keeper` saves behind rows alone, so that no half of an interval need be kept. `lag`
    is that of `Meter`.

    Nothing that it holds refers back to it: a trainer that is dropped is freed at once, and its CUDA graph
    and memory do not wait for the garbage collector, which may come within another one's capture.
    """

    def __init__(
        self,
        trainer: Trainer,
        train: Any,
        test: Any,
        config: Config,
        *,
        on_row: Callable[[Row], None] = lambda row: None,
        on_step: Callable[[int], None] = lambda step: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_stop: Callable[[], None] = lambda: None,
        lag: bool | None = None,
        world: World | None = None,
        total_steps: int | None = None,
    ) -> None:
        self.world = world or World()
        self.trainer, self.train, self.config = trainer, train, config
        self.evaluation = Evaluation(
            trainer.model, test, trainer.precision, task=trainer.task, autocast=config.eval.autocast
        )
        self.on_row, self.on_step = on_row, on_step
        self.precision, self.device = trainer.precision, trainer.precision.device
        self.meter = Meter(
            Scaling(trainer.precision),
            every=config.log.every,
            warmup_steps=config.log.warmup_steps,
            on_row=on_row,
            on_nan=config.training.on_nan,
            world=self.world,
            buffers=trainer.buffers,
            overflows=trainer.overflows,
            lag=lag,
        )
        self._should_stop, self._on_stop = should_stop, on_stop
        self.stopped = False
        self.steps_per_epoch = steps_per_epoch(config, train)
        self.total_steps = count_steps(config, train) if total_steps is None else total_steps
        self.keeper: Any = None  # a `RunKeeper`, which saves the run's state
        self._saves_by_clock = config.checkpoint.every_minutes is not None
        self.step = 0
        # Where the run is: which epoch, after how many of its steps, whether its evaluation is done.
        self.epoch, self.in_epoch, self.evaluated = 0, 0, False
        self.resumed_inexactly = False
        self._is_best = self._due = False
        self.evals: list[tuple[float, float]] = []  # epoch, value of the compared metric
        self._compared = trainer.task.compared

    def run(self) -> Row:
        """Train; returns the summary. Raises TrainingError for a loss that is not finite and stops it."""
        try:
            self._train()
        except BaseException as problem:
            self.meter.flush_after(problem)
            raise
        return self.summary()

    def _train(self) -> None:
        for epoch in range(self.epoch, self.config.epochs):
            if self.in_epoch < self.steps_per_epoch and self.step < self.total_steps:
                self.train_epoch(epoch, self.in_epoch)
            last = self.step >= self.total_steps
            due = not self.evaluated and (last or (epoch + 1) % self.config.eval.every == 0)
            if due and not self.stopped:
                self._evaluate()
            if not (last or self.stopped):
                self.epoch, self.in_epoch, self.evaluated = epoch + 1, 0, False
            if self.keeper and (last or self.stopped or self._due or self.keeper.is_due(epoch + 1)):
                self.keeper.save(self, best=self._is_best)
            if last or self.stopped:
                break

    def summary(self) -> Row:
        """What the run came to so far, beside the last value of each metric."""
        found = self.meter.summary()
        if self.resumed_inexactly:
            found[metrics.RESUMED_INEXACTLY] = True
        if self.evals:
            epoch, best = max(self.evals, key=lambda pair: self._rank(pair[1]))
            found |= {metrics.best_of(self._compared.key): best, metrics.BEST_EPOCH: epoch}
        return found

    def _rank(self, value: float) -> float:
        """A value of the compared metric as a number of which more is better."""
        return -value if self._compared.better == metrics.LOWER else value

    def train_epoch(self, epoch: int, start: int = 0) -> None:
        """One pass over the training images, from step number `start` on, with its rows."""
        self.evaluated = self._is_best = self._due = False
        with self.precision.training_context():
            self._train_steps(epoch, start)

    def _train_steps(self, epoch: int, start: int) -> None:
        config, meter = self.config, self.meter
        every, accumulate = config.diagnostics.every, config.training.accumulate
        meter.resume()
        feed = self.trainer.feed(self.train, epoch, start * accumulate)
        polling = Polling(self.world)
        for number, batches in enumerate(micro_batches(feed, accumulate), start + 1):
            meter.fetched()
            self.step, self.in_epoch = self.step + 1, number
            diagnose = every is not None and self.step % every == 0
            rate = self.trainer.optimizer.param_groups[0]["lr"]
            result = self.trainer.step(batches, diagnose=diagnose)
            meter.step(self.step, epoch + number / self.steps_per_epoch, result, rate)
            ends = number == self.steps_per_epoch or self.step == self.total_steps
            has_row = self.step % config.log.every == 0 or ends
            due = has_row and self.keeper is not None and self.keeper.is_due()
            # At an epoch's end and where a checkpoint may be due all have to know at once, else a step later.
            at_once = ends or (has_row and self._saves_by_clock)
            self.stopped, self._due = polling.poll(self._should_stop(), due, blocking=at_once)
            if self.stopped:
                self._on_stop()
            self.on_step(self.step)
            if self.stopped or ends:
                break
            if self._due and self.keeper:
                meter.flush()  # sync: what is saved must have been logged
                meter.pause()
                self.keeper.save(self)
                self._due = False
                meter.resume()
        meter.flush()  # sync: the epoch's time and energy end with its last step
        meter.pause()

    def _evaluate(self) -> None:
        self.world.share_buffers(self.trainer.model)
        found = self.evaluation.run(lambda: self.world.any(self._should_stop())[0], self.world)
        if found is None:
            self.stopped = True
            self._on_stop()
            return
        self.evaluated = True
        row = self.meter.row_at() | found
        value = row[self._compared.key]
        if math.isfinite(row[metrics.EVAL_LOSS]) and math.isfinite(value):
            self._is_best = all(self._rank(value) > self._rank(before) for _, before in self.evals)
            self.evals.append((row[metrics.EPOCH], value))
        self.on_row(row)

    def state_dict(self) -> Row:
        """Where the run is and what it has gathered: plain values, tensors. Behind a row."""
        return {key: getattr(self, key) for key in STATE} | {"meter": self.meter.state_dict()}

    def load_state_dict(self, state: Row) -> None:
        """Go on from a state of `state_dict`."""
        for key in STATE:
            setattr(self, key, state[key])
        if isinstance(self.train, BatchLoader) and 0 < self.in_epoch < self.steps_per_epoch:
            self.resumed_inexactly = True
            what = (
                f"epoch {self.epoch + 1} goes on within a loader of its own, the batches before are skipped"
            )
            log.warning(f"{what}: what it draws unseeded comes otherwise than it would have")
        self.meter.load_state_dict(state["meter"])


def steps_per_epoch(config: Config, train: Any) -> int:
    """Optimizer steps in an epoch; the last may have fewer micro-batches."""
    return -(-len(train) // config.training.accumulate)


def count_steps(config: Config, train: Any) -> int:
    """Optimizer steps of the whole run."""
    steps = config.epochs * steps_per_epoch(config, train)
    return steps if config.max_steps is None else min(steps, config.max_steps)
