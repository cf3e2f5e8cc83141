"""Continue a recorded run from its nearest checkpoint to the moment before one of its steps.

The existing training code continues the run with the run's own options, and records nothing. Before each
step that may be the one to look at, the replay copies the whole state: weights, optimizer state, loss scale,
random states and the batches. After that step it trains on to the end of the log interval, so that the losses
can be compared with the record.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.config.schema import Config
from ampcompare.data.batch import Batch, map_tensors
from ampcompare.errors import TrainingError, UserError
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.runtime.console import hidden_messages
from ampcompare.runtime.formatting import duration
from ampcompare.system.device import is_host, random_states, set_random_states
from ampcompare.tracking.tracker import Tracker
from ampcompare.training.checkpoint.store import FORMAT, CheckpointError, CheckpointStore, read_checkpoint
from ampcompare.training.cuda_graph import GraphTrainer
from ampcompare.training.loop import PARTS, NoDisplay, TrainingLoop
from ampcompare.training.run_context import RunContext, prepare_run
from ampcompare.training.torch_compile import uses_compile
from ampcompare.training.trainer import Trainer, micro_batches
from ampcompare.why.recorded_run import (
    OPTION,
    RecordedRun,
    StepChoice,
    describe_changes,
    describe_equality,
    parse_moment,
    read_run,
)

MASTERS = "masters"  # in the state of a backend with fp32 master weights


@dataclass(frozen=True)
class Moment:
    """A training right before one of its steps.

    Attributes:
        name: What is looked at, for headings: `run abc, step 300`.
        step: The number of the step, from 1.
        config: The options of the run, with eager execution.
        context: Its data and loaders.
        state: A copy of the state of model, optimizer, schedule and backend.
        weights: What the optimizer updates, in the order of the model's parameters: weights, or masters.
        random: The random states.
        batches: The micro-batches of the step.
        place: Where the step is: the epoch, and the number of its first micro-batch in the epoch.
    """

    name: str
    step: int
    config: Config
    context: RunContext
    state: Mapping[str, Any]
    weights: Sequence[Tensor]
    random: Mapping[str, Any]
    batches: list[Batch]
    place: tuple[int, int]

    def set_random_states(self) -> None:
        """Set all random generators as they were right before the step."""
        set_random_states(self.context.world.device, self.random)

    def build_trainer(self, config: Config) -> Trainer:
        """Return a trainer in the state of this moment.

        Args:
            config: The options of the run, or with another backend or other modules in fp32. Then it gets the
                weights and the optimizer state, and of the backend's state what both backends have.
        """
        trainer = self.context.build_trainer(config)
        state = copy.deepcopy(dict(self.state))
        is_same = config.backend == self.config.backend and config.precision == self.config.precision
        if not is_same:
            own = trainer.precision.state_dict()
            shared = {k: v for k, v in state["precision"].items() if k in own and k != MASTERS}
            state["precision"] = own | shared
        for name in PARTS:
            getattr(trainer, name).load_state_dict(state[name])
        if not is_same:
            updated = [p for group in trainer.optimizer.param_groups for p in group["params"]]
            with torch.no_grad():
                for parameter, master, value in zip(
                    trainer.model.parameters(), updated, self.weights, strict=True
                ):
                    parameter.copy_(value)
                    master.copy_(value)
        return trainer

    def first_steps(self, steps: int) -> list[list[Batch]]:
        """Return the micro-batches of this step and the following ones, a list for each step."""
        accumulate = self.config.training.accumulate
        epoch, start = self.place
        result: list[list[Batch]] = []
        for number in count(epoch):
            for batches in micro_batches(self.context.train.epoch(number, start), accumulate):
                result.append(_copy_batches(batches))
                if len(result) == steps:
                    return result
            start = 0
        raise AssertionError("epochs never end")


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


class _StepWatch(NoDisplay):
    """Copies the state of a training before the step to look at, and ends the replay.

    Args:
        context: Its data and loaders.
        choice: The steps among which the step is.
        row_ends: The steps at which the run logged a row: the replay ends its rows there, too.
    """

    def __init__(self, loop: TrainingLoop, context: RunContext, choice: StepChoice, row_ends: Sequence[int]):
        self.loop = loop
        self.context = context
        self.choice = choice
        self._row_ends = set(row_ends)
        self.end = min((step for step in row_ends if step >= choice.last), default=choice.last)
        self.moment: Moment | None = None
        self.found = False
        self._own_step = loop.trainer.step
        loop.trainer.step = self._take_step  # type: ignore[method-assign]

    def _take_step(self, batches: Sequence[Any], *, diagnose: bool = False) -> Any:
        loop = self.loop
        is_candidate = self.choice.first <= loop.step <= self.choice.last and not self.found
        if not is_candidate:
            return self._own_step(batches, diagnose=diagnose)
        self.moment = self._copy_state(batches)
        result = self._own_step(batches, diagnose=diagnose)
        updated = [p for group in loop.trainer.optimizer.param_groups for p in group["params"]]
        # sync: the step is looked at
        is_finite = bool(result.loss.isfinite()) and all(bool(p.isfinite().all()) for p in updated)
        self.found = bool(result.skipped) or not is_finite
        if self.found:  # the rest of this row is replayed for its loss
            self.end = min((step for step in self._row_ends if step >= loop.step), default=loop.step)
        return result

    def step(self, step: int) -> None:
        """End a row where the run ended one, and end the replay."""
        if step in self._row_ends:
            self.loop.logger.flush()
        if self.moment is not None and step >= self.end:
            raise _Reached

    def _copy_state(self, batches: Sequence[Any]) -> Moment:
        loop = self.loop
        trainer = loop.trainer
        updated = [p for group in trainer.optimizer.param_groups for p in group["params"]]
        if isinstance(trainer, GraphTrainer):
            batches = [trainer.make_batch(plan) for plan in batches]
        accumulate = loop.config.training.accumulate
        return Moment(
            name="",
            step=loop.step,
            config=dataclasses.replace(loop.config, execution="eager"),
            context=self.context,
            state={name: copy.deepcopy(getattr(trainer, name).state_dict()) for name in PARTS},
            weights=[p.detach().clone() for p in updated],
            random=random_states(loop.device),
            batches=_copy_batches(batches),
            place=(loop.epoch, (loop.in_epoch - 1) * accumulate),
        )


def _copy_batches(batches: Sequence[Batch]) -> list[Batch]:
    return [(map_tensors(x, torch.clone), map_tensors(y, torch.clone)) for x, y in batches]


def replay(text: str, overrides: Sequence[str], say: Callable[[str], None]) -> Moment:
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
    choice = run.choose_step(asked)
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
        state = _nearest_checkpoint(store, choice.first) if saved is not None else None
        start = 0 if state is None else int(state["fit"]["step"])
        tracker = _RowList()
        loop = TrainingLoop(trainer, context.train, context.test, run.config, tracker=tracker)
        if state is not None:
            loop.resume(state)
        else:
            set_random_states(context.world.device, states)
        watch = _StepWatch(loop, context, choice, run.steps)
        loop.display = watch
        say(_describe_start(run, start, watch.end, about))
        _run_to_moment(run, loop, watch)
    moment = watch.moment
    if moment is None:
        raise UserError(
            f"{OPTION} {run.name}: the replay ended at step {loop.step}, before step {choice.first}"
        )
    reason = choice.reason
    if choice.first < choice.last and not watch.found:
        reason = f"the replay found no bad step from step {choice.first:,} on"
    say(f"step {moment.step:,}: {reason}")
    say(describe_equality(run, tracker.losses))
    return dataclasses.replace(moment, name=f"run {run.name}, step {moment.step:,}")


def _run_to_moment(run: RecordedRun, loop: TrainingLoop, watch: _StepWatch) -> None:
    """Train until the watch ends the replay. The failure of the run itself ends it, too."""
    try:
        with hidden_messages():
            loop.run()
    except _Reached:
        pass
    except TrainingError as problem:
        if watch.moment is None:
            raise UserError(
                f"{OPTION} {run.name}: the replay failed at step {loop.step}: {problem}"
            ) from None
    finally:
        del loop.trainer.step  # the method of the class is back


def _describe_start(run: RecordedRun, start: int, end: int, about: Mapping[str, Any]) -> str:
    """Return from where the run is replayed, and how long that takes."""
    steps = end - start
    length = "1 step" if steps == 1 else f"{steps:,} steps"
    each = run.seconds_per_step()
    if each is not None:
        length = f"{length}, about {duration(each * steps)}"
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
    threads = run.record.environment.get("cpu_threads")
    before = torch.get_num_threads()
    if isinstance(threads, int) and threads > 0 and is_host(torch.device(_device_type(run))):
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device_type(run: RecordedRun) -> str:
    return str(run.record.environment.get("device_type", "cpu"))
