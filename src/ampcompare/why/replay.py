"""Continue a recorded run from its nearest checkpoint to the moment before one of its steps.

The existing training code continues the run with the run's own options, and records nothing. Before the step
to look at, the replay copies the whole state: weights, optimizer state, loss scale, random states and the
batches. Then it trains on to the end of the log interval, so that the losses can be compared with the record.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ampcompare import metrics
from ampcompare.errors import TrainingError, UserError
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.runtime.console import hidden_messages
from ampcompare.runtime.formatting import duration, plural
from ampcompare.system.device import is_host, random_states, set_random_states
from ampcompare.tracking.tracker import Tracker
from ampcompare.training.checkpoint.store import FORMAT, CheckpointError, CheckpointStore, read_checkpoint
from ampcompare.training.cuda_graph import GraphTrainer
from ampcompare.training.loop import PARTS, Display, TrainingLoop
from ampcompare.training.run_context import RunContext, prepare_run
from ampcompare.training.torch_compile import uses_compile
from ampcompare.why.recorded_run import (
    OPTION,
    RecordedRun,
    describe_changes,
    describe_equality,
    parse_moment,
    read_run,
)
from ampcompare.why.step import StepState, copy_batches


class _Reached(BaseException):
    """The replay is complete. No handler of an ordinary exception may catch it."""


class _RowList(Tracker):
    """Keeps the training losses of the rows by their step, and records nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[int, float] = {}

    def log(self, row: Mapping[str, Any]) -> None:
        if metrics.LOSS in row:
            self.losses[row[metrics.STEP]] = row[metrics.LOSS]


class _StepWatch(Display):
    """Copies the state of a training before the step to look at, and ends the replay.

    Args:
        context: Its data and loaders.
        step: The number of the step.
        row_ends: The steps at which the run logged a row: the replay ends its rows there, too.
    """

    def __init__(self, loop: TrainingLoop, context: RunContext, step: int, row_ends: Sequence[int]) -> None:
        self.loop = loop
        self.context = context
        self.number = step
        self._row_ends = set(row_ends)
        self.end = min((end for end in row_ends if end >= step), default=step)
        self.state: StepState | None = None
        self._own_step = loop.trainer.step
        loop.trainer.step = self._take_step  # type: ignore[method-assign]

    def _take_step(self, batches: Sequence[Any], *, diagnose: bool = False) -> Any:
        if self.loop.step == self.number:
            self.state = self._copy_state(batches)
        return self._own_step(batches, diagnose=diagnose)

    def step(self, step: int) -> None:
        """End a row where the run ended one, and end the replay."""
        if step in self._row_ends:
            self.loop.logger.flush()
        if self.state is not None and step >= self.end:
            raise _Reached

    def _copy_state(self, batches: Sequence[Any]) -> StepState:
        loop = self.loop
        trainer = loop.trainer
        if isinstance(trainer, GraphTrainer):
            batches = [trainer.make_batch(plan) for plan in batches]
        return StepState(
            title="",
            config=dataclasses.replace(loop.config, execution="eager"),
            context=self.context,
            batches=copy_batches(batches),
            random=random_states(loop.device),
            parts={name: copy.deepcopy(getattr(trainer, name).state_dict()) for name in PARTS},
            weights=[p.detach().clone() for p in trainer.updated],
            place=(loop.epoch, (loop.in_epoch - 1) * loop.config.training.accumulate),
        )


def from_run(text: str, overrides: Sequence[str], say: Callable[[str], None]) -> StepState:
    """Continue a run up to a step, and return its state right before the step.

    Args:
        text: `RUN` or `RUN@STEP`.
        overrides: Options that may differ from those of the run, such as `device=cpu`.
        say: Prints a line: from where the run is continued, which step it is, whether the losses are equal.

    Raises:
        UserError: There is no such run or step, or code or data have changed since the run.
    """
    name, asked = parse_moment(text)
    run = read_run(name, overrides)
    step, reason = run.choose_step(asked)
    with _threads_of(run):
        context = prepare_run(run.config)
        trainer = context.build_trainer()
        states = random_states(context.world.device)
        environment = context.describe_environment(trainer)
        identity = RunIdentity.of_run(run.config.to_dict(), environment, context.describe_data())
        store = CheckpointStore(run.checkpoints)
        about = _read_about(store)
        saved = about["identity"] if about.get("format") == FORMAT else None
        changes = describe_changes(run, identity, saved)
        if changes:
            raise UserError(
                f"{OPTION} {run.name}: these have changed since the run, so it cannot be replayed: "
                f"{', '.join(changes)}; restore them"
            )
        checkpoint = _nearest_checkpoint(store, step) if saved is not None else None
        start = 0 if checkpoint is None else int(checkpoint["fit"]["step"])
        tracker = _RowList()
        loop = TrainingLoop(trainer, context.train, context.test, run.config, tracker=tracker)
        if checkpoint is not None:
            loop.resume(checkpoint)
        else:
            set_random_states(context.world.device, states)
        watch = _StepWatch(loop, context, step, run.steps)
        loop.display = watch
        say(_describe_start(run, start, watch.end, about))
        _run_to_step(run, loop, watch)
    if watch.state is None:
        raise UserError(f"{OPTION} {run.name}: the replay ended at step {loop.step}, before step {step}")
    say(f"step {step:,}: {reason}")
    say(describe_equality(run, tracker.losses))
    title = f"run {run.name}, step {step:,}"
    return dataclasses.replace(watch.state, title=title, has_updated=run.has_updated(step))


def _run_to_step(run: RecordedRun, loop: TrainingLoop, watch: _StepWatch) -> None:
    """Train until the watch ends the replay. The failure of the run itself ends it, too."""
    try:
        with hidden_messages():
            loop.run()
    except _Reached:
        pass
    except TrainingError as problem:
        if watch.state is None:
            raise UserError(
                f"{OPTION} {run.name}: the replay failed at step {loop.step}: {problem}"
            ) from None
    finally:
        del loop.trainer.step  # the method of the class is back


def _describe_start(run: RecordedRun, start: int, end: int, about: Mapping[str, Any]) -> str:
    """Return from where the run is replayed, and how long that takes."""
    length = plural(end - start, "step")
    each = run.seconds_per_step()
    if each is not None:
        length = f"{length}, about {duration(each * (end - start))}"
    if uses_compile(run.config.execution):
        length = f"{length} and the time to compile"
    if start:
        return f"replaying run {run.name} from the checkpoint at step {start:,}: {length}"
    found_format = about.get("format")
    if found_format in (None, FORMAT):
        return f"replaying run {run.name} from step 0: {length}"
    return (
        f"replaying run {run.name} from step 0 (its checkpoints have format {found_format}, this version "
        f"reads {FORMAT}): {length}"
    )


def _read_about(store: CheckpointStore) -> Mapping[str, Any]:
    try:
        return store.read_description()
    except (OSError, ValueError):
        return {"format": None}


def _nearest_checkpoint(store: CheckpointStore, step: int) -> dict[str, Any] | None:
    """Return the newest readable checkpoint before a step, or None. Nothing in the folder changes."""
    for path in store.files():
        if _step_of(path) >= step:
            continue
        try:
            return read_checkpoint(path)
        except CheckpointError:
            continue
    return None


def _step_of(path: Path) -> int:
    return int(path.name[5:14])


@contextmanager
def _threads_of(run: RecordedRun) -> Iterator[None]:
    """Use as many threads on the CPU as the run: their number changes the order of sums."""
    environment = run.record.environment
    threads = environment.get("cpu_threads")
    before = torch.get_num_threads()
    if threads and is_host(torch.device(environment.get("device_type", "cpu"))):
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
