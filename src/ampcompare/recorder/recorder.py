"""Recorder, which records your own training loop as `ampcompare run` records its own."""

import atexit
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.config.schema import LogConfig, WandbConfig
from ampcompare.errors import UserError
from ampcompare.precision.weight_dtypes import find_16bit_dtype
from ampcompare.recorder.arguments import (
    build_environment,
    check_config,
    check_count,
    check_parts,
    describe_compared_metric,
    describe_weights,
    explain_other_weights,
    find_device,
    find_dtype,
    make_run_name,
    name_backend,
    open_record,
    to_number,
)
from ampcompare.recorder.gradient_hooks import (
    GradientDiagnostics,
    LearningRateReader,
    group_parameters,
    unwrap_optimizer,
)
from ampcompare.recorder.run_id import count_records
from ampcompare.recorder.scaler_adapter import ScalerReader
from ampcompare.recorder.shutdown import ShutdownHandler, get_exit_code
from ampcompare.runtime.console import hidden_messages
from ampcompare.runtime.signals import PREEMPTION_SIGNALS, is_stopped
from ampcompare.system.device import is_cuda, is_host
from ampcompare.system.distributed import find_distributed_context
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_init import MAX_TAG_CHARS, RunSettings
from ampcompare.training.evaluation import summarize_best
from ampcompare.training.interval import StepResult
from ampcompare.training.overflow_detection import BufferMonitor
from ampcompare.training.resources import EnergyCounter, PeakMemory
from ampcompare.training.step_log import StepLog
from ampcompare.training.timing import Row, Timing

log = logging.getLogger(__name__)


class Recorder:
    """Records a training loop under the metrics of `ampcompare.metrics`.

    The report compares recorded loops with each other and with runs of `ampcompare run`. Call `step` once per
    optimizer step, after `scaler.update()`; with micro-batches, after the last one. `step` never waits for
    the device. Gradients are measured when the optimizer reads them, after clipping and after the closure of
    `optimizer.step(closure)`, so `zero_grad` may be called at any place of the loop.

    With several processes, process 0 records, and the recorded loss is the loss of process 0. SIGTERM,
    SIGHUP, SIGUSR1 and SIGUSR2 end loop and record with `sys.exit`, unless the program handles the signal.

    Args:
        backend: The precision that is compared: a built-in backend, another library's name, or your own.
        seed: The seed. The report pairs runs by it.
        batch_size: The batch size, for the record's config.
        scaler: The object that scales the loss: a GradScaler, a `Precision`, Lightning's precision
            plug-in, or an Accelerator.
        optimizer: The optimizer, for the learning rate and the gradients.
        model: The network, for the names of layers. Its buffers are checked for non-finite values.
        run: An open W&B run that gets the rows and that is not ended here. By default a run is created.
        config: Further settings that distinguish runs.
        precision_dtype: The dtype that the loop computes in; by default as scaler and backend tell it.
        device: The device of the training; by default that of scaler, optimizer or model.
        every: The number of steps from one row to the next.
        warmup_steps: The number of first steps that throughput leaves out.
        diagnostics: The number of steps from one measurement of the gradients to the next; None for none.
        processes: The number of processes that train, by which samples are multiplied. By default the
            number in torch.distributed.
        start_step: The steps that were done before, in a loop that resumes from a checkpoint. Parts with the
            same WANDB_RUN_ID make one record. The first recorder of a process has this id, and so have those
            that continue it. Another one that begins at step 0 (a further fold) has an id of its own.
        test_samples: The number of samples of an evaluation.
        metric: The key of the metric that runs are compared by, such as "eval/f1".
        better: "higher" or "lower": which values of `metric` are better.
        project: The W&B project.
        name: The name of the run.
        output_dir: The folder of the record.
        quiet: Whether to print no messages.

    Raises:
        UserError: An argument is invalid.

    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Recorder(backend="none", seed=3, batch_size=8, optimizer=optimizer) as record:  # doctest: +SKIP
    ...     for x in torch.randn(20, 8, 4):
    ...         loss = model(x).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...         record.step(loss=loss, samples=len(x))
    ...     record.evaluate(loss=loss)
    """

    def __init__(
        self,
        *,
        backend: str | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        scaler: Any = None,
        optimizer: Any = None,
        model: nn.Module | None = None,
        run: Any = None,
        config: Mapping[str, Any] | None = None,
        precision_dtype: Any = None,
        device: Any = None,
        every: int = LogConfig.every,
        warmup_steps: int = LogConfig.warmup_steps,
        diagnostics: int | None = None,
        processes: int | None = None,
        start_step: int = 0,
        test_samples: int | None = None,
        metric: str | None = None,
        better: str | None = None,
        project: str = WandbConfig.project,
        name: str | None = None,
        output_dir: str | Path = "runs",
        quiet: bool = False,
    ) -> None:
        self._every = check_count("every", every, 1)
        self._warmup_steps = check_count("warmup_steps", warmup_steps, 0)
        self.steps = self._start_step = check_count("start_step", start_step, 0)
        seed = check_count("seed", seed, 0, optional=True)
        batch_size = check_count("batch_size", batch_size, 1, optional=True)
        diagnostics = self._diagnostics = check_count("diagnostics", diagnostics, 1, optional=True)
        processes = check_count("processes", processes, 1, optional=True)
        test_samples = check_count("test_samples", test_samples, 1, optional=True)
        world = find_distributed_context()
        self.rank = world.rank
        self.processes = processes or world.size
        self._is_single_process = world.size == 1

        # The training.
        self._optimizer = unwrap_optimizer(optimizer)
        check_parts(self._optimizer, model)
        if diagnostics is not None and self._optimizer is None:
            raise UserError(f"diagnostics={diagnostics}: needs the optimizer; pass optimizer= as well")
        self._model = model
        self.device = find_device(device, scaler, self._optimizer, model)
        self._on_host = is_host(self.device)
        self._scale_reader = ScalerReader(scaler, self.device)
        backend, known = name_backend(backend, scaler)
        weights = describe_weights(model, self._optimizer)
        weights_dtype = find_16bit_dtype(weights.get(metrics.WEIGHT_DTYPES, ()))
        scales = self._scale_reader.scales_dynamically()
        dtype = find_dtype(precision_dtype, known, scaler, scales, weights_dtype)
        self._other_weights = explain_other_weights(backend, known, weights)

        # The record.
        settings = {
            "backend": backend,
            "seed": seed,
            "batch_size": batch_size,
            "log": {"every": self._every, "warmup_steps": self._warmup_steps},
            "diagnostics": {"every": diagnostics},
            # By `recorder` the report recognizes a recorded loop, and the built-in backend that it runs.
            "recorder": {"version": 1, "backend": None if self._other_weights else known},
        }
        own = {key: value for key, value in settings.items() if value is not None}
        config = config or {}
        check_config(config, own)
        environment = build_environment(self.device, world.size, self._optimizer, scaler, dtype)
        compared = describe_compared_metric(metric, better)
        environment |= weights | compared
        self._run = run
        self._output_dir = Path(output_dir)
        self._record_start = RunSettings(
            logged={**config, **own, metrics.ENVIRONMENT: environment},
            output_dir=str(output_dir),
            name=name or make_run_name(backend),
            tags=[backend[:MAX_TAG_CHARS]],
            project=project,
            resumes=self.steps > 0,
        )
        self._recorded_facts: Row = {metrics.ENVIRONMENT: environment}
        if test_samples is not None:
            self._recorded_facts[metrics.TEST_IMAGES] = test_samples

        # The state between begin and close, in the recording process.
        self._was_entered = False
        self._tracker: Tracker
        self._shutdown: ShutdownHandler
        self._logger: StepLog | None = None
        self._gradient_diagnostics: GradientDiagnostics | None = None
        self._learning_rate: LearningRateReader | None = None
        self._has_loss: bool | None = None  # whether steps have a loss; None before the first step
        # The metric that `best/...` is of, and of each evaluation the epoch and its value.
        self._compared = metric or metrics.EVAL_ACCURACY
        self._better = compared[metrics.TASK]["metrics"][metric]["better"] if compared else metrics.HIGHER
        self._evals: list[tuple[float | None, float]] = []
        self._quiet = quiet
        self._hidden_messages = ExitStack()
        self._warned: set[str] = set()

        # What a trainer's callback may change.
        self.may_lack_loss = False  # whether the trainer may skip batches
        self.may_lack_samples = False  # whether the number of samples of a batch may be unknown
        self.replaces_last = False  # whether the trainer begins again after a failed attempt

    def __enter__(self) -> Self:
        """Begin the record and handle the signals of a batch system."""
        self.begin()
        if not self.rank:
            self._shutdown.listen(PREEMPTION_SIGNALS)
        return self

    def begin(self) -> Self:
        """Begin the record inside another library's trainer; `close` ends it.

        Up to the first step the trainer may install its own handlers for the signals of a batch system.

        Raises:
            UserError: This recorder was used before.
        """
        if self.rank:
            return self
        if self._was_entered:
            raise UserError("Recorder: this recorder was used before; create a new one for each run")
        # The scaler may raise, so it is read before a run is open.
        self._scale_reader.begin()
        if self._quiet:
            self._hidden_messages.enter_context(hidden_messages())
        try:
            return self._begin()
        except BaseException:
            self._scale_reader.end()
            self._hidden_messages.close()
            raise

    def _begin(self) -> Self:
        self._warn_once("weights", self._other_weights)
        groups = {} if self._diagnostics is None else group_parameters(self._optimizer, self._model)
        continues = self.steps > 0 or self.replaces_last
        self._tracker = open_record(self._record_start, self._run, continues)
        self._tracker.update_summary(self._recorded_facts)
        if self._diagnostics is not None:
            self._gradient_diagnostics = GradientDiagnostics(
                self._optimizer,
                groups,
                self._diagnostics,
                self._scale_reader.scale_factor,
                self.steps,
            )
            self._warn_once("gradients", self._gradient_diagnostics.problem)
        if self._optimizer is not None:
            self._learning_rate = LearningRateReader(self._optimizer)
        memory = PeakMemory(self.device, is_first_in_process=count_records(continues=continues) == 1)
        energy = EnergyCounter(self.device) if is_cuda(self.device) and self._is_single_process else None
        self._logger = StepLog(
            self._scale_reader,
            Timing(self.device, warmup_steps=self._warmup_steps, energy=energy, memory=memory),
            self._tracker.log,
            every=self._every,
            on_anomaly=self._tracker.update_summary,
            buffers=None if self._model is None else BufferMonitor(self._model),
            read_skips=self._scale_reader.read_skips,
            start=self.steps,
        )
        self._process = os.getpid()
        self._was_entered = True
        self._shutdown = ShutdownHandler()
        self._shutdown.listen()
        atexit.register(self._close_at_exit)
        self.resume()
        return self

    def step(
        self, *, loss: Tensor | float | None = None, samples: int | None = None, epoch: float | None = None
    ) -> None:
        """Record an optimizer step, without a wait for the device.

        Args:
            loss: The mean loss of the step, a number or a tensor with one. Give it at all steps or at none.
            samples: The number of samples that this process trained on in the step.
            epoch: The position in the training, in epochs: 1.5 in the middle of the second one.

        Raises:
            UserError: An argument is invalid, or the record has not begun.
        """
        if self.rank:
            return
        logger = self._get_logger("step")
        if type(samples) is not int or samples < 1:  # a tensor would need a wait
            samples = check_count("Recorder.step: samples", samples, 1, optional=self.may_lack_samples)
        with self._shutdown:
            self.steps += 1
            if self.steps == self._start_step + 1:
                # Lightning installs its handlers when training begins, and only where there are none.
                self._shutdown.listen(PREEMPTION_SIGNALS)
            probe = self._gradient_diagnostics
            diagnostics = {} if probe is None else probe.take(self.steps)
            rate = None if self._learning_rate is None else self._learning_rate.take()
            samples_of_all = None if samples is None else samples * self.processes
            result = StepResult(self._copy_loss(loss), samples_of_all, diagnostics=diagnostics)
            result.skipped = self._scale_reader.observe()
            logger.add(self.steps, logger.epoch if epoch is None else epoch, result, rate)
            if self._run is not None:
                self._tracker.advance(self.steps)

    def mark_batch_ready(self) -> None:
        """Mark the end of loading the next step's batch; the time since the last step was data time.

        The call is optional.
        """
        if not self.rank:
            self._get_logger("mark_batch_ready").timing.mark_batch_ready()

    def log(self, /, **values: Any) -> None:
        """Record further values of the training at this step, as `train/NAME`.

        Waits for the device if a value is a tensor there.
        """
        if self.rank:
            return
        logger = self._get_logger("log")
        with self._shutdown:
            row = {f"train/{name}": to_number(name, value) for name, value in values.items()}
            self._tracker.log(logger.start_row() | row)
            if not math.isfinite(row.get(metrics.LOSS, 0.0)):
                self._warn_once(
                    "loss", f"step {self.steps}: the training loss is not finite; the training continues"
                )

    def evaluate(self, /, **values: Any) -> None:
        """Record the results of an evaluation, as `eval/NAME`.

        The time from the last step to the next one does not count as training time. Waits for the device.

        Args:
            **values: The results, such as `accuracy` (a fraction from 0 to 1) and `loss`.
        """
        if self.rank:
            return
        logger = self._get_logger("evaluate")
        with self._shutdown:
            self.pause(since_step=True)
            row = {f"eval/{name}": to_number(name, value) for name, value in values.items()}
            logger.write_waiting()  # sync: between steps
            logger.write_diagnostics()
            self._tracker.log(logger.start_row() | row)
            accuracy = row.get(metrics.EVAL_ACCURACY, math.nan)
            if accuracy > 1 or accuracy < 0:
                self._warn_once(
                    "accuracy",
                    f"eval accuracy {accuracy:g}: expected a fraction from 0 to 1; recorded unchanged",
                )
            value = row.get(self._compared, math.nan)
            if math.isfinite(value):
                self._evals.append((logger.epoch, value))

    @property
    def is_paused(self) -> bool:
        """Return whether the training time is paused."""
        return self._logger is not None and self._logger.timing.is_paused

    def pause(self, *, since_step: bool = False) -> None:
        """Stop counting training time until `resume` or the end of the next step.

        Args:
            since_step: Leave out the time since the last step as well.
        """
        if not self.rank:
            self._get_logger("pause").pause(since_step=since_step)

    def resume(self) -> None:
        """Count training time again; the next step begins now."""
        if not self.rank:
            self._scale_reader.resume()
            self._get_logger("resume").resume()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context whose time does not count as training: an evaluation, a checkpoint."""
        self.pause()
        try:
            yield
        finally:
            if self._logger is not None:  # else the record has ended meanwhile
                self.resume()

    def _get_logger(self, method: str) -> StepLog:
        if self._logger is None:
            raise UserError(
                f"Recorder.{method}: called outside `with Recorder(...) as record:`; call it inside"
            )
        return self._logger

    def _copy_loss(self, loss: Tensor | float | None) -> Tensor | float | None:
        """Return a copy of the loss, since a CUDA graph writes every loss into the same tensor.

        On a CPU the copy is a number, which costs less than a tensor.
        """
        if self._has_loss is None:
            self._has_loss = loss is not None
            if isinstance(loss, Tensor) and loss.device.type != self.device.type:
                raise UserError(
                    f"device={str(self.device)!r}: the loss is on {loss.device}; "
                    f"give the recorder device={str(loss.device)!r}"
                )
        if (loss is not None) != self._has_loss and not self.may_lack_loss:
            raise UserError(
                "Recorder.step: some steps have a loss and others have none; "
                "pass loss= at every step or at none"
            )
        if loss is None:
            return None
        if self._on_host or not isinstance(loss, Tensor):
            value = to_number("Recorder.step: loss", loss)
            return value if self._on_host else torch.full((), value, device=self.device)
        # The last part of a network that is split over GPUs may be on another GPU.
        own = loss.detach().to(self.device, torch.float32, copy=True, non_blocking=True)
        return own if own.ndim == 0 else own.mean()

    def _warn_once(self, about: str, line: str) -> None:
        if line and about not in self._warned:
            self._warned.add(about)
            log.warning(line)

    def _close_at_exit(self) -> None:
        """End the record when the program ends: trainers do not report their exceptions to callbacks."""
        number = self._shutdown.requested_signal
        problem = getattr(sys, "last_value", None)
        if number is not None:
            problem = SystemExit(128 + number)
        elif problem is None:
            problem = RuntimeError("the program ended within the loop")
        with suppress(SystemExit):  # Python is ending already and would print it
            self.close(problem)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(problem)

    def close(self, problem: BaseException | None = None) -> None:
        """End the record. The `with` statement calls it; further calls do nothing.

        Args:
            problem: The exception that ended the loop: the run has failed, or was stopped (Ctrl-C, SIGTERM).
                None if the loop finished.
        """
        if self._logger is None or os.getpid() != self._process:  # not in a forked process
            return
        atexit.unregister(self._close_at_exit)
        with self._shutdown, self._hidden_messages:
            try:
                self._end_rows(self._logger, problem)
            except BaseException as second:  # from the device, or from W&B for an earlier row
                problem = second
                raise
            finally:
                self._end_record(self._logger, get_exit_code(problem))
                self._shutdown.close()

    def _end_record(self, logger: StepLog, exit_code: int) -> None:
        self._logger = None
        self._scale_reader.end()
        best = summarize_best(self._evals, self._compared, self._better)
        summary = self._recorded_facts | logger.summary() | best
        missing = self._tracker.finish(summary, exit_code)
        if missing is not None:
            log.error(missing if is_stopped(exit_code) else f"error: {missing}")
        if self._run is None:
            for line in self._tracker.describe_record(self._output_dir):
                log.info(line)

    def _end_rows(self, logger: StepLog, problem: BaseException | None) -> None:
        """Write the rows that wait, and warn of gradients that were never measured."""
        if self._learning_rate is not None:
            self._learning_rate.close()
        if self._gradient_diagnostics is not None:
            self._gradient_diagnostics.close()
            self._warn_once("unmeasured gradients", self._gradient_diagnostics.find_problem())
        if problem is not None:
            logger.flush_on_error(problem)
            return
        logger.flush()  # sync: after the last step
        logger.pause(since_step=True)
        if self.steps == self._start_step:
            log.warning(
                "no step was recorded: call record.step(...) after each training step; "
                "the report leaves this run out"
            )
