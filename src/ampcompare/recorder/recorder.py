"""A training loop of one's own, recorded and measured as ours is: `from ampcompare import Recorder`."""

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
from ampcompare.recorder.arguments import (
    build_environment,
    check_config,
    check_count,
    check_parts,
    describe_compared_metric,
    find_device,
    find_dtype,
    make_run_name,
    name_backend,
    open_record,
    to_number,
)
from ampcompare.recorder.gradient_hooks import GradientDiagnostics, group_parameters, unwrap_optimizer
from ampcompare.recorder.scaler_adapter import make_scale_reader
from ampcompare.recorder.shutdown import ShutdownHandler, get_exit_code
from ampcompare.runtime.messages import hidden_messages
from ampcompare.runtime.signals import PREEMPTION_SIGNALS, is_stopped
from ampcompare.system.device import is_cuda, is_host
from ampcompare.system.distributed import find_distributed_context
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_init import MAX_TAG_CHARS, RunSettings
from ampcompare.training.interval import StepResult
from ampcompare.training.metrics_logger import MetricsLogger
from ampcompare.training.overflow_detection import BufferMonitor
from ampcompare.training.resources import EnergyCounter
from ampcompare.training.timing import Row, Timing

log = logging.getLogger(__name__)


class Recorder:
    """Records a loop under the names of `ampcompare.metrics`, so that the report compares it as our own runs.

    `backend` is what is compared, `seed` what runs are paired by; both and `batch_size` go into the record's
    config beside `config`, whatever else tells runs apart. `scaler` is what scales the loss: a GradScaler, a
    backend of ours, Lightning's precision plug-in, an Accelerator; `optimizer` gives learning rate and
    gradients, `model` names layers and has its buffers watched. Rows go into the open W&B `run`, which is not
    ended here, or into one that is begun and ended.

    A row comes each `every` steps; the first `warmup_steps` are in no throughput. Each `diagnostics` steps
    the gradients are looked at. `processes` is by how many the samples of a step are multiplied: as many as
    torch.distributed has; process 0 alone records, and the loss is its own. `test_samples` is how many an
    evaluation is of. `metric` is the key that runs are compared by, such as "eval/f1", and `better` says
    whether "higher" or "lower" values are better. A loop that goes on from a checkpoint says as `start_step`
    how many steps it has done;
    under the same WANDB_RUN_ID the parts are one record.

    `step` waits for nothing. It is an optimizer's step: with micro-batches to be called once, behind the last
    one and `scaler.update()`. Gradients are looked at where the optimizer takes them, after clipping, so
    `zero_grad` may stand anywhere. SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end loop and record by `sys.exit`,
    unless the program has a handler for them. Raises UserError for what cannot be.

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
        self.rank, self._is_single_process = world.rank, world.size == 1
        self.processes = processes or world.size
        self._optimizer = unwrap_optimizer(optimizer)
        check_parts(self._optimizer, model)
        if diagnostics is not None and self._optimizer is None:
            raise UserError(f"diagnostics={diagnostics}: there is no optimizer; give optimizer= as well")
        self._model, self._run, self._output_dir = model, run, Path(output_dir)
        self.device = find_device(device, scaler, self._optimizer, model)
        self._on_host = is_host(self.device)
        self._scale_reader = make_scale_reader(scaler, self.device)
        backend, known = name_backend(backend, scaler)
        dtype = find_dtype(precision_dtype, known, scaler, self._scale_reader.scales_dynamically())
        # By `recorder` the report knows such a run; in it what we take its word for.
        said = {"backend": backend, "seed": seed, "batch_size": batch_size}
        said |= {"log": {"every": self._every, "warmup_steps": self._warmup_steps}}
        said |= {"diagnostics": {"every": diagnostics}, "recorder": {"version": 1, "backend": known}}
        own = {key: value for key, value in said.items() if value is not None}
        config = config or {}
        check_config(config, own)
        environment = build_environment(self.device, world.size, self._optimizer, scaler, dtype)
        environment |= describe_compared_metric(metric, better)
        self._recorded_facts: Row = {metrics.ENVIRONMENT: environment}
        tags, own_name = [backend[:MAX_TAG_CHARS]], name or make_run_name(backend)
        logged = {**config, **own, **self._recorded_facts}
        resumes = self.steps > 0
        self._record_start = RunSettings(logged, str(output_dir), own_name, tags, project, resumes=resumes)
        if test_samples is not None:
            self._recorded_facts[metrics.TEST_IMAGES] = test_samples
        self._quiet, self._hidden_messages = quiet, ExitStack()
        self._was_entered = False
        self._gradient_diagnostics: GradientDiagnostics | None = None
        self._logger: MetricsLogger | None = None  # in the process that records, between enter and exit
        self._tracker: Tracker
        self._shutdown: ShutdownHandler
        self._has_loss: bool | None = None
        self.may_lack_loss = False  # of a trainer that may leave a batch out
        self._best: Row = {}  # of the evaluations
        self._warned: set[str] = set()

    # Its beginning.

    def __enter__(self) -> Self:
        """Begin the record, in the loop's own program."""
        self.begin()
        if not self.rank:
            self._shutdown.listen(PREEMPTION_SIGNALS)
        return self

    def begin(self) -> Self:
        """Begin the record, within somebody's trainer, to which a batch system's warnings are left up to the
        first step; `close` ends it.
        """
        if self.rank:
            return self
        if self._was_entered:
            raise UserError("Recorder: it has been entered before; make a new one for each run")
        # First what a scaler or an optimizer of others may refuse, while no run is open.
        self._scale_reader.observe()
        if self._quiet:
            self._hidden_messages.enter_context(hidden_messages())
        try:
            return self._begin()
        except BaseException:
            self._hidden_messages.close()
            raise

    def _begin(self) -> Self:
        groups = {} if self._diagnostics is None else group_parameters(self._optimizer, self._model)
        self._tracker = open_record(self._record_start, self._run)
        self._tracker.update_summary(self._recorded_facts)
        if self._diagnostics is not None:
            scale = self._scale_reader.scale_factor
            self._gradient_diagnostics = GradientDiagnostics(
                self._optimizer, groups, self._diagnostics, scale, self.steps
            )
        energy = EnergyCounter(self.device) if is_cuda(self.device) and self._is_single_process else None
        self._logger = MetricsLogger(
            self._scale_reader,
            Timing(self.device, warmup_steps=self._warmup_steps, energy=energy),
            self._tracker.log,
            every=self._every,
            buffers=None if self._model is None else BufferMonitor(self._model, restores=False),
            start=self.steps,
        )
        self._process, self._was_entered = os.getpid(), True
        self._shutdown = ShutdownHandler()
        self._shutdown.listen()
        atexit.register(self._close_at_exit)
        self.resume()
        return self

    # Its course.

    def step(
        self, *, loss: Tensor | float | None = None, samples: int | None = None, epoch: float | None = None
    ) -> None:
        """An optimizer step is over: its mean `loss` (0-d, given at all steps or at none), the `samples` that
        this process trained on, the position in epochs. Never waits for the device.
        """
        if self.rank:
            return
        logger = self._get_logger("step")
        if type(samples) is not int or samples < 1:  # a tensor would have to be waited for
            samples = check_count("Recorder.step: samples", samples, 1)
        with self._shutdown:
            self.steps += 1
            if self.steps == self._start_step + 1:
                # Lightning sets its handler for these as training begins, and only where there is none.
                self._shutdown.listen(PREEMPTION_SIGNALS)
            looks = self._gradient_diagnostics.take(self.steps) if self._gradient_diagnostics else {}
            rate = self._optimizer.param_groups[0]["lr"] if self._optimizer is not None else None
            result = StepResult(self._copy_loss(loss), samples * self.processes, diagnostics=looks)
            logger.log_step(self.steps, logger.epoch if epoch is None else epoch, result, rate)
            if self._run is not None:
                self._tracker.advance(self.steps)

    def mark_batch_ready(self) -> None:
        """The batch of the next step is there: what came before was making it. It may be left out."""
        if not self.rank:
            self._get_logger("mark_batch_ready").timing.mark_batch_ready()

    def log(self, **values: Any) -> None:
        """Further numbers of the training at this step, as `train/NAME`. A tensor on a GPU is waited for."""
        if self.rank:
            return
        logger = self._get_logger("log")
        with self._shutdown:
            row = {f"train/{name}": to_number(name, value) for name, value in values.items()}
            self._tracker.log(logger.start_row() | row)
            if not math.isfinite(row.get(metrics.LOSS, 0.0)):
                self._warn_once("loss", f"step {self.steps}: the training loss is not finite; going on")

    def evaluate(self, **values: Any) -> None:
        """Numbers of an evaluation, as `eval/NAME`: `accuracy` (0..1), `loss`, others. What came since the
        last step, and up to the next, is not training. Reads all rows, and so waits for the device.
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
                what = f"eval accuracy {accuracy:g}: a share of 1 was expected; taken as it is"
                self._warn_once("accuracy", what)
            if math.isfinite(accuracy) and accuracy > self._best.get(metrics.BEST_ACCURACY, -math.inf):
                at = {} if logger.epoch is None else {metrics.BEST_EPOCH: logger.epoch}
                self._best = {metrics.BEST_ACCURACY: accuracy} | at

    @property
    def is_paused(self) -> bool:
        """Whether something else than training was done since the last step."""
        return self._logger is not None and self._logger.timing.is_paused

    def pause(self, *, since_step: bool = False) -> None:
        """Up to here it was training (`since_step`: up to the last step); what comes is not, up to `resume`,
        or to the end of the next step.
        """
        if not self.rank:
            self._get_logger("pause").pause(since_step=since_step)

    def resume(self) -> None:
        """From here on it is training: the next step begins here."""
        if not self.rank:
            self._get_logger("resume").resume()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is inside is not training: an evaluation, a checkpoint."""
        self.pause()
        yield
        self.resume()

    def _get_logger(self, what: str) -> MetricsLogger:
        if self._logger is None:
            raise UserError(f"Recorder.{what}: outside of `with Recorder(...) as record`; call it inside")
        return self._logger

    def _copy_loss(self, loss: Tensor | float | None) -> Tensor | float | None:
        """The loss as it is now: a captured step writes the next one into the same place. On a CPU its
        number, which is there and costs less than a copy.
        """
        if self._has_loss is None:
            self._has_loss = loss is not None
            if isinstance(loss, Tensor) and loss.device.type != self.device.type:
                what = f"device={str(self.device)!r}: the loss is on {loss.device}"
                raise UserError(f"{what}; give the recorder device={str(loss.device)!r}")
        if (loss is not None) != self._has_loss and not self.may_lack_loss:
            raise UserError("Recorder.step: a loss is given at some steps; give it at all of them or at none")
        if loss is None:
            return None
        if self._on_host or not isinstance(loss, Tensor):
            value = to_number("Recorder.step: loss", loss)
            return value if self._on_host else torch.full((), value, device=self.device)
        # A copy, also from another GPU, where a network in parts has its last one.
        own = loss.detach().to(self.device, torch.float32, copy=True, non_blocking=True)
        return own if own.ndim == 0 else own.mean()

    def _warn_once(self, about: str, line: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(line)

    # Its end.

    def _close_at_exit(self) -> None:
        """The program ends and nobody has ended the record: a trainer does not tell of its exceptions."""
        asked = (
            None
            if self._shutdown.requested_signal is None
            else SystemExit(128 + self._shutdown.requested_signal)
        )
        with suppress(SystemExit):  # Python ends already, and would show it
            last = getattr(sys, "last_value", None)
            self.close(asked or last or RuntimeError("the program ended within the loop"))

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(problem)

    def close(self, problem: BaseException | None = None) -> None:
        """End the record: as finished, or with the problem as failed or stopped (Ctrl-C, SIGTERM). The `with`
        does it; what has been ended stays so.
        """
        if self._logger is None or os.getpid() != self._process:  # a fork of the loop ends for itself
            return
        atexit.unregister(self._close_at_exit)
        with self._shutdown, self._hidden_messages:
            try:
                self._end_rows(self._logger, problem)
            except BaseException as second:  # of the device, or of W&B for an earlier row
                problem = second
                raise
            finally:
                logger, self._logger = self._logger, None
                code = get_exit_code(problem)
                if lack := self._tracker.finish(self._recorded_facts | logger.summary() | self._best, code):
                    log.error(lack if is_stopped(code) else f"error: {lack}")
                for line in () if self._run is not None else self._tracker.where(self._output_dir):
                    log.info(line)
                self._shutdown.close()

    def _end_rows(self, logger: MetricsLogger, problem: BaseException | None) -> None:
        if self._gradient_diagnostics:
            self._gradient_diagnostics.close()
        if problem is not None:
            logger.flush_on_error(problem)
            return
        logger.flush()  # sync: behind the last step
        logger.pause(since_step=True)
        if self.steps == self._start_step:
            what = "call record.step(...) behind each; the report counts no such run"
            log.warning(f"no step was recorded: {what}")
