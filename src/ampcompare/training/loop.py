"""The training loop: epochs of steps, evaluation, checkpoints.

Checkpoints are exact: on a CPU, and on a GPU with `deterministic=true`, a run that was killed and resumed has
the weights, losses and loss scales of a run that was not.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.host_loaders import BatchLoader
from ampcompare.errors import TrainingError, UserError, reason
from ampcompare.runtime.signals import StopRequest
from ampcompare.system.device import is_cuda, is_out_of_memory, random_states, set_random_states
from ampcompare.system.distributed import DistributedContext, Polling
from ampcompare.tracking.tracker import Tracker
from ampcompare.training.checkpoint.manager import CheckpointManager
from ampcompare.training.evaluation import Evaluation, summarize_best
from ampcompare.training.overflow_detection import BufferMonitor
from ampcompare.training.resources import EnergyCounter, PeakMemory
from ampcompare.training.step_log import StepLog
from ampcompare.training.timing import Row, Timing
from ampcompare.training.trainer import Trainer, micro_batches

log = logging.getLogger(__name__)

# The parts of a trainer in a checkpoint. Precision comes after the model: fp32 masters are finer.
PARTS = ("model", "optimizer", "scheduler", "precision")
STATE = ("step", "epoch", "in_epoch", "evaluated", "resumed_inexactly", "evals")


class Display:
    """Shows a run while it trains; this base class shows nothing."""

    def step(self, step: int) -> None:
        """Show that a step was queued."""

    def row(self, row: Row) -> None:
        """Show a row."""


class TrainingLoop:
    """Trains to the end of the config. Each row goes to the tracker and to the display.

    After each step, and between the batches of an evaluation, the loop asks `stop`. Once asked to stop, it
    ends with the row of the last step, in all processes at the same place. A row also ends at the end of each
    epoch. Checkpoints are written after a row, so that they hold no part of an interval.

    Nothing that the loop holds refers back to it: a trainer that is dropped is freed at once. Otherwise its
    CUDA graph would wait for the garbage collector, which may run while another graph is captured.

    Args:
        trainer: Takes the steps.
        train: The loader of the training data.
        test: The loader of the test data.
        tracker: Records the rows; None: they are not recorded.
        display: Shows rows and steps; None: nothing is shown.
        stop: Asked after each step; None: only a signal that the caller handles ends the loop.
        checkpoints: Writes checkpoints; None: there are none.
        world: The processes of the run; None: this process alone.
        on_step: Called with the number of each step, once the step is queued and the loop has asked `stop`.
        lag: As in `StepLog`.
        is_first_in_process: Whether the process has trained no run before (`PeakMemory`).

    Attributes:
        step: The steps taken so far.
        epoch: The epochs that are complete.
        in_epoch: The steps taken in the current epoch.
        evaluated: Whether the current epoch has been evaluated.
        stopped: Whether the loop ended early because it was asked to.
        total_steps: The steps of the whole run.
        evals: Of each evaluation the epoch, and the value of the compared metric.
    """

    def __init__(
        self,
        trainer: Trainer,
        train: Any,
        test: Any,
        config: Config,
        *,
        tracker: Tracker | None = None,
        display: Display | None = None,
        stop: StopRequest | None = None,
        checkpoints: CheckpointManager | None = None,
        world: DistributedContext | None = None,
        on_step: Callable[[int], None] | None = None,
        lag: bool | None = None,
        is_first_in_process: bool = True,
    ) -> None:
        # Inputs.
        self.trainer = trainer
        self.train = train
        self.config = config
        self.precision = trainer.precision
        self.device = trainer.precision.device
        self.world = world or DistributedContext()
        self.stop = stop or StopRequest()
        self.on_step = on_step
        self.checkpoints = checkpoints
        self.display = display or Display()
        tracker = tracker or Tracker()
        self.log_row = _log_to(tracker, self.display)
        self.logger = self._build_logger(tracker, lag, is_first_in_process=is_first_in_process)
        self.evaluation = Evaluation(
            trainer.model, test, trainer.precision, task=trainer.task, autocast=config.eval.autocast
        )
        self._compared = trainer.task.compared

        # How long the run is, and how far it has come.
        self.steps_per_epoch = steps_per_epoch(config, train)
        self.total_steps = count_steps(config, train)
        self.step = 0
        self.epoch = 0
        self.in_epoch = 0
        self.evaluated = False
        self.evals: list[tuple[float, float]] = []
        self.stopped = False
        self.resumed_inexactly = False
        self._is_best = False
        self._checkpoint_due = False

    def _build_logger(self, tracker: Tracker, lag: bool | None, *, is_first_in_process: bool) -> StepLog:
        config = self.config
        # NVML counts the energy of a whole GPU, and several processes have one each.
        has_energy = is_cuda(self.device) and self.world.size == 1
        timing = Timing(
            self.device,
            warmup_steps=config.log.warmup_steps,
            energy=EnergyCounter(self.device) if has_energy else None,
            memory=PeakMemory(self.device, is_first_in_process=is_first_in_process),
        )
        return StepLog(
            self.precision,
            timing,
            self.log_row,
            every=config.log.every,
            on_nan=config.training.on_nan,
            on_anomaly=tracker.update_summary,
            world=self.world,
            buffers=BufferMonitor(self.trainer.model),
            overflows=self.trainer.overflows,
            lag=lag,
        )

    def run(self) -> Row:
        """Train, and return the summary.

        Raises:
            TrainingError: The loss is not finite, and `training.on_nan=stop`.
        """
        try:
            self._train()
        except BaseException as problem:
            self.logger.flush_on_error(problem)
            raise
        return self.summary()

    def _train(self) -> None:
        for epoch in range(self.epoch, self.config.epochs):
            if self.in_epoch < self.steps_per_epoch and self.step < self.total_steps:
                self.train_epoch(epoch, self.in_epoch)
            is_last = self.step >= self.total_steps
            is_evaluation_due = is_last or (epoch + 1) % self.config.eval.every == 0
            if is_evaluation_due and not self.evaluated and not self.stopped:
                self._evaluate()
            ends_here = is_last or self.stopped
            if not ends_here:
                self.epoch = epoch + 1
                self.in_epoch = 0
                self.evaluated = False
            if ends_here or self._is_checkpoint_due(epoch + 1):
                self._save(best=self._is_best)
            if ends_here:
                break

    def train_epoch(self, epoch: int, start: int = 0) -> None:
        """Train on the data once, from step number `start` on."""
        self.evaluated = self._is_best = self._checkpoint_due = False
        with self.precision.training_context():
            self._train_steps(epoch, start)

    def _train_steps(self, epoch: int, start: int) -> None:
        logger = self.logger
        trainer = self.trainer
        accumulate = self.config.training.accumulate
        polling = Polling(self.world)
        logger.resume()
        feed = trainer.feed(self.train, epoch, start * accumulate)
        for number, batches in enumerate(micro_batches(feed, accumulate), start + 1):
            logger.timing.mark_batch_ready()
            self.step += 1
            self.in_epoch = number
            learning_rate = trainer.optimizer.param_groups[0]["lr"]  # the step advances the schedule
            result = trainer.step(batches, diagnose=self._is_diagnostic_step())
            logger.add(self.step, epoch + number / self.steps_per_epoch, result, learning_rate)
            is_last = number == self.steps_per_epoch or self.step == self.total_steps
            self._poll(polling, is_last)
            self.display.step(self.step)
            if self.on_step is not None:
                self.on_step(self.step)
            if self.stopped or is_last:
                break
            if self._checkpoint_due:
                logger.flush()  # sync: what is saved must have been logged
                logger.pause()
                self._save()
                self._checkpoint_due = False
                logger.resume()
        logger.flush()  # sync: the epoch's time and energy end with its last step
        logger.pause()

    def _is_diagnostic_step(self) -> bool:
        every = self.config.diagnostics.every
        return every is not None and self.step % every == 0

    def _is_checkpoint_due(self, epochs: int) -> bool:
        """Return whether a checkpoint is due after so many epochs, or since the last poll."""
        if self.checkpoints is None:
            return False
        return self._checkpoint_due or self.checkpoints.is_due(epochs)

    def _save(self, *, best: bool = False) -> None:
        if self.checkpoints is not None:
            anomaly = self.logger.anomalies.first_anomaly
            self.checkpoints.save(self.checkpoint(), self.step, best=best, anomaly=anomaly)

    def _poll(self, polling: Polling, is_last: bool) -> None:
        """Find out whether any process was asked to stop, and whether a checkpoint is due."""
        due = False
        # At the end of an epoch, and where a checkpoint may be due, all processes have to know at once.
        blocking = is_last
        if self.checkpoints is not None and (is_last or self.step % self.config.log.every == 0):
            due = self.checkpoints.is_due()
            blocking |= self.checkpoints.by_clock
        stop, self._checkpoint_due = polling.poll(self.stop.is_made(), due, blocking=blocking)
        if stop:
            self._end_early()

    def _end_early(self) -> None:
        """End here, in all processes with the exit code of the first that was asked: it may record."""
        self.stopped = True
        codes = self.world.gather(self.stop.exit_code if self.stop.is_made() else None)
        self.stop.agree_on(next(code for code in codes if code is not None))

    def _evaluate(self) -> None:
        self.world.broadcast_buffers(self.trainer.model)
        try:
            values = self.evaluation.run(lambda: self.world.any_rank(self.stop.is_made())[0], self.world)
        except Exception as problem:
            if not is_out_of_memory(problem):
                raise
            raise TrainingError(
                f"out of memory on {self.device} in an evaluation with "
                f"eval.batch_size={self.config.eval.batch_size}; try a smaller eval.batch_size"
            ) from problem
        if values is None:
            self._end_early()
            return
        self.evaluated = True
        row = self.logger.start_row() | values
        value = row[self._compared.key]
        if math.isfinite(row[metrics.EVAL_LOSS]) and math.isfinite(value):
            before = self._best_value()
            self.evals.append((row[metrics.EPOCH], value))
            self._is_best = self._best_value() != before
        self.log_row(row)

    def summary(self) -> Row:
        """Return what the run came to so far, beside the last value of each metric."""
        summary = self.logger.summary()
        if self.resumed_inexactly:
            summary[metrics.RESUMED_INEXACTLY] = True
        if self.evaluation.commonest_class is not None:
            summary[metrics.COMMONEST_CLASS] = self.evaluation.commonest_class
        return summary | summarize_best(self.evals, self._compared.key, self._compared.better)

    def _best_value(self) -> float | None:
        """Return the best value of the compared metric so far."""
        best = summarize_best(self.evals, self._compared.key, self._compared.better)
        return best.get(metrics.make_best_key(self._compared.key))

    def checkpoint(self) -> dict[str, Any]:
        """Return all that the run needs to continue: plain values and tensors, and all random states.

        Call it in all processes at one step. Writing the result out waits for the device.
        """
        parts = {name: getattr(self.trainer, name).state_dict() for name in PARTS}
        return {"fit": self.state_dict(), **parts, "random": self.world.gather(random_states(self.device))}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `checkpoint`.

        Raises:
            UserError: The checkpoint is of another program.
        """
        try:
            for name in PARTS:
                getattr(self.trainer, name).load_state_dict(state[name])
            self.load_state_dict(state["fit"])
            set_random_states(self.device, state["random"][self.world.rank])
        except Exception as problem:  # whatever a file that passes every check may still lack
            raise UserError(
                f"resume=auto: the checkpoint of run {state.get('run_id')} does not fit this run "
                f"({reason(problem)}); start a new run with resume=never"
            ) from None

    def state_dict(self) -> Row:
        """Return plain values and tensors for a checkpoint. Call it after a row."""
        return {key: getattr(self, key) for key in STATE} | {"meter": self.logger.state_dict()}

    def load_state_dict(self, state: Row) -> None:
        """Continue from a state of `state_dict`."""
        for key in STATE:
            setattr(self, key, state[key])
        if isinstance(self.train, BatchLoader) and 0 < self.in_epoch < self.steps_per_epoch:
            self.resumed_inexactly = True
            log.warning(
                f"epoch {self.epoch + 1} continues inside your DataLoader; the batches before are skipped, "
                "so random choices that are not seeded differ from an uninterrupted run"
            )
        self.logger.load_state_dict(state["meter"])


def _log_to(tracker: Tracker, display: Display) -> Callable[[Row], None]:
    """Return the function that records and shows a row. It does not refer to the loop."""

    def log_row(row: Row) -> None:
        tracker.log(row)
        display.row(row)

    return log_row


def steps_per_epoch(config: Config, train: Any) -> int:
    """Return the optimizer steps of an epoch; the last may have fewer micro-batches."""
    return -(-len(train) // config.training.accumulate)


def count_steps(config: Config, train: Any) -> int:
    """Return the optimizer steps of the whole run."""
    steps = config.epochs * steps_per_epoch(config, train)
    return steps if config.max_steps is None else min(steps, config.max_steps)
