"""One run from config to finished record: prepare the parts, start the record, resume, train, finish."""

import gc
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console
from torch import nn

from ampcompare import metrics
from ampcompare.config.load import Config, check_sweep_values
from ampcompare.config.recipes import describe_recipe
from ampcompare.config.validate import ignored_options, resolve_backend
from ampcompare.data.sources import SOURCES, get_source
from ampcompare.errors import UserError
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.plugins import shorten_name
from ampcompare.precision import get_backend
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.console import silent
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.signals import EXIT_FAILED, StopRequest
from ampcompare.system.device import is_out_of_memory
from ampcompare.system.distributed import DistributedContext, connect_processes, find_distributed_context
from ampcompare.system.environment import add_earlier_machines
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_init import MAX_TAG_CHARS, RunSettings, start_record
from ampcompare.training.checkpoint.manager import CheckpointManager
from ampcompare.training.checkpoint.store import FOLDER, CheckpointStore, find_resumable
from ampcompare.training.completion import describe_lost_process, describe_resume, run_loop
from ampcompare.training.display import TrainingDisplay
from ampcompare.training.loaders import check_processes, data_warnings, describe_training_data
from ampcompare.training.loop import TrainingLoop, count_steps
from ampcompare.training.machine_support import check_machine_for_sweep
from ampcompare.training.run_context import RunContext, prepare_run
from ampcompare.wandb_client.client import skip_pandas_import

log = logging.getLogger(__name__)


@dataclass
class ProcessHistory:
    """The runs that a process trains one after the other.

    Attributes:
        process: Identifies the process in the records of its runs.
        runs: The number of runs that have begun.
        context: The data of the latest run, for a run that differs only in the seed.
        weights: The parameters and buffers of the latest run's network.
    """

    process: str = field(default_factory=lambda: secrets.token_hex(4))
    runs: int = 0
    context: RunContext | None = None
    weights: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def note_network(self, network: nn.Module) -> None:
        """Note the network of a run, which is now the latest one."""
        self.weights = [weakref.ref(tensor) for tensor in (*network.parameters(), *network.buffers())]

    def has_kept_network(self) -> bool:
        """Return whether something still refers to the network of the latest run, which has ended.

        The user's code may keep it, for example in a global variable, and return it for the next run.
        """
        gc.collect()
        return any(reference() is not None for reference in self.weights)


@dataclass(frozen=True)
class RunResult:
    """The end of a run.

    Attributes:
        record: The folder of the record; None: there is none.
    """

    exit_code: int
    record: Path | None
    summary: dict[str, Any]


def run(
    config: Config,
    console: Console | None = None,
    *,
    brief: bool = False,
    stop: StopRequest | None = None,
    history: ProcessHistory | None = None,
    on_step: Callable[[int], None] | None = None,
) -> RunResult:
    """Train as the config says, record the run with W&B, and show its progress on the console.

    Messages are logged from INFO on (`ampcompare.runtime.console.messages_on` prints them on the console).
    Wrong input is found before W&B is started.

    Args:
        console: Where progress is shown; None: on the terminal.
        brief: Whether to leave out what is trained, and after a success where the record is.
        stop: A request to stop, which may have received a signal before; None: a new one.
        history: The runs of this process so far; None: it has trained none.
        on_step: Called with the number of each step after it. An exception that it raises ends the run.

    Raises:
        UserError: The input is wrong.
    """
    check_machine_for_sweep()
    check_sweep_values(config)
    resolve_backend(config)
    console = console or Console(highlight=False)
    run_id = os.environ.get("WANDB_RUN_ID")
    try:
        check_processes(config, find_distributed_context().size)
        with (
            connect_processes(config.device) as world,
            nullcontext() if world.is_main_process else silent(console),
            TrainingSession(
                config, world, console, stop, brief=brief, run_id=run_id, history=history, on_step=on_step
            ) as session,
        ):
            session.prepare()
            if not session.is_complete:
                session.start()
                session.resume()
                session.train()
            return session.finish()
    except RuntimeError as problem:
        cause = describe_lost_process(problem)
        if is_out_of_memory(problem):
            cause = (
                "out of memory for network and data; return a Dataset if the tensors do not fit on the device"
            )
        if cause is None:
            raise
        log.error(f"error: before the first step: {cause}")
        return RunResult(EXIT_FAILED, None, {})


class TrainingSession:
    """One run in this process: its record, its stop request, its checkpoints and its exit code.

    Call `prepare`, `start`, `resume`, `train` and `finish`, in this order. If an exception ends the body, the
    record ends as failed. In any case the checkpoints are unlocked at the end, and the handlers of signals
    are those of before. So sessions may follow each other in one process, with one `world` and one `stop`.

    Args:
        console: Where progress is shown.
        stop: A request to stop, which may have received a signal before; None: a new one.
        brief: Whether to leave out what is trained, and after a success where the record is.
        run_id: The id of the run, which is resumed if it has a checkpoint; None: the newest run with the same
            options is resumed, or the run gets a new id.
        history: The runs of this process so far, to which this one is added; None: it has trained none.
        on_step: As in `run`.

    Attributes:
        is_complete: Whether an earlier process has finished the run, so that nothing is left to do.
        exit_code: The exit code: 0, 1 failed, 128 + signal stopped. It is 1 until the training has ended.
        summary: The summary of the record, once it has ended.
    """

    def __init__(
        self,
        config: Config,
        world: DistributedContext,
        console: Console,
        stop: StopRequest | None = None,
        *,
        brief: bool = False,
        run_id: str | None = None,
        history: ProcessHistory | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        # Inputs.
        self.config = config
        self.world = world
        self.console = console
        self.stop = stop or StopRequest()
        self.brief = brief
        self.run_id = run_id
        self._on_step = on_step
        self._history = history or ProcessHistory()
        self._history.runs += 1

        # Results.
        self.is_complete = False
        self.exit_code = EXIT_FAILED
        self.summary: dict[str, Any] = {}
        self.tracker = Tracker()

        self._store: CheckpointStore | None = None
        self._checkpoint: Mapping[str, Any] | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def prepare(self) -> None:
        """Build data, network and trainer, say what is trained, and look for a checkpoint to resume from.

        Raises:
            UserError: The input is wrong, in all processes.
        """
        with self.world.raise_on_all_ranks():
            make_folder(Path(self.config.output_dir), f"output_dir={self.config.output_dir!r}")
        self._context = prepare_run(self.config, self.world, self._history.context)
        self._history.context = self._context
        self.config = self._context.config
        self._trainer = self._context.build_trainer()
        self._history.note_network(self._trainer.model)
        self._environment = self._context.describe_environment(self._trainer)
        self._identity = RunIdentity.of_run(self.config.to_dict(), self._environment)
        total_steps = count_steps(self.config, self._context.train)
        name = self.config.wandb.name or run_name(self.config)
        display = TrainingDisplay(self.console, total_steps, name, self._trainer.task.compared)
        self._display = self._resources.enter_context(display)
        if not self.brief:
            self._log_what_is_trained()
        self._find_checkpoint(total_steps)

    def _log_what_is_trained(self) -> None:
        config = self.config
        data = self._context.data
        log.info(
            f"{self._trainer.precision.metadata.label}: {config.model.name} on "
            f"{get_source(data.source).label}, {describe_training_data(data)}, batch {config.batch_size}, "
            f"{self._environment['device_name']}"
        )
        log.info(describe_recipe(config))
        for line in (
            *ignored_options(config),
            *data_warnings(config, data),
            *_arithmetic_remarks(self._environment),
        ):
            log.warning(line)

    def _find_checkpoint(self, total_steps: int) -> None:
        """Find and lock the checkpoints to resume from. Only the main process needs the disk."""
        resumable = None
        with self.world.raise_on_all_ranks():
            if self.world.is_main_process:
                resumable = find_resumable(self.config, self._identity, total_steps, self.run_id)
        if resumable:
            self._store = resumable[0]
            self._resources.callback(self._store.unlock)
        (self._checkpoint,) = self.world.broadcast([resumable and resumable[1]])
        if self._checkpoint == {}:
            self.is_complete = True
            self.exit_code = 0
            folder = self._store.folder.name if self._store else ""
            log.info(f"run {folder} is already finished; resume=never would train it again")
        elif self._checkpoint:
            machine = add_earlier_machines(self._environment["machine"], self._checkpoint["machine"])
            self._environment = self._environment | {"machine": machine}

    def start(self) -> None:
        """Start the record, or continue that of the checkpoint. From here on signals ask the run to stop.

        Raises:
            UserError: W&B refuses the options, in all processes.
        """
        self._facts = self._context.describe_data() | {metrics.ENVIRONMENT: self._environment}
        self._resources.enter_context(self.stop)  # first: a signal must not interrupt the start of W&B
        with self.world.raise_on_all_ranks():
            if self.world.is_main_process:
                self.tracker = self._start_record()
        if self._store is None:
            self._store = CheckpointStore(Path(self.config.output_dir) / FOLDER / self.tracker.run_id)
            self._resources.callback(self._store.unlock)
        self._loop = TrainingLoop(
            self._trainer,
            self._context.train,
            self._context.test,
            self.config,
            tracker=self.tracker,
            display=self._display,
            stop=self.stop,
            checkpoints=self._build_checkpoint_manager(self._store),
            world=self.world,
            on_step=self._on_step,
            is_first_in_process=self._history.runs == 1,
        )
        self._resources.callback(self._end_record)

    def _build_checkpoint_manager(self, store: CheckpointStore) -> CheckpointManager | None:
        """Return what writes the checkpoints; None if the options ask for none."""
        options = self.config.checkpoint
        if options.every_epochs is None and options.every_minutes is None:
            return None
        return CheckpointManager(
            self.tracker,
            store,
            self.config,
            self._identity,
            machine=self._environment["machine"],
            is_main_process=self.world.is_main_process,
        )

    def _start_record(self) -> Tracker:
        """Return the tracker.

        A signal may end W&B's client while the record starts. Then the tracker records nothing.
        """
        skip_pandas_import()
        settings = describe_record(
            self.config, self._environment, self.run_id, self._checkpoint, self._history
        )
        try:
            tracker = start_record(
                settings,
                on_stop=self.stop.request_by_wandb,
                on_lost=self.stop.request_after_failure,
                resumed=self._checkpoint,
            )
            tracker.update_summary(self._facts)
            return tracker
        except Exception as problem:
            if isinstance(problem, UserError) or not self.stop.is_interruption():
                raise
            return Tracker(self._checkpoint["run_id"] if self._checkpoint else "")

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one.

        Raises:
            UserError: The checkpoint does not fit.
        """
        if self._checkpoint:
            self._loop.resume(self._checkpoint)
            log.info(f"resuming run {self._checkpoint['run_id']} at step {self._loop.step}")

    def train(self) -> None:
        """Train to the end, and set the exit code.

        Raises:
            UserError: The user's data raised it.
        """
        self.exit_code = run_loop(self._loop, self._context.find_remedy)

    def finish(self) -> RunResult:
        """End the record, say where it is, and return the result."""
        self._resources.close()
        if not self.is_complete:
            for line in self._closing_lines():
                log.info(line)
        return RunResult(self.exit_code, self.tracker.record, self.summary)

    def _closing_lines(self) -> Iterator[str]:
        if self.brief and not self.exit_code:
            return
        yield from self.tracker.describe_record(Path(self.config.output_dir))
        step = self._loop.logger.anomalies.first_anomaly
        record = self.tracker.record
        # Strict fp32 is what a step is compared with, and a replay has one process.
        is_compared = not get_backend(self.config.backend).is_strict_fp32
        if step is not None and record is not None and is_compared and self.world.size == 1:
            command = shell_command("ampcompare", "why", "diff", "--at", record)
            yield f"why:    {command} (explains step {step})"

    def _end_record(self) -> None:
        """End the record; the exit code is not 0 if the record is not complete."""
        loop = self._loop
        self.summary = self._facts | loop.summary()
        missing = self.tracker.finish(self.summary, self.exit_code)
        # If a failing record stopped the run, this has been reported, unless the request came after the last
        # step.
        is_reported = self.exit_code == EXIT_FAILED and loop.stopped
        if missing and not is_reported:
            resume = describe_resume(loop, "complete the run")
            if self.stop.is_interruption():
                log.error(f"interrupted ({self.stop.reason}): {missing}{resume}")
                self.exit_code = self.stop.exit_code
            else:
                log.error(f"error: {missing}{resume}")
                self.exit_code = self.exit_code or EXIT_FAILED
        if self.exit_code == 0 and self.world.is_main_process and self._store is not None:
            self._store.end(loop.step)


def _arithmetic_remarks(environment: Mapping[str, Any]) -> list[str]:
    """Return what a user should know about the speed of the dtype on this device."""
    dtype = environment[metrics.PRECISION_DTYPE]
    if environment.get(metrics.ARITHMETIC, {}).get(dtype) != metrics.COMPUTED_IN_FP32:
        return []
    return [f"this CPU computes {dtype} in fp32, so do not compare the speed, only accuracy and memory"]


def run_name(config: Config) -> str:
    """Return the name of a run, such as `native_resnet50_cifar`: backend, model, data."""
    data = get_source(config.data.source).short_name
    return f"{get_backend(config.backend).label}_{shorten_name(config.model.name)}_{data}"


def describe_record(
    config: Config,
    environment: Mapping[str, Any],
    run_id: str | None = None,
    resumed: Mapping[str, Any] | None = None,
    history: ProcessHistory | None = None,
) -> RunSettings:
    """Return the settings with which the record of a run starts.

    The tags are the backend, the data (so that synthetic data is visible everywhere) and the user's tags.

    Args:
        run_id: The id of the run; None: that in WANDB_RUN_ID, or a new one.
        resumed: The checkpoint of the run to continue.
        history: The runs of this process, of which this is the latest; None: the process has no other.
    """
    history = history or ProcessHistory(runs=1)
    process = {metrics.PROCESS: history.process, metrics.POSITION: history.runs}
    logged = config.to_dict() | {"environment": dict(environment), metrics.RUN: process}
    if resumed:
        logged["resume"] = resumed["config"]["resume"]  # as it was when the run began
    source = config.data.source
    data_tag = source if source in SOURCES else get_source(source).label[-MAX_TAG_CHARS:]
    tags = [get_backend(config.backend).label, data_tag, *config.wandb.tags]
    options = asdict(config.wandb)
    options["tags"] = list(dict.fromkeys(tags))  # each once
    options["name"] = config.wandb.name or run_name(config)
    return RunSettings(logged, config.output_dir, run_id=run_id, **options)
