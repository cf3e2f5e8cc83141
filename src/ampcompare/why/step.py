"""A training right before one of its steps: what `why` looks at."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch
from ampcompare.errors import UserError, reason
from ampcompare.system.device import is_out_of_memory, random_states, seed_process, set_random_states
from ampcompare.training.loop import PARTS
from ampcompare.training.run_context import RunContext, make_config, prepare_run
from ampcompare.training.torch_compile import CompiledForward
from ampcompare.training.trainer import Trainer, micro_batches
from ampcompare.why.capture import TakenStep, are_same, map_tensors, take
from ampcompare.why.weights_file import load_weights, read_weights

MASTERS = "masters"  # in the state of a backend with fp32 master weights


@dataclass(frozen=True)
class StepState:
    """A training right before one of its steps.

    Attributes:
        title: What is looked at, for headings: `one training step`, or `run abc, step 300`.
        config: The options of the run.
        context: Its data and loaders.
        batches: The micro-batches of the step.
        random: The random states.
        parts: A copy of the state of model, optimizer, schedule and backend; empty for an untrained network.
        weights: What the optimizer updates, in the order of the model's parameters: weights, or masters.
        buffers: Buffers by name as a file has them, before the backend rounded them; empty without a file.
        place: Where the step is: the epoch, and the number of its first micro-batch in the epoch.
        has_updated: Whether an earlier step has changed the weights.
    """

    title: str
    config: Config
    context: RunContext
    batches: list[Batch]
    random: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)
    weights: Sequence[Tensor] = ()
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    place: tuple[int, int] = (0, 0)
    has_updated: bool = False

    @property
    def device(self) -> torch.device:
        """The device of the training."""
        return self.context.world.device

    def set_random_states(self) -> None:
        """Set all random generators as they were right before the step."""
        set_random_states(self.device, self.random)

    def build_trainer(self, config: Config | None = None) -> Trainer:
        """Return a trainer in the state before the step.

        Args:
            config: The options of the run, or with another backend or other modules in fp32. Then it gets the
                weights and the optimizer state, and of the backend's state what both backends have. None: the
                options of the run.
        """
        config = config or self.config
        trainer = self.context.build_trainer(config)
        if not self.parts:
            return trainer
        parts = copy.deepcopy(dict(self.parts))
        is_same = config.backend == self.config.backend and config.precision == self.config.precision
        if not is_same:
            own = trainer.precision.state_dict()
            shared = {k: v for k, v in parts["precision"].items() if k in own and k != MASTERS}
            parts["precision"] = own | shared
            _restore_rounded_buffers(trainer, parts["model"], self.buffers)
        for name in PARTS:
            getattr(trainer, name).load_state_dict(parts[name])
        if not is_same:
            set_weights(trainer, self.weights)
        for group in trainer.optimizer.param_groups:
            if "eps" in group:  # the state has that of the run
                group["eps"] = config.optimizer.eps
        return trainer

    def next_steps(self, steps: int) -> list[list[Batch]]:
        """Return all micro-batches of this step and the following ones, a list for each step."""
        epoch, start = self.place
        result: list[list[Batch]] = []
        for number in count(epoch):
            for batches in micro_batches(
                self.context.train.epoch(number, start), self.config.training.accumulate
            ):
                result.append(copy_batches(batches))
                if len(result) == steps:
                    return result
            start = 0
        raise AssertionError("epochs never end")


def _restore_rounded_buffers(trainer: Trainer, saved: dict[str, Any], of_file: Mapping[str, Tensor]) -> None:
    """Replace saved buffers that are the rounded ones of the file, or the rounded initial ones, by these.

    A backend with 16-bit weights rounds buffers as well, some of them to 0 or inf.
    """
    for name, own in trainer.model.named_buffers():
        initial = of_file.get(name, own).to(own)
        buffer = saved.get(name)
        if buffer is None or buffer.dtype == initial.dtype:
            continue
        if are_same(buffer, initial.to(buffer.dtype)):
            saved[name] = initial.clone()


def set_weights(trainer: Trainer, weights: Sequence[Tensor]) -> None:
    """Copy weights into the network, and into fp32 master weights where the backend has them."""
    updated = trainer.updated
    with torch.no_grad():
        for parameter, master, value in zip(trainer.model.parameters(), updated, weights, strict=True):
            parameter.copy_(value)
            master.copy_(value)


def copy_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Return copies of micro-batches, which a training may change."""
    return map_tensors([*batches], torch.clone)


def from_options(overrides: Sequence[str], *, samples: int | None = None) -> StepState:
    """Return the first step of an untrained network.

    Args:
        overrides: Options of a run.
        samples: As in `from_config`, unless the options set batch_size.

    Raises:
        UserError: For bad options.
    """
    if any(word.lstrip("-+").startswith("batch_size=") for word in overrides):
        samples = None
    return from_config(make_config(overrides), samples=samples)


def from_config(config: Config, *, samples: int | None = None) -> StepState:
    """Return the first step of an untrained network.

    Args:
        samples: The number of samples that are kept of each micro-batch; None: all.
    """
    context = prepare_run(config)
    (batches,) = context.first_steps(1, samples=samples)
    seed_process(config.seed)
    return StepState(
        "one training step", context.config, context, batches, random_states(context.world.device)
    )


def from_weights(path: Path, overrides: Sequence[str]) -> StepState:
    """Return the first step from trained weights, with a new optimizer.

    Args:
        overrides: Options of a run.

    Raises:
        UserError: For bad options, or if the weights do not fit.
    """
    config = make_config(overrides)
    context = prepare_run(config)
    weights = read_weights(path)
    plain = context.build_trainer(config)
    load_weights(plain.model, weights, path)
    values = [weights[name] for name, _ in plain.model.named_parameters(remove_duplicate=True)]
    set_weights(plain, values)
    seed_process(config.seed)
    (batches,) = context.first_steps(1)
    return StepState(
        title=f"a step with the weights of {path}",
        config=context.config,
        context=context,
        batches=batches,
        random=random_states(context.world.device),
        parts={name: getattr(plain, name).state_dict() for name in PARTS},
        weights=[value.to(context.world.device) for value in values],
        buffers={name: weights[name] for name, _ in plain.model.named_buffers() if name in weights},
    )


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two states of random generators are equal."""
    if isinstance(a, Mapping):
        return all(are_equal(value, b[key]) for key, value in a.items())
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


class RepeatableStep:
    """A training step that can be taken again, from the same state or from other weights.

    Args:
        state: The training before the step.
        trainer: A trainer in this state.
        batches: The micro-batches of the step.
        context: Returns a context around the step.

    Attributes:
        start: The state from which each step begins, by part of the trainer.
        draws: The random states after the last step.
    """

    def __init__(
        self,
        state: StepState,
        trainer: Trainer,
        batches: Sequence[Batch],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.trainer = trainer
        self.batches = batches
        self.start = {part: copy.deepcopy(getattr(trainer, part).state_dict()) for part in PARTS}
        self.draws: Mapping[str, Any] = {}
        self._state = state
        self._context = context

    @property
    def draws_random(self) -> bool:
        """Whether the last step drew random numbers."""
        return not are_equal(self.draws, self._state.random)

    def take(self, weights: Sequence[Tensor] | None = None, *, with_calls: bool = False) -> TakenStep:
        """Take the step.

        Args:
            weights: Weights to start from, in the order of the parameters; None: the trainer's own.
            with_calls: As in `capture.take`.

        Raises:
            UserError: The step cannot be compiled.
        """
        trainer = self.trainer
        for part, saved in self.start.items():
            getattr(trainer, part).load_state_dict(copy.deepcopy(saved))
        if weights is not None:
            set_weights(trainer, weights)
        try:
            with self._context():
                step = take(trainer, self.batches, self._state.set_random_states, with_calls=with_calls)
        except Exception as problem:
            if not isinstance(trainer.forward, CompiledForward) or is_out_of_memory(problem):
                raise
            raise UserError(
                f"execution=compile: the step cannot be compiled ({type(problem).__name__}: "
                f"{reason(problem)}); change what the compiler names"
            ) from None
        self.draws = random_states(self._state.device)
        return step
