"""One run from config to finished record: builds the parts, owns their lifetime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ampcompare.checkpoint.files import Store
from ampcompare.checkpoint.resume import (
    FOLDER,
    Identity,
    RunKeeper,
    find_together,
    restore,
    writes_checkpoints,
)
from ampcompare.config.backend_choice import settle
from ampcompare.config.load import Config
from ampcompare.config.sweep_choice import check_chosen
from ampcompare.data.dataset import Dataset, ImageSet, build_dataset
from ampcompare.data.loader import DeviceLoader
from ampcompare.data.sources import SOURCES, source_of
from ampcompare.errors import UserError
from ampcompare.machine.device import effective_numerics, is_channels_last, resolve_device, set_numerics
from ampcompare.machine.environment import describe_environment
from ampcompare.machine.processes import World, check_last_batch, device_name, is_loss_of_another, join
from ampcompare.measure.memory import is_out_of_memory
from ampcompare.models import build_model
from ampcompare.precision import build_precision
from ampcompare.program.console import print_line
from ampcompare.program.stopping import EXIT_FAILED, EXIT_INTERRUPTED, StopRequest
from ampcompare.train.display import TrainingDisplay
from ampcompare.train.execution import captures, check_execution, compiles
from ampcompare.train.fit import Fit, steps_per_epoch, total_steps
from ampcompare.train.graph import GraphTrainer
from ampcompare.train.rows import TrainingError
from ampcompare.train.sharded import ShardedTrainer, wrap
from ampcompare.train.trainer import Trainer, learning_rate_factor

if TYPE_CHECKING:
    from ampcompare.tracking.tracker import Tracker

RECORDED_INTERRUPTED = 255  # what W&B's client itself reports of a program that Ctrl-C ended


@dataclass(frozen=True)
class Result:
    """How a run ended: its exit code, where its record is (None: kept nowhere), its summary."""

    exit_code: int
    record: Path | None
    summary: dict[str, Any]


def run(config: Config, console: Console | None = None) -> Result:
    """Train as the config says, record it with W&B, say on the console how it goes.

    Everything that can be wrong with the input is found before W&B is started, and raises UserError.
    """
    check_chosen(config)
    config = settle(config)
    console = console or Console(highlight=False)
    try:
        with join(config) as world:
            return _run(config, world, console)
    except RuntimeError as problem:
        if not is_loss_of_another(problem):
            raise
        print_line(console, f"error: before the first step: {_loss(problem)}")
        return Result(EXIT_FAILED, None, {})


def _loss(problem: RuntimeError) -> str:
    reason = str(problem).strip().splitlines()[0]
    return f"another process of this run has ended, its own message says why ({reason})"


def _run(config: Config, world: World, console: Console) -> Result:
    from ampcompare.tracking.tracker import (
        Tracker,
        run_name,
    )  # here: benchmarks build a trainer and need no W&B

    if not world.leads:
        console = Console(quiet=True)
    with world.agree():
        device = resolve_device(device_name(config.device, world))
        set_numerics(config)
        check_execution(config, device)
        check_output(Path(config.output_dir))
    with world.agree(), world.leader_first():
        data = build_dataset(
            source=config.data.source,
            root=config.data.root,
            train_limit=config.data.train_limit,
            test_limit=config.data.test_limit,
        )
    check_last_batch(len(data.train.labels), config.batch_size, world)
    train = make_loader(config, data.train, device, training=True, world=world)
    test = make_loader(config, data.test, device, training=False, world=world)
    trainer = build_trainer(config, data, train, device, world)
    settings = {
        **effective_numerics(config, device),
        "fused": is_fused(config, device),
        "processes": world.size,
        **trainer.precision.declares.record(),
        **({} if config.data.source in SOURCES else {"data_fingerprint": data.fingerprint}),
    }
    environment = describe_environment(device, **settings)

    name = config.wandb.name or run_name(config)
    stop = StopRequest()
    with TrainingDisplay(console, total_steps(config, train), name) as display:
        display.say(_headline(config, data, environment))
        identity = Identity(
            config, data.fingerprint, device.type, world.size, trainer.precision.declares.source
        )
        resumed = find_together(identity, total_steps(config, train), display.say, world)
        state = resumed.state if resumed else None
        tracker = None
        with world.agree():
            if world.leads:
                tracker = Tracker.start(
                    config,
                    environment,
                    display.say,
                    on_stop=stop.from_wandb,
                    resumed=state,
                    on_lost=stop.from_record,
                )

        def on_row(row: dict[str, Any]) -> None:
            if tracker:
                tracker.log(row)
            display.row(row)

        fit = Fit(
            trainer,
            train,
            test,
            config,
            on_row=on_row,
            on_step=display.step,
            on_note=display.say,
            should_stop=stop.is_made,
            world=world,
        )
        store = resumed.store if resumed else None
        if tracker and store is None:
            store = Store(Path(config.output_dir) / FOLDER / tracker.run_id)
        if writes_checkpoints(config):
            fit.keeper = RunKeeper(tracker, store, identity, environment, display.say)
        exit_code = EXIT_FAILED
        with stop:
            try:
                if state:
                    restore(fit, state)
                    display.say(f"going on with run {state['run_id']} at step {fit.step}")
                exit_code = _train(fit, stop, display.say)
            finally:
                summary = fit.summary()
                if tracker:
                    exit_code = _finish(tracker, fit, summary, exit_code, stop, display.say)
                if store:
                    if exit_code == 0:
                        store.mark_recorded(fit.step, display.say)
                    store.unlock()
    if tracker is None:
        return Result(exit_code, None, summary)
    _say_where(console, config, tracker)
    return Result(exit_code, tracker.record, summary)


def _finish(
    tracker: Tracker,
    fit: Fit,
    summary: dict[str, Any],
    exit_code: int,
    stop: StopRequest,
    say: Callable[[str], None],
) -> int:
    """End the record; returns the exit code, another one where the record is not whole."""
    if exit_code <= 128:
        lack = tracker.finish(summary, exit_code)
        if lack and not fit.stopped:  # else it has been said; a request behind the last step stopped nothing
            say(f"error: {lack}{_way_on(fit, 'complete it')}")
            return exit_code or EXIT_FAILED
    elif not tracker.finish_stopped(summary, RECORDED_INTERRUPTED, preempted=stop.is_preemption()):
        say("the record is on the disk, but was not sent whole in time")
    return exit_code


def _train(fit: Fit, stop: StopRequest, say: Callable[[str], None]) -> int:
    """Run the fit; returns the exit code, having said why it is not 0."""
    try:
        fit.run()
    except TrainingError as problem:
        say(f"error: {problem}")
        return EXIT_FAILED
    except RuntimeError as problem:
        if is_out_of_memory(problem):
            say(
                f"error: out of memory on {fit.device} with batch_size={fit.config.batch_size}; try a "
                "smaller batch_size with training.accumulate, or memory-saving precision (backend=native)"
            )
            return EXIT_FAILED
        if fit.world.size == 1 or not is_loss_of_another(problem):
            raise
        say(f"error: step {fit.step}: {_loss(problem)}; go on from the last checkpoint with resume=auto")
        return EXIT_FAILED
    except KeyboardInterrupt:
        say(f"interrupted at step {fit.step}: the record so far is kept")
        return EXIT_INTERRUPTED
    if not fit.stopped:
        return 0
    kept = "" if stop.exit_code == EXIT_FAILED else ": the record so far is kept"
    say(f"interrupted at step {fit.step} ({stop.reason}){kept}{_way_on(fit, 'go on')}")
    return stop.exit_code


def _way_on(fit: Fit, do: str) -> str:
    """What to do about a run that did not end well, if there is a checkpoint."""
    saved = fit.keeper.saved_step if fit.keeper else None
    if saved is None:
        return ""
    where = "" if saved == fit.step else f" from the checkpoint at step {saved}"
    return f"; {do}{where} with resume=auto"


def check_output(folder: Path) -> None:
    """Make the output folder and see that a file can be written there. Raises UserError."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(
            f"output_dir={str(folder)!r}: cannot be written ({reason}); set output_dir to a folder that can"
        ) from None


def make_loader(
    config: Config, images: ImageSet, device: torch.device, *, training: bool, world: World | None = None
) -> DeviceLoader:
    """The loader of the training or the test images as the config says."""
    return DeviceLoader(
        images,
        batch_size=config.batch_size if training else config.eval.batch_size,
        device=device,
        mean=config.data.mean,
        std=config.data.std,
        augment=training and config.data.augment,
        shuffle=training,
        seed=config.seed,
        channels_last=is_channels_last(config, device),
        rank=world.rank if world else 0,
        processes=world.size if world else 1,
    )


def build_trainer(
    config: Config, data: Dataset, train: DeviceLoader, device: torch.device, world: World | None = None
) -> Trainer:
    """Model, optimizer, schedule under the backend. Same seed, same first weights, whatever the backend."""
    torch.manual_seed(config.seed)
    model = build_model(config.model.name, config.model.stem, len(data.classes)).to(device)
    if is_channels_last(config, device):
        model = model.to(memory_format=torch.channels_last)
    if config.fuse:
        from ampcompare.fusion.modules import fuse_model  # here: it loads torchvision

        fuse_model(model, blocks=not compiles(config.execution))
    precision = build_precision(
        config.backend, device, **dataclasses.asdict(config.precision), fuse=config.fuse
    )
    if config.fuse and device.type == "cuda":  # on a CPU the separate ops are faster
        from ampcompare.fusion.batch import fuse_batches

        fuse_batches(train, precision.input_dtype)
    model, optimizer = precision.prepare(model, build_optimizer(config, model, device))
    per_epoch = steps_per_epoch(config, train)
    schedule = partial(
        learning_rate_factor,
        name=config.schedule.name,
        warmup_steps=config.schedule.warmup_epochs * per_epoch,
        total_steps=config.epochs * per_epoch,
    )
    parts = (model, optimizer, LambdaLR(optimizer, schedule), precision, config.training)
    if captures(config.execution):
        images = min(config.batch_size, train.sample_count)
        return GraphTrainer(
            *parts, compiled=compiles(config.execution), make_batch=train.batch, images=images
        )
    if world and world.size > 1:
        return ShardedTrainer(wrap(model, world), *parts[1:], world=world)
    return Trainer(*parts, compiled=compiles(config.execution))


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> Optimizer:
    """The optimizer over all of the model's parameters."""
    options, parameters = config.optimizer, list(model.parameters())
    common: dict[str, Any] = {
        "lr": options.lr,
        "weight_decay": options.weight_decay,
        "fused": is_fused(config, device),
    }
    try:
        if options.name == "sgd":
            return torch.optim.SGD(parameters, momentum=options.momentum, nesterov=options.nesterov, **common)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.name]
        return kind(parameters, capturable=captures(config.execution), **common)
    except RuntimeError as problem:
        raise UserError(f"optimizer.fused={options.fused}: {problem}; set optimizer.fused=false") from None


def is_fused(config: Config, device: torch.device) -> bool:
    """Whether the optimizer is fused: as the config says, or else on a GPU."""
    return device.type == "cuda" if config.optimizer.fused is None else config.optimizer.fused


def _headline(config: Config, data: Dataset, environment: dict[str, Any]) -> str:
    return (
        f"{environment.get('backend_label', config.backend)}: {config.model.name} on "
        f"{source_of(data.source).label}, {len(data.train.labels):,} training images, "
        f"batch {config.batch_size}, {environment['device_name']}"
    )


def _say_where(console: Console, config: Config, tracker: Tracker) -> None:
    say = partial(print_line, console)
    if tracker.record is None:
        say("record: none (W&B is disabled)")
        return
    say(f"record: {tracker.record}")
    if tracker.url:
        say(f"page:   {tracker.url}")
        say(f"sync:   wandb sync --include-online {_quoted(tracker.record)} (if the upload was cut short)")
    else:
        say(f"sync:   wandb sync {_quoted(tracker.record)}")
    say(f"see:    ampcompare report {_quoted(Path(config.output_dir))} --out report")
    say(f"        wandb leet {_quoted(tracker.record.parent)}")


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
