"""One run from config to finished record: prepare the parts, start the record, train, finish."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampcompare import metrics
from ampcompare.config.load import Config, check_sweep_values
from ampcompare.config.recipes import describe_recipe
from ampcompare.config.validate import ignored_options, resolve_backend
from ampcompare.data.factory import Dataset
from ampcompare.data.sources import SOURCES as DATA
from ampcompare.data.sources import get_source
from ampcompare.data.worker_signals import is_worker_loss
from ampcompare.errors import TrainingError, UserError, reason
from ampcompare.plugins import shorten_name
from ampcompare.precision import get_backend
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.console import silent
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.signals import EXIT_FAILED, EXIT_INTERRUPTED, StopRequest
from ampcompare.system.device import is_out_of_memory
from ampcompare.system.distributed import (
    DistributedContext,
    connect_processes,
    find_distributed_context,
    is_peer_failure,
)
from ampcompare.system.environment import add_earlier_machines
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_init import MAX_TAG_CHARS, RunSettings, start_record
from ampcompare.training.anomalies import NonFiniteLossError
from ampcompare.training.checkpoint.manager import CheckpointManager
from ampcompare.training.checkpoint.store import FOLDER, CheckpointStore, find_resumable, run_identity
from ampcompare.training.display import TrainingDisplay
from ampcompare.training.loaders import (
    check_processes,
    data_warnings,
    describe_training_data,
    find_nonfinite_values,
)
from ampcompare.training.loop import TrainingLoop, count_steps
from ampcompare.training.run_context import prepare_run
from ampcompare.wandb_client.client import skip_pandas_import

log = logging.getLogger(__name__)

SOURCES = ("_source", metrics.MODEL_PARAMETERS)  # endings of environment keys about user code


@dataclass(frozen=True)
class RunResult:
    """The end of a run.

    Attributes:
        exit_code: The exit code.
        record: The folder of the record; None: there is none.
        summary: The summary.
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
) -> RunResult:
    """Train as the config says, record the run with W&B, and show its progress on the console.

    Messages are logged from INFO on (`ampcompare.runtime.console.messages_on` prints them on the console).
    Wrong input is found before W&B is started.

    Args:
        config: The options of the run.
        console: Where progress is shown.
        brief: Whether to leave out which options have no effect and where the record is.
        stop: A request to stop, which may have received a signal before.

    Raises:
        UserError: The input is wrong.
    """
    check_sweep_values(config)
    remarks = [] if brief else ignored_options(config)
    resolve_backend(config)
    console = console or Console(highlight=False)
    try:
        check_processes(config, find_distributed_context().size)
        with (
            connect_processes(config.device) as world,
            nullcontext() if world.is_main_process else silent(console),
        ):
            return _run(config, world, console, remarks, brief, stop or StopRequest())
    except RuntimeError as problem:
        why = _describe_lost_process(problem)
        if is_out_of_memory(problem):
            why = (
                "out of memory for network and data; return a Dataset if the tensors do not fit on the device"
            )
        if why is None:
            raise
        log.error(f"error: before the first step: {why}")
        return RunResult(EXIT_FAILED, None, {})


def _run(
    config: Config,
    world: DistributedContext,
    console: Console,
    remarks: Sequence[str],
    brief: bool,
    stop: StopRequest,
) -> RunResult:
    with world.raise_on_all_ranks():
        make_folder(Path(config.output_dir), f"output_dir={config.output_dir!r}")
    context = prepare_run(config, world)
    config = context.config
    trainer, data = context.build_trainer(), context.data
    environment, total_steps = context.describe_environment(trainer), count_steps(config, context.train)
    name = config.wandb.name or run_name(config)
    with TrainingDisplay(console, total_steps, name, trainer.task.compared) as display:
        label = trainer.precision.metadata.label
        what = f"{config.model.name} on {get_source(data.source).label}, {describe_training_data(data)}"
        log.info(f"{label}: {what}, batch {config.batch_size}, {environment['device_name']}")
        log.info(describe_recipe(config))
        for line in (*remarks, *data_warnings(config, data), *_arithmetic_remarks(environment)):
            log.warning(line)
        identity = identify_run(config, environment, data)
        resumable = None
        with world.raise_on_all_ranks():
            if world.is_main_process:
                resumable = find_resumable(config, identity, total_steps)
        (state,) = world.broadcast(
            [resumable and resumable[1]]
        )  # from the main process: only it needs the disk
        if state == {}:
            name = resumable[0].folder.name if resumable else ""
            log.info(f"run {name} is already finished; resume=never would train it again")
            return RunResult(0, None, {})
        if state:
            machine = add_earlier_machines(environment["machine"], state["machine"])
            environment = environment | {"machine": machine}
        facts = context.describe_data() | {metrics.ENVIRONMENT: environment}
        with stop:  # before W&B starts, so that a signal does not interrupt the start
            tracker = Tracker()
            with world.raise_on_all_ranks():
                if world.is_main_process:
                    tracker = _start_record(config, environment, facts, stop, state)
            store = (
                resumable[0]
                if resumable
                else CheckpointStore(Path(config.output_dir) / FOLDER / tracker.run_id)
            )
            checkpoints = None
            if config.checkpoint.every_epochs is not None or config.checkpoint.every_minutes is not None:
                machine = environment["machine"]
                checkpoints = CheckpointManager(
                    tracker, store, config, identity, machine, is_main_process=world.is_main_process
                )
            loop = TrainingLoop(
                trainer,
                context.train,
                context.test,
                config,
                tracker=tracker,
                display=display,
                stop=stop,
                checkpoints=checkpoints,
                world=world,
            )
            exit_code = EXIT_FAILED
            try:
                if state:
                    loop.resume(state)
                    log.info(f"resuming run {state['run_id']} at step {loop.step}")
                exit_code = _train(loop, stop)
            finally:
                summary = facts | loop.summary()
                exit_code = _finish(tracker, loop, summary, exit_code, stop)
                if exit_code == 0 and world.is_main_process:
                    store.end(loop.step)
                store.unlock()
    for line in tracker.describe_record(Path(config.output_dir)) if exit_code or not brief else ():
        log.info(line)
    if hint := _explain_hint(loop, tracker):
        log.info(hint)
    return RunResult(exit_code, tracker.record, summary)


def _arithmetic_remarks(environment: Mapping[str, Any]) -> list[str]:
    """Return what a user should know about the speed of the dtype on this device."""
    dtype = environment[metrics.PRECISION_DTYPE]
    if environment.get(metrics.ARITHMETIC, {}).get(dtype) != metrics.COMPUTED_IN_FP32:
        return []
    return [f"this CPU computes {dtype} in fp32, so do not compare the speed, only accuracy and memory"]


def identify_run(config: Config, environment: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return what must be equal to continue a run: options, kind of device, user code and data.

    Args:
        config: The options of the run.
        environment: The recorded environment.
        data: The data.
    """
    sources = {key: value for key, value in environment.items() if key.endswith(SOURCES)}
    if data.train_fingerprint:  # if the other fingerprint does not include it
        sources["train_data"] = data.train_fingerprint
    return run_identity(
        config, environment["device_type"], environment["processes"], data=data.fingerprint, **sources
    )


def run_name(config: Config) -> str:
    """Return the name of a run, such as `native_resnet50_cifar`: backend, model, data."""
    data = get_source(config.data.source).short_name
    return f"{get_backend(config.backend).label}_{shorten_name(config.model.name)}_{data}"


def start_tracker(
    config: Config,
    environment: Mapping[str, Any],
    on_stop: Callable[[], None] | None = None,
    resumed: Mapping[str, Any] | None = None,
    on_lost: Callable[[str], None] | None = None,
) -> Tracker:
    """Start the record of a run, or continue the record of a checkpoint.

    The tags are the backend, the data (so that synthetic data is visible everywhere) and the user's tags.

    Args:
        config: The options of the run.
        environment: The recorded environment.
        on_stop: As in `start_record`.
        resumed: As in `start_record`.
        on_lost: As in `start_record`.
    """
    logged = config.to_dict() | {"environment": dict(environment)}
    if resumed:
        logged["resume"] = resumed["config"]["resume"]  # as it was when the run began
    skip_pandas_import()
    source, own = config.data.source, asdict(config.wandb)
    data = source if source in DATA else get_source(source).label[-MAX_TAG_CHARS:]
    own["tags"] = [*dict.fromkeys([get_backend(config.backend).label, data, *config.wandb.tags])]
    own["name"] = config.wandb.name or run_name(config)
    return start_record(RunSettings(logged, config.output_dir, **own), on_stop, resumed, on_lost)


def _start_record(
    config: Config,
    environment: Mapping[str, Any],
    facts: Mapping[str, Any],
    stop: StopRequest,
    state: Mapping[str, Any] | None,
) -> Tracker:
    """Return the tracker.

    A signal may end W&B's client while the record starts. Then the tracker records nothing.
    """
    try:
        tracker = start_tracker(config, environment, stop.request_by_wandb, state, stop.request_after_failure)
        tracker.update_summary(facts)
        return tracker
    except Exception as problem:
        if isinstance(problem, UserError) or not stop.is_interruption():
            raise
        return Tracker(state["run_id"] if state else "")


def _finish(
    tracker: Tracker,
    loop: TrainingLoop,
    summary: dict[str, Any],
    exit_code: int,
    stop: StopRequest,
) -> int:
    """End the record and return the exit code, which is not 0 if the record is not complete."""
    lack = tracker.finish(summary, exit_code)
    # If a failing record stopped the run, this has been reported, unless the request came after the last
    # step.
    if not lack or (exit_code == EXIT_FAILED and loop.stopped):
        return exit_code
    is_stop = stop.is_interruption()
    what = f"interrupted ({stop.reason})" if is_stop else "error"
    log.error(f"{what}: {lack}{_resume_hint(loop, 'complete the run')}")
    return stop.exit_code if is_stop else exit_code or EXIT_FAILED


def _train(loop: TrainingLoop, stop: StopRequest) -> int:
    """Run the loop and return the exit code, after logging why it is not 0."""
    if stop.is_interruption() and loop.world.size == 1:  # several processes agree on it after a step
        log.warning(f"interrupted before step {loop.step + 1} ({stop.reason}); no work is lost")
        return stop.exit_code
    try:
        loop.run()
    except KeyboardInterrupt:
        log.warning(f"interrupted at step {loop.step}; the record up to here is kept")
        return EXIT_INTERRUPTED
    except UserError as problem:  # raised by the user's data during the training
        problem.exit_code = EXIT_FAILED
        raise
    except Exception as problem:
        if why := _failure(loop, problem):
            log.error(f"error: {why}")
            return EXIT_FAILED
        lost = _describe_lost_process(problem)
        # A signal to every process of a job ends what a step needs: a worker, a compiler, another process.
        is_stop = stop.is_interruption()
        if lost is None and not is_stop:
            raise
        what = f"interrupted at step {loop.step} ({stop.reason})" if is_stop else f"error: step {loop.step}"
        why = lost or f"the step could not be finished ({reason(problem)})"
        log.error(f"{what}: {why}{_resume_hint(loop, 'continue')}")
        return stop.exit_code if is_stop else EXIT_FAILED
    if not loop.stopped:
        return 0
    suffix = "" if stop.exit_code == EXIT_FAILED else "; the record up to here is kept"
    log.warning(f"interrupted at step {loop.step} ({stop.reason}){suffix}{_resume_hint(loop, 'continue')}")
    return stop.exit_code


def _failure(loop: TrainingLoop, problem: Exception) -> str | None:
    """Return why the training itself failed, or None for any other exception."""
    if isinstance(problem, NonFiniteLossError):
        return problem.explain(*find_nonfinite_values(loop.train))
    if isinstance(problem, TrainingError):
        return str(problem)
    if not is_out_of_memory(problem):
        return None
    return (
        f"out of memory on {loop.device} with batch_size={loop.config.batch_size}; try a smaller "
        "batch_size with training.accumulate, or memory-saving precision (backend=native)"
    )


def _describe_lost_process(problem: Exception) -> str | None:
    """Return which process that the training needs has ended, or None for any other exception."""
    if is_worker_loss(problem):
        return reason(problem)
    if not is_peer_failure(problem):
        return None
    return f"another process of this run has ended; see its message ({reason(problem)})"


def _explain_hint(loop: TrainingLoop, tracker: Tracker) -> str:
    """Return the command that explains the first anomaly of a run, or "" if there is nothing to explain."""
    step = loop.logger.anomalies.first_anomaly
    # Strict fp32 is what a step is compared with, and a replay has one process.
    is_plain = get_backend(loop.config.backend).is_strict_fp32
    if step is None or tracker.record is None or is_plain or loop.world.size > 1:
        return ""
    command = shell_command("ampcompare", "why", "diff", "--at", tracker.record)
    return f"why:    {command} (explains step {step})"


def _resume_hint(loop: TrainingLoop, do: str) -> str:
    """Return what to do about a run that did not end well, if there is a checkpoint."""
    saved = loop.checkpoints.saved_step if loop.checkpoints else None
    if saved is None:
        return ""
    where = "" if saved == loop.step else f" from the checkpoint at step {saved}"
    return f"; {do}{where} with resume=auto"
